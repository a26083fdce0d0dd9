r"""DPS: one gradient of the misfit through the denoiser at every step.

.. math:: x_{t_{k-1}} = \text{DDIM}(x_{t_k}, \hat x_0) - \zeta \, \nabla_{x_t} \| y - A(\hat x_0) \|, \qquad
    \hat x_0 = D(x_{t_k}, t_k).

The gradient of the norm is Chung's :math:`\zeta / \|r\|` times that of its square. The norm is that of
each sample: taken over a batch it would shrink every item's step. Heteroscedastic noise (Poisson) enters
through weights of mean one. Biased: :math:`\zeta` is a heuristic and no posterior is its target.

Reference: Chung et al., Diffusion Posterior Sampling for General Noisy Inverse Problems, 2023.
"""

from __future__ import annotations

__all__ = ["DPS"]

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from ..priors import Prior
from ..problem import InverseProblem
from ..random import Purpose
from ..schedule import time_grid
from ..transitions import ddim_step
from .base import Progress, Run, Sampler


@dataclass(frozen=True)
class DPS(Sampler):
    """Diffusion posterior sampling (Chung et al., 2023); biased: the step size is a heuristic.

    Args:
        prior: Denoiser D.
        num_steps: Number K of steps, one forward and one backward pass each.
        grid_power: Exponent of t_k = (k / K)^power; above 1 the steps are denser towards t = 0.
        step_size: Step size zeta.
        eta: Fraction of fresh noise; 1 is ancestral (the paper's), 0 deterministic DDIM.

    Example:
        >>> import torch, lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> pooling, noise = lavps.operators.AveragePool(2), lavps.GaussianNoise(0.1)
        >>> problem = lavps.InverseProblem(torch.zeros(1, 1, 2, 2), pooling, noise)
        >>> lavps.DPS(prior, num_steps=5).sample(problem).trace.forwards
        5.0
    """

    prior: Prior
    _: KW_ONLY
    num_steps: int = 1000
    grid_power: float = 1.0
    step_size: float = 1.0
    eta: float = 1.0

    @property
    def total_steps(self) -> int:
        """One per grid interval."""
        return self.num_steps

    def steps(self, run: Run) -> Iterator[Progress]:
        """Take one forward and one backward pass per step."""
        grid, x = time_grid(self.num_steps, self.grid_power), run.initial()
        for k in range(self.num_steps, 0, -1):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                x_0 = run.prior.denoise(x, grid[k])
                norm = misfit_norm(run.measured, x_0)
                (gradient,) = torch.autograd.grad(norm.sum(), x)
            x, x_0 = x.detach(), x_0.detach()
            kernel = ddim_step(run.prior.schedule, x_0, x, grid[k - 1], grid[k], self.eta)
            noise = run.normal(Purpose.DDIM, k) if k > 1 else torch.zeros_like(x)
            x = kernel.sample(noise) - self.step_size * gradient
            yield Progress(grid[k], x_0 if k > 1 else x, norm.detach())


def misfit_norm(problem: InverseProblem, x_0: Tensor) -> Tensor:
    """||y - A(x_0)|| per row (B,), entries weighted by their precision relative to its mean."""
    prediction = problem.operator(x_0)
    residual = problem.residual(prediction)
    weight = problem.noise.precision(prediction.detach()).expand_as(residual)
    weight = weight / weight.flatten(1).mean(1).reshape(-1, *[1] * (weight.ndim - 1))
    squares = torch.view_as_real(residual).square().sum(-1) if residual.is_complex() else residual.square()
    # The root's slope is infinite at 0, where no step is needed.
    return (weight * squares).flatten(1).sum(1).clamp(min=torch.finfo(weight.dtype).tiny).sqrt()
