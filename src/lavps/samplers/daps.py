r"""DAPS: a short deterministic run to x_0, a draw given the measurement, and fresh noise.

From :math:`x_t` at annealing level :math:`t_k`:

1. :math:`x_0` = end of M deterministic DDIM steps from :math:`x_t`, a solution of the probability-flow ODE;
2. :math:`\hat x_0 \sim N(x; x_0, r_t^2 I)\, l(y | A(x))`, in the paper :math:`r_t = \sigma_t / \alpha_t`;
3. :math:`x_s = \alpha_s \hat x_0 + \sigma_s z` with fresh noise z.

A level depends on the one before only through :math:`\hat x_0`, so errors of early levels can be corrected.
Step 2 is the paper's Langevin dynamics or, in this library, a draw by one linear solve
(:mod:`lavps.data_step`).

Reference: Zhang et al., Improving Diffusion Inverse Problem Solving with Decoupled Noise Annealing, 2025.
"""

from __future__ import annotations

__all__ = ["DAPS"]

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from torch import Tensor

from ..data_step import Covariance, Isotropic
from ..operators.linalg import largest_singular_value
from ..random import Purpose
from ..transitions import per_sample
from .base import Run
from .ddim import ddim_chain
from .diffpir import DataStepSampler


@dataclass(frozen=True)
class DAPS(DataStepSampler):
    """Decoupled annealing (Zhang et al., 2025); biased: x_0 given x_t is taken as Gaussian.

    Samples vary too much: the end of the ODE varies with x_t, and the draw adds a variance of r_t^2. So the
    default bounds r_t^2. The paper has ``covariance=Isotropic()``, ``denoising_steps=5`` and many levels.

    K levels cost K times ``denoising_steps`` evaluations. Other fields are those of :class:`DataStepSampler`.

    Args:
        prior: Denoiser D.
        num_steps: Number K of annealing levels.
        denoising_steps: Number M of denoiser evaluations per level.
        langevin_steps: Number of Langevin steps of a draw; None for the data step, which is exact for
            linear operators and Gaussian noise.
        langevin_step_size: Step size of Langevin dynamics, relative to the largest curvature of the density.

    Example:
        >>> import torch, lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> pooling, noise = lavps.operators.AveragePool(2), lavps.GaussianNoise(0.1)
        >>> problem = lavps.InverseProblem(torch.zeros(1, 1, 2, 2), pooling, noise)
        >>> lavps.DAPS(prior, num_steps=4, denoising_steps=3).sample(problem).trace.forwards
        12.0
    """

    _: KW_ONLY
    num_steps: int = 100
    grid_power: float = 2.0
    last_time: float | None = 0.01
    covariance: Covariance = Isotropic(variance=0.03)
    denoising_steps: int = 1
    langevin_steps: int | None = None
    langevin_step_size: float = 0.2
    draw: Literal["none", "measurement", "full"] = "full"
    zeta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.denoising_steps < 1 or (self.langevin_steps is not None and self.langevin_steps < 1):
            raise ValueError(f"denoising_steps and langevin_steps must be positive: {self}")
        if not 0 < self.langevin_step_size <= 1:
            raise ValueError(f"langevin_step_size must be in (0, 1], got {self.langevin_step_size}")
        if self.langevin_steps is not None and self.draw != "full":
            raise ValueError(f"Langevin steps draw in full: draw must be 'full', got {self.draw!r}")

    def denoised(self, run: Run, x_t: Tensor, t: Tensor, step: int) -> Tensor:
        """Return the end of M deterministic DDIM steps."""
        return ddim_chain(run, x_t, t, self.denoising_steps, 0.0, step)

    def moved(self, run: Run, x_0: Tensor, t: Tensor, step: int) -> Tensor:
        """Return a draw by the data step, or by Langevin dynamics that begins at x_0."""
        if self.langevin_steps is None:
            return super().moved(run, x_0, t, step)
        problem, level = run.measured, run.prior.schedule.noise_level(t)
        product, root = (self.covariance.product(level, x_0, power) for power in (1.0, 0.5))
        # Preconditioned by C, the density has the curvature 1 + C A^T W A.
        largest = largest_singular_value(product, product, x_0, 5) * problem.curvature(x_0)
        size = per_sample(self.langevin_step_size / (1.0 + largest), x_0)
        x = x_0
        for n in range(self.langevin_steps):
            z = run.normal(Purpose.DATA_STEP, step, n + 2)
            x = x - size * (x - x_0 - product(problem.likelihood_score(x))) + (2.0 * size).sqrt() * root(z)
        return x
