r"""DiffPIR, and its relative with the power spectrum of images: a data step after every denoising.

From :math:`x_t` at time :math:`t_k`:

1. :math:`x_0 = D(x_t, t)`;
2. :math:`\hat x_0` = mode of :math:`N(x; x_0, C)\, l(y | A(x))`, the data step (:mod:`lavps.data_step`), or a
   draw from it;
3. :math:`x_s = \alpha_s \hat x_0 + \sigma_s (\sqrt{1 - \zeta}\, \hat e + \sqrt{\zeta}\, z)` with
   :math:`\hat e = (x_t - \alpha_t \hat x_0) / \sigma_t` and fresh noise z.

The sample is the last :math:`\hat x_0`. DiffPIR takes :math:`C = \sigma_t^2 / (\lambda \alpha_t^2)\, I` and
the mode, so its samples vary too little, most of all at low noise. :class:`WienerPIR` has the power spectrum
of images in C, with its correlation of neighbouring pixels, and draws. For a stationary Gaussian prior
and :math:`\zeta = 1` full draws have the exact marginals at every step, whatever the number of steps.

References:
    - Zhu et al., Denoising Diffusion Models for Plug-and-Play Image Restoration, 2023 (DiffPIR).
    - Zhang et al., Improving Diffusion Inverse Problem Solving with Decoupled Noise Annealing, 2025 (draws of
      x_0 and fresh noise in place of step 3).
"""

from __future__ import annotations

__all__ = ["DataStepSampler", "DiffPIR", "WienerPIR"]

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from torch import Tensor

from ..data_step import Covariance, Isotropic, Stationary, data_step
from ..random import Purpose
from ..schedule import Schedule, evaluation_times
from ..transitions import IsotropicGaussian, per_sample
from .base import Run
from .ddim import DenoisingSampler


@dataclass(frozen=True)
class DataStepSampler(DenoisingSampler):
    r"""The loop of this module; biased: x_0 given x_t is taken as Gaussian.

    Args:
        prior: Denoiser D.
        num_steps: Number K of denoiser evaluations.
        grid_power: Exponent of the grid of noise levels, see :func:`lavps.schedule.evaluation_times`.
        last_time: Lowest point of that grid; None for (1 / K)^grid_power.
        covariance: Covariance C of x_0 given x_t.
        draw: Noise of the data step: "none" for the mode; "measurement" perturbs y, which varies the
            measured directions; "full" perturbs x_0 too. Unless "none", the last step is "full".
        zeta: Fraction of fresh noise, from 0 (deterministic) to 1.
        relaxation: Factor w of the data step while the noise is large,
            :math:`x_0 + w_t (\hat x_0 - x_0)`,
            :math:`w_t = 1 + (w - 1) \sigma_t^2 / (\sigma_t^2 + \alpha_t^2 / 4)`.
            Above 1, later steps need to correct less.
        solver_steps: Maximum number of conjugate-gradient steps of a data step.
    """

    _: KW_ONLY
    num_steps: int = 25
    last_time: float | None = None
    covariance: Covariance = Isotropic()
    draw: Literal["none", "measurement", "full"] = "none"
    zeta: float = 0.8
    relaxation: float = 1.0
    solver_steps: int = 30

    def __post_init__(self) -> None:
        if self.num_steps < 1 or self.solver_steps < 1 or self.grid_power <= 0:
            raise ValueError(f"num_steps, solver_steps and grid_power must be positive: {self}")
        if not 0 <= self.zeta <= 1 or not 0 < (self.last_time or 0.5) < 1 or self.relaxation <= 0:
            raise ValueError(f"zeta must be in [0, 1], last_time in (0, 1), relaxation positive: {self}")
        if self.draw not in ("none", "measurement", "full"):
            raise ValueError(f"draw must be 'none', 'measurement' or 'full', got {self.draw!r}")

    def times(self, schedule: Schedule) -> Tensor:
        """Return the times of the grid of noise levels."""
        return evaluation_times(schedule, self.num_steps, self.grid_power, self.last_time)

    def estimate(self, run: Run, x_t: Tensor, t: Tensor, step: int) -> Tensor:
        """Return the data step from D(x_t, t)."""
        x_0 = self.denoised(run, x_t, t, step)
        return self.relaxed(run, x_0, self.moved(run, x_0, t, step), t)

    def relaxed(self, run: Run, x_0: Tensor, moved: Tensor, t: Tensor) -> Tensor:
        """Return the point from x_0 to the data step and beyond."""
        if self.relaxation == 1.0:
            return moved
        alpha, sigma = run.prior.schedule.coefficients(t)
        share = sigma.square() / (sigma.square() + 0.25 * alpha.square())
        return x_0 + per_sample(1.0 + (self.relaxation - 1.0) * share, x_0) * (moved - x_0)

    def denoised(self, run: Run, x_t: Tensor, t: Tensor, step: int) -> Tensor:
        """Return the estimate of x_0 without the measurement."""
        return run.prior.denoise(x_t, t)

    def moved(self, run: Run, x_0: Tensor, t: Tensor, step: int) -> Tensor:
        """Return the data step from x_0."""
        problem = run.measured
        image_noise = measurement_noise = None
        if self.draw != "none":
            shape = problem.y.shape[1:]
            measurement_noise = run.noise.normal(Purpose.DATA_STEP, shape, problem.y, step, 0)
            if self.draw == "full" or step == 1:
                image_noise = run.normal(Purpose.DATA_STEP, step, 1)
        return data_step(
            problem,
            x_0,
            self.covariance,
            run.prior.schedule.noise_level(t),
            solver_steps=self.solver_steps,
            image_noise=image_noise,
            measurement_noise=measurement_noise,
        )

    def fresh_noise(self, run: Run) -> float | Tensor:
        """Return the fraction of fresh noise, a number or one per row (B,)."""
        return self.zeta

    def transition(self, run: Run, x_0: Tensor, x_t: Tensor, s: Tensor, t: Tensor) -> IsotropicGaussian:
        """Return x_s with a fraction of fresh noise."""
        (alpha_s, sigma_s), (alpha_t, sigma_t) = (
            tuple(per_sample(c, x_t) for c in run.prior.schedule.coefficients(time)) for time in (s, t)
        )
        zeta = self.fresh_noise(run)
        zeta = per_sample(zeta, x_t) if isinstance(zeta, Tensor) else zeta
        kept = (1.0 - zeta) ** 0.5 * sigma_s / sigma_t
        return IsotropicGaussian((alpha_s - kept * alpha_t) * x_0 + kept * x_t, zeta**0.5 * sigma_s)


@dataclass(frozen=True)
class DiffPIR(DataStepSampler):
    """Plug-and-play restoration (Zhu et al., 2023); biased: a mode in place of a draw.

    The fields are those of :class:`DataStepSampler`; lambda is ``covariance=Isotropic(strength)``.

    Example:
        >>> import torch, lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> pooling, noise = lavps.operators.AveragePool(2), lavps.GaussianNoise(0.1)
        >>> problem = lavps.InverseProblem(torch.zeros(1, 1, 2, 2), pooling, noise)
        >>> lavps.DiffPIR(prior, num_steps=5).sample(problem).trace.forwards
        5.0
    """


@dataclass(frozen=True)
class WienerPIR(DataStepSampler):
    """A Wiener filter as the data step, and draws: no training, no derivative of the denoiser.

    Reference: this library; DiffPIR's loop with another covariance. Biased: images are no stationary Gaussian
    process. Made for few denoiser evaluations. The fields are those of :class:`DataStepSampler`;
    :meth:`lavps.data_step.Stationary.fit` estimates the covariance from images.

    Example:
        >>> import torch, lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> pooling, noise = lavps.operators.AveragePool(2), lavps.GaussianNoise(0.1)
        >>> problem = lavps.InverseProblem(torch.zeros(1, 1, 2, 2), pooling, noise)
        >>> lavps.WienerPIR(prior, num_steps=5).sample(problem).trace.forwards
        5.0
    """

    _: KW_ONLY
    grid_power: float = 2.0
    last_time: float | None = 0.03
    covariance: Covariance = Stationary()
    draw: Literal["none", "measurement", "full"] = "measurement"
