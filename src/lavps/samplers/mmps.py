r"""MMPS: moment matching, the guidance that takes the denoiser's own uncertainty into account.

With :math:`p(x_0 | x_t) \approx N(\hat x_0, V)`, :math:`\hat x_0 = D(x_t, t)` and
:math:`V = (\sigma^2 / \alpha) \, \partial D / \partial x_t` (its exact covariance), the posterior denoiser is

.. math:: E[x_0 | x_t, y] \approx \hat x_0 + V A^T (\Sigma_y + A V A^T)^{-1} (y - A \hat x_0).

V is symmetric, so a product with it is one backward of the denoiser; the system is solved by a few
conjugate-gradient steps. Exact for a Gaussian prior in the limit of small steps. A nonlinear operator is
linearised at :math:`\hat x_0`.

Reference: Rozet et al., Learning Diffusion Priors from Observations by Expectation Maximization, 2024.
"""

from __future__ import annotations

__all__ = ["MMPS"]

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from ..operators.conjugate import conjugate_gradient
from ..priors import Prior
from ..random import Purpose
from ..schedule import time_grid
from ..transitions import ddim_step, per_sample
from .base import Progress, Run, Sampler


@dataclass(frozen=True)
class MMPS(Sampler):
    """Moment-matching posterior sampling.

    Args:
        prior: the denoiser.
        num_steps: K; each costs one forward and up to ``solver_steps`` + 1 backwards.
        grid_power: t_k = (k / K)^power; above 1 the steps crowd towards t = 0.
        solver_steps: conjugate-gradient iterations.
        eta: 1 is ancestral, 0 deterministic.
    """

    prior: Prior
    _: KW_ONLY
    num_steps: int = 100
    grid_power: float = 1.0
    solver_steps: int = 3
    eta: float = 1.0

    @property
    def total_steps(self) -> int:
        """One per grid interval."""
        return self.num_steps

    def steps(self, run: Run) -> Iterator[Progress]:
        """DDIM with the moment-matched posterior denoiser."""
        grid, x = time_grid(self.num_steps, self.grid_power), run.initial()
        for k in range(self.num_steps, 0, -1):
            x_0 = self._posterior_denoise(run, x, grid[k])
            if k > 1:
                kernel = ddim_step(run.prior.schedule, x_0, x, grid[k - 1], grid[k], self.eta)
                x = kernel.sample(run.normal(Purpose.DDIM, k))
            yield Progress(grid[k], x_0)

    def _posterior_denoise(self, run: Run, x_t: Tensor, t: Tensor) -> Tensor:
        problem, schedule = run.measured, run.prior.schedule
        alpha = schedule.alpha(t)
        if float(alpha.min()) <= 0.0:
            # x_t is pure noise: V is the prior's own covariance, which its Jacobian there cannot tell.
            return run.prior.denoise(x_t, t)
        with torch.enable_grad():
            x_t = x_t.detach().requires_grad_()
            output = run.prior.denoise(x_t, t)
        x_0 = output.detach()
        scale = per_sample(schedule.sigma(t).square() / alpha, x_0)

        def covariance(v: Tensor) -> Tensor:
            return scale * torch.autograd.grad(output, x_t, v, retain_graph=True)[0]

        prediction = problem.operator(x_0)
        noise_variance = 1.0 / problem.noise.precision(prediction)
        if prediction.is_complex():  # two real measurements, with half of the variance each
            noise_variance = 0.5 * noise_variance

        def innovation_covariance(w: Tensor) -> Tensor:
            return noise_variance * w + problem.operator.jvp(x_0, covariance(problem.operator.vjp(x_0, w)))

        weights = conjugate_gradient(innovation_covariance, problem.residual(prediction), self.solver_steps)
        return x_0 + covariance(problem.operator.vjp(x_0, weights))
