r"""MGPS: midpoint guidance on the way down, with the same inner problem as MGDM.

From :math:`x_u` at :math:`u = t_{k+1}` to :math:`t_k`, with a midpoint :math:`s < t_k`:

1. :math:`x_0 = D(x_u, u)`;
2. :math:`x_s \sim q \approx l(y | A, D(x_s, s)) \, q(x_s | x_0, x_u)`;
3. :math:`x_{t_k} \sim q(x_{t_k} | x_s, x_u)`, the bridge.

The context of step 2 is MGDM's with t = u, so whatever warm-starts MGDM warm-starts MGPS. Biased, for the
reasons MGDM is.

Reference: Moufad et al., Variational Diffusion Posterior Sampling with Midpoint Guidance, 2025.
"""

from __future__ import annotations

__all__ = ["MGPS"]

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial

from torch import Tensor

from ..guidance import Gradient, Guidance
from ..guidance.midpoints import FractionMidpoint, Midpoint
from ..minimizers import WhitenedGradient
from ..priors import Prior
from ..random import Purpose
from ..schedule import time_grid
from ..transitions import bridge
from ..variational import Context
from .base import Progress, Run, Sampler


@dataclass(frozen=True)
class MGPS(Sampler):
    """Variational diffusion posterior sampling with midpoint guidance.

    Reference: Moufad et al., 2025. Biased as MGDM is.

    Args:
        prior: Denoiser D.
        guidance: Rule by which the midpoint x_s is drawn. The midpoint lies far from the bridge's mean in
            pixels, and a few Adam steps do not get there; the whitened gradient does.
        num_steps: Number K of intervals of the time grid.
        grid_power: Exponent of t_k = (k / K)^power; above 1 the steps are denser towards t = 0.
        midpoint: Rule for s below t_k.

    Example:
        >>> import torch, lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> pooling, noise = lavps.operators.AveragePool(2), lavps.GaussianNoise(0.1)
        >>> problem = lavps.InverseProblem(torch.zeros(1, 1, 2, 2), pooling, noise)
        >>> lavps.MGPS(prior, num_steps=10).sample(problem).mean.shape
        torch.Size([1, 1, 4, 4])
    """

    prior: Prior
    _: KW_ONLY
    guidance: Guidance = Gradient(3, WhitenedGradient())
    num_steps: int = 100
    grid_power: float = 1.0
    midpoint: Midpoint = FractionMidpoint()

    def __post_init__(self) -> None:
        if self.num_steps < 3:
            raise ValueError(f"MGPS needs num_steps of at least 3, got {self.num_steps}")
        self.guidance.check_times(self.guided_times)
        self.guidance.check_compatible(self.prior)

    @property
    def guided_times(self) -> list[float]:
        """Times u = t_{k+1} of the guided steps' contexts, k = K-1, ..., 1."""
        return [float(t) for t in time_grid(self.num_steps, self.grid_power)[2:].flip(0)]

    @property
    def total_steps(self) -> int:
        """One guided step for every k = K-1, ..., 1."""
        return self.num_steps - 1

    def steps(self, run: Run) -> Iterator[Progress]:
        """Down the grid; the sample is the denoised x at t_1."""
        grid, schedule = time_grid(self.num_steps, self.grid_power), run.prior.schedule
        x = run.initial()
        x_0 = run.prior.denoise(x, grid[-1])
        accepted: Tensor | None = None
        for k in range(self.num_steps - 1, 0, -1):
            u, t = grid[k + 1], grid[k]
            s = self.midpoint.draw(grid, k, partial(run.noise.uniform, Purpose.MIDPOINT, k)).clamp(
                min=float(grid[1])
            )
            context = Context(x_0, x, s, u, run.measured, schedule)
            draw = self.guidance.draw(run.guided_step(context, k, accepted=accepted))
            accepted = accepted if draw.accepted is None else draw.accepted
            x = bridge(schedule, draw.x_s, x, s, t, u).sample(run.normal(Purpose.TRANSITION, k))
            # At k = 1 the rules give s = t_1: x is x_s, whose denoised version may already be known.
            known = draw.x_0 if bool((s == t).all()) else None
            x_0 = run.prior.denoise(x, t) if known is None else known
            yield Progress(t, x_0, draw.loss, draw.accepted, draw.model_forwards)
