r"""DDIM: the unconditional sampler, and the chain by which guided samplers go from x_s to x_0.

.. math:: x_s \sim N(\alpha_s \hat x_0 + \sqrt{\sigma_s^2 - \eta^2 v}\,(x_t - \alpha_t \hat x_0) / \sigma_t,
    \; \eta^2 v), \qquad \hat x_0 = D(x_t, t).

Asymptotically exact for the prior (and for a posterior, given the posterior's own denoiser).

Reference: Song, Meng and Ermon, Denoising Diffusion Implicit Models, 2021.
"""

from __future__ import annotations

__all__ = ["DDIM", "ddim_chain"]

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from ..priors import Prior
from ..random import Purpose
from ..schedule import time_grid
from ..transitions import ddim_step
from .base import Progress, Run, Sampler


def ddim_chain(
    run: Run, x_s: Tensor, s: Tensor, num_steps: int, eta: float, step: int, index: int = 0
) -> Tensor:
    """DDIM(x_s, s, M): from x_s to x_0 in M denoiser calls, at times s, s (M-1)/M, ..., s/M."""
    x = x_s
    for m in range(num_steps, 0, -1):
        t = s * (m / num_steps)
        x_0 = run.prior.denoise(x, t)
        if m > 1:
            noise = run.normal(Purpose.DDIM, step, index * num_steps + m) if eta > 0 else 0.0 * x
            x = ddim_step(run.prior.schedule, x_0, x, s * ((m - 1) / num_steps), t, eta).sample(noise)
    return x_0


@dataclass(frozen=True)
class DDIM(Sampler):
    """Samples from the prior itself; a measurement, if there is one, is not looked at.

    Args:
        prior: the denoiser; give a posterior's denoiser to sample that posterior.
        num_steps: K denoiser calls.
        grid_power: t_k = (k / K)^power; above 1 the steps crowd towards t = 0.
        eta: 1 is ancestral (DDPM), 0 deterministic.
    """

    prior: Prior
    _: KW_ONLY
    num_steps: int = 100
    grid_power: float = 1.0
    eta: float = 1.0

    @property
    def total_steps(self) -> int:
        """One per grid interval."""
        return self.num_steps

    def steps(self, run: Run) -> Iterator[Progress]:
        """K denoiser calls, from t_K = 1 down to t_1; the last estimate is the sample."""
        grid, x = time_grid(self.num_steps, self.grid_power), run.initial()
        for k in range(self.num_steps, 0, -1):
            x_0 = run.prior.denoise(x, grid[k])
            if k > 1:
                kernel = ddim_step(run.prior.schedule, x_0, x, grid[k - 1], grid[k], self.eta)
                x = kernel.sample(run.normal(Purpose.DDIM, k))
            yield Progress(grid[k], x_0)
