r"""MMPS and Pi-GDM: guidance by the score of a Gaussian likelihood, through the denoiser's Jacobian.

With :math:`p(x_0 | x_t) \approx N(\hat x_0, V)`, :math:`\hat x_0 = D(x_t, t)` and
:math:`V = (\sigma^2 / \alpha) \, \partial D / \partial x_t` (its exact covariance), the posterior denoiser is

.. math:: E[x_0 | x_t, y] \approx \hat x_0 + V A^T (\Sigma_y + A V A^T)^{-1} (y - A \hat x_0).

V is symmetric, so a product with it is one backward of the denoiser; the system is solved by a few
conjugate-gradient steps. Exact for a Gaussian prior in the limit of small steps. A nonlinear operator is
linearised at :math:`\hat x_0`.

Pi-GDM has a fixed covariance :math:`r_t^2 I` in place of V inside the inverse, so that a step takes one
backward pass, and adds the guidance to DDIM's step from :math:`\hat x_0`:

.. math:: x_s = \text{DDIM}(x_t, \hat x_0) + \alpha_s \alpha_t r_t^2 \, \frac{\partial D}{\partial x_t}^T A^T
    (\Sigma_y + r_t^2 A A^T)^{-1} (y - A \hat x_0), \qquad r_t^2 = \frac{\sigma_t^2}{\sigma_t^2 + \alpha_t^2},

the variance of x_0 given x_t for a prior of unit variance.

References:
    - Rozet et al., Learning Diffusion Priors from Observations by Expectation Maximization, 2024 (MMPS).
    - Song et al., Pseudoinverse-Guided Diffusion Models for Inverse Problems, 2023 (Pi-GDM).
"""

from __future__ import annotations

__all__ = ["MMPS", "PiGDM"]

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..data_step import Covariance, Isotropic
from ..operators.linalg import LinearMap, conjugate_gradient
from ..random import Purpose
from ..transitions import per_sample
from .base import Progress, Run
from .ddim import DDIMSampler


@dataclass(frozen=True)
class MMPS(DDIMSampler):
    """Moment-matching posterior sampling (Rozet et al., 2024); biased: x_0 given x_t is taken as Gaussian.

    Args:
        prior: Denoiser D.
        num_steps: Number K of steps; each costs one forward and up to ``solver_steps`` + 1 backward passes.
        grid_power: Exponent of t_k = (k / K)^power; above 1 the steps are denser towards t = 0.
        solver_steps: Number of conjugate-gradient iterations.
        eta: Fraction of fresh noise; 1 is ancestral, 0 deterministic.

    Example:
        >>> import torch, lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> pooling, noise = lavps.operators.AveragePool(2), lavps.GaussianNoise(0.1)
        >>> problem = lavps.InverseProblem(torch.zeros(1, 1, 2, 2), pooling, noise)
        >>> lavps.MMPS(prior, num_steps=5).sample(problem).trace.forwards
        5.0
    """

    _: KW_ONLY
    solver_steps: int = 3
    _tolerance: ClassVar[float] = 0.0  # relative residual at which the solver stops

    def estimate(self, run: Run, x_t: Tensor, t: Tensor, step: int) -> Tensor:
        """Return the moment-matched E[x_0 | x_t, y]."""
        x_0, correction = self.guided(run, x_t, t)
        return x_0 + correction

    def guided(self, run: Run, x_t: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return D(x_t, t) and its correction by the measurement."""
        problem, schedule = run.measured, run.prior.schedule
        alpha = schedule.alpha(t)
        if float(alpha.min()) <= 0.0:
            # x_t is pure noise: V is the prior's own covariance, which its Jacobian there does not contain.
            return (x_0 := run.prior.denoise(x_t, t)), torch.zeros_like(x_0)
        with torch.enable_grad():
            x_t = x_t.detach().requires_grad_()
            output = run.prior.denoise(x_t, t)
        x_0 = output.detach()
        scale = per_sample(schedule.sigma(t).square() / alpha, x_0)

        def jacobian(v: Tensor) -> Tensor:
            return scale * torch.autograd.grad(output, x_t, v, retain_graph=True)[0]

        covariance, guidance = self.products(jacobian, schedule.noise_level(t), x_0)
        prediction = problem.operator(x_0)
        noise_variance = 1.0 / problem.noise.precision(prediction)
        if prediction.is_complex():  # two real measurements, with half of the variance each
            noise_variance = 0.5 * noise_variance

        def innovation_covariance(w: Tensor) -> Tensor:
            return noise_variance * w + problem.operator.jvp(x_0, covariance(problem.operator.vjp(x_0, w)))

        residual = problem.residual(prediction)
        weights = conjugate_gradient(innovation_covariance, residual, self.solver_steps, self._tolerance)
        return x_0, guidance(problem.operator.vjp(x_0, weights))

    def products(
        self, covariance: LinearMap, noise_level: Tensor, x_0: Tensor
    ) -> tuple[LinearMap, LinearMap]:
        """Return the products with the covariance inside the inverse and outside, here both V."""
        return covariance, covariance


@dataclass(frozen=True)
class PiGDM(MMPS):
    """Pseudoinverse-guided diffusion (Song et al., 2023); biased: the covariance is not that of the prior.

    A step costs one forward and one backward pass. The guidance is stronger the more steps there are.

    Args:
        prior: Denoiser D.
        num_steps: Number K of denoiser evaluations.
        grid_power: Exponent of t_k = (k / K)^power; above 1 the steps are denser towards t = 0.
        solver_steps: Maximum number of conjugate-gradient iterations; they do not evaluate the denoiser.
        eta: Fraction of fresh noise; 1 is ancestral, 0 deterministic.
        covariance: Covariance C of x_0 given x_t; the default is the paper's r_t^2 I.

    Example:
        >>> import torch, lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> pooling, noise = lavps.operators.AveragePool(2), lavps.GaussianNoise(0.1)
        >>> problem = lavps.InverseProblem(torch.zeros(1, 1, 2, 2), pooling, noise)
        >>> lavps.PiGDM(prior, num_steps=5).sample(problem).trace.backwards
        5.0
    """

    _: KW_ONLY
    solver_steps: int = 30
    _tolerance: ClassVar[float] = 1e-5
    covariance: Covariance = Isotropic(variance=1.0)

    def products(
        self, covariance: LinearMap, noise_level: Tensor, x_0: Tensor
    ) -> tuple[LinearMap, LinearMap]:
        """Return the products with C and with the weighted V."""
        weight = per_sample(1.0 / (1.0 + noise_level.square()), x_0)
        return self.covariance.product(noise_level, x_0), lambda v: weight * covariance(v)

    def steps(self, run: Run) -> Iterator[Progress]:
        """K evaluations; the direction of DDIM's step is that of D(x_t, t), without guidance."""
        schedule, grid, x = run.prior.schedule, self.times(run.prior.schedule), run.initial()
        for k in range(self.num_steps, 0, -1):
            x_0, correction = self.guided(run, x, grid[k])
            if k > 1:
                kernel = self.transition(run, x_0, x, grid[k - 1], grid[k])
                x = kernel.sample(run.normal(Purpose.DDIM, k))
                x = x + per_sample(schedule.alpha(grid[k - 1]), x) * correction
            yield Progress(grid[k], x_0 + correction)
