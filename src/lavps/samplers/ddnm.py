r"""DDNM+: the range of the operator is taken from the measurement, its null space from the denoiser.

Let :math:`A = U \,\text{diag}(s_i)\, V^T`. From :math:`x_t`, with :math:`x_0 = D(x_t, t)` and
:math:`e = (x_t - \alpha_t x_0) / \sigma_t`, coordinate i of the estimate in the basis V is corrected by

.. math:: \hat x_{0,i} = x_{0,i} + \lambda_i \, ((U^T y)_i / s_i - x_{0,i}),

and the noise of y that enters in this way is counted as part of the noise of :math:`x_s`:

.. math:: x_{s,i} = \alpha_s \hat x_{0,i} + \sqrt{\sigma_s^2 - (\alpha_s \lambda_i \sigma_y / s_i)^2} \;
    (\eta z_i + \sqrt{1 - \eta^2}\, e_i).

Where the noise of y fits, :math:`\alpha_s \sigma_y / s_i \le \sigma_s`, the measurement is taken as it is,
:math:`\lambda_i = 1`. Elsewhere :math:`\lambda_i = \sqrt{1 - \eta^2}\, \sigma_s s_i / (\alpha_s \sigma_y)`,
and e is left out. In the null space nothing is corrected. Without noise :math:`\lambda_i = 1` and
:math:`\hat x_0 = A^+ y + (1 - A^+ A) x_0`.

Each :math:`\lambda_i` and each standard deviation is a function of the eigenvalue
:math:`m_i = s_i^2 / \sigma_y^2` of :math:`A^T W A`. Such functions are applied by the Lanczos process, which
underlies conjugate gradients, so that no singular value decomposition is needed.

Reference: Wang et al., Zero-Shot Image Restoration Using Denoising Diffusion Null-Space Model, 2023 (DDNM+).
"""

from __future__ import annotations

__all__ = ["DDNM"]

import math
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from ..operators.linalg import rounding, spectral_product
from ..random import Purpose
from ..transitions import per_sample
from .base import Progress, Run
from .ddim import DDIMSampler


@dataclass(frozen=True)
class DDNM(DDIMSampler):
    r"""Null-space restoration with noise (DDNM+, Wang et al., 2023); biased: x_0 given x_t has no variance.

    For linear operators and Gaussian noise. DDRM (Kawar et al., 2022) is the same diagonal scheme with other
    weights: where the noise of y fits, DDRM weighs y by a tuned :math:`\eta_b`, DDNM+ by 1. DDRM also
    initializes measured coordinates with y; DDNM+ initializes with noise. The paper ends at
    :math:`\sigma_s = 0`, where a noisy measurement has no weight. Here the last estimate has the weights of
    its own noise level.

    Args:
        prior: Denoiser D.
        num_steps: Number K of denoiser evaluations.
        grid_power: Exponent of t_k = (k / K)^power; above 1 the steps are denser towards t = 0.
        eta: Fraction of fresh noise; 0.85 is the paper's.
        solver_steps: Maximum number of Lanczos iterations; as many as distinct singular values are exact.

    Example:
        >>> import torch, lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> pooling, noise = lavps.operators.AveragePool(2), lavps.GaussianNoise(1e-6)
        >>> problem = lavps.InverseProblem(torch.ones(1, 1, 2, 2), pooling, noise)
        >>> samples = lavps.DDNM(prior, num_steps=5).sample(problem).samples
        >>> torch.allclose(pooling(samples[0]), problem.y, atol=1e-5)
        True
    """

    _: KW_ONLY
    eta: float = 0.85
    solver_steps: int = 30

    def steps(self, run: Run) -> Iterator[Progress]:
        """K evaluations, from t_K = 1 down to t_1; the last corrected estimate is the sample."""
        if not run.measured.is_linear_gaussian:
            raise TypeError(
                f"DDNM needs a linear operator and Gaussian noise, got {run.measured.operator!r} with "
                f"{type(run.measured.noise).__name__}: use DiffPIR, DAPS or MGDM"
            )
        schedule, grid, x = run.prior.schedule, self.times(run.prior.schedule), run.initial()
        for k in range(self.num_steps, 0, -1):
            x_0 = run.prior.denoise(x, grid[k])
            s = grid[max(k - 1, 1)]
            corrected = self.corrected(run, x_0, schedule.noise_level(s))
            if k > 1:
                alpha, sigma = (per_sample(c, x) for c in schedule.coefficients(grid[k]))
                predicted = (x - alpha * x_0) / sigma
                noise = self.noise(run, x_0, predicted, schedule.noise_level(s), k)
                x = per_sample(schedule.alpha(s), x) * (corrected + noise)
            yield Progress(grid[k], corrected)

    def corrected(self, run: Run, x_0: Tensor, level: Tensor) -> Tensor:
        """Return the estimate with its range from the measurement, for noise level sigma_s / alpha_s."""

        def weight(m: Tensor, measured: Tensor) -> Tensor:  # the score has a factor m already
            noisy = math.sqrt(1.0 - self.eta**2) * level * m.clamp(min=0.0).sqrt()
            share = torch.where(level.square() * m >= 1.0, 1.0, noisy)
            return torch.where(measured, share / torch.where(measured, m, 1.0), 0.0)

        return x_0 + self._product(run, x_0, run.measured.likelihood_score(x_0), weight)

    def noise(self, run: Run, x_0: Tensor, predicted: Tensor, level: Tensor, step: int) -> Tensor:
        """Return the noise of x_s / alpha_s that the noise of y leaves to add."""

        def fresh(m: Tensor, measured: Tensor) -> Tensor:
            fits = measured & (level.square() * m >= 1.0)
            left: Tensor = level.square() - torch.where(fits, 1.0 / torch.where(fits, m, 1.0), 0.0)
            return left.clamp(min=0.0).sqrt()

        def kept(m: Tensor, measured: Tensor) -> Tensor:
            noisy = measured & (level.square() * m < 1.0)
            return fresh(m, measured) * (~noisy)

        noise = self.eta * self._product(run, x_0, run.normal(Purpose.DDIM, step), fresh)
        if self.eta == 1.0:
            return noise
        return noise + math.sqrt(1.0 - self.eta**2) * self._product(run, x_0, predicted, kept)

    def _product(
        self, run: Run, x_0: Tensor, b: Tensor, function: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Return f(A^T W A) b; f also receives whether an eigenvalue is one of the operator's range."""

        def on_range(m: Tensor) -> Tensor:
            return function(m, m > rounding(b.dtype) * m.amax(1, keepdim=True).clamp(min=0.0))

        return spectral_product(run.measured.gauss_newton_product(x_0), b, on_range, self.solver_steps)
