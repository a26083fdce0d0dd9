r"""The distribution of contexts a model is trained on (the paper's Algorithm 1, lines 3-10).

:math:`x \sim` data, :math:`A \sim p_{op}` (one draw per sample), :math:`y \sim l(\cdot | A x)`, t uniform on
the steps of the sampler's grid at which its guidance uses the model, s | t as in the sampler,
:math:`x_t \sim q(\cdot | x)`, :math:`x_0 = D(x_t, t)`.

At test time :math:`x_0` comes from the sampler's previous :math:`x_s`, not from :math:`D(x_t, t)`. With
``rollout`` = J > 0 the context of Algorithm 1 is drawn J grid steps earlier, followed by J steps of the
sampler with its guidance and the current model. J = 0 is the paper's choice.

A sampler with fewer steps has larger steps from t to s; ``step_counts`` draws the grid per sample.

Everything is a function of (seed, item), the image and the weights.
"""

from __future__ import annotations

__all__ = ["ContextSource"]

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..guidance import Amortized, MidpointModel
from ..noise import NoiseModel
from ..operators.families import OperatorFamily
from ..priors import CountingPrior, Prior
from ..problem import InverseProblem
from ..random import NoiseStreams, Purpose
from ..samplers import MGDM, MGPS
from ..samplers.base import Run
from ..schedule import as_time, time_grid
from ..transitions import bridge, forward
from ..variational import Context
from .measurements import measure


@dataclass(frozen=True)
class ContextSource:
    """Contexts distributed as in a sampler.

    Args:
        sampler: Sampler whose grid, midpoints and guidance are used; its guidance holds the model to train.
        family: Distribution p_op of the operators.
        noise: Noise model of the measurements.
        rollout: Number J of sampler steps before the context; MGDM only.
        seed: Seed of everything random.
        step_counts: Numbers of steps K of the grids, drawn with equal probability; default the sampler's own.
    """

    sampler: MGDM | MGPS
    family: OperatorFamily
    noise: NoiseModel
    rollout: int = 0
    seed: int = 0
    step_counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.rollout > 0 and not isinstance(self.sampler, MGDM):
            raise ValueError("rollout follows MGDM's loop; use rollout=0 for MGPS")
        if self.rollout > 0 and self._amortized.safeguard_every not in (None, 1):
            raise ValueError("a rollout starts anywhere on the grid: use safeguard_every=1 or None")
        for grid in self.grids:
            if not self._grid_indices(grid):
                raise ValueError(f"the guidance uses the model at no step of the grid of {len(grid) - 1}")

    @property
    def _amortized(self) -> Amortized:
        """Part of the guidance that holds the model."""
        parts = {id(part): part for part in map(self.sampler.guidance.part, self.sampler.guided_times)}
        found = [part for part in parts.values() if isinstance(part, Amortized)]
        if len(found) != 1:
            raise ValueError(
                f"the sampler's guidance must have one Amortized part to train, it has {len(found)}: "
                "MGDM(prior, guidance=Amortized(model, steps=0))"
            )
        return found[0]

    @property
    def model(self) -> MidpointModel:
        """Model to train."""
        return self._amortized.model

    @property
    def prior(self) -> Prior:
        """Denoiser D."""
        return self.sampler.prior

    @property
    def grids(self) -> list[Tensor]:
        """Time grids, one per number of steps."""
        counts = self.step_counts or (self.sampler.num_steps,)
        return [time_grid(count, self.sampler.grid_power) for count in counts]

    @property
    def window(self) -> tuple[float, float]:
        """First and last time at which the model is used, on the sampler's own grid."""
        grid = time_grid(self.sampler.num_steps, self.sampler.grid_power)
        indices, ahead = self._grid_indices(grid), 1 if isinstance(self.sampler, MGPS) else 0
        return float(grid[indices[0] + ahead]), float(grid[indices[-1] + ahead])

    def _grid_indices(self, grid: Tensor) -> list[int]:
        """Return the indices k of a grid at which the model is used."""
        ahead, last = (1, len(grid) - 2) if isinstance(self.sampler, MGPS) else (0, len(grid) - 2)
        used = range(2 - ahead, last + 1)
        parts = (self.sampler.guidance.part(float(grid[k + ahead])) for k in used)
        return [k for k, part in zip(used, parts, strict=True) if isinstance(part, Amortized)]

    def problem(self, images: Tensor, items: Sequence[int]) -> InverseProblem:
        """Measure images, y ~ l(. | A x), with an operator of its own for every image."""
        return measure(images, items, self.family, self.noise, self.seed)

    @torch.no_grad()
    def draw(self, images: Tensor, items: Sequence[int]) -> Context:
        """Draw one context per image.

        Args:
            images: Clean images, shape (B, C, *spatial).
            items: Ids of the samples, which determine all that is random about them.
        """
        streams = NoiseStreams.from_seed(len(images), self.seed, items)
        problem = self.problem(images, items)
        grids = self.grids
        pick = (streams.uniform(Purpose.TIME, index=1) * len(grids)).long()
        own_grids = [grids[i] for i in pick.tolist()]
        position = streams.uniform(Purpose.TIME)
        allowed = [torch.tensor(self._grid_indices(grid)) for grid in grids]
        choice = torch.stack(
            [allowed[i][(p * len(allowed[i])).long()] for i, p in zip(pick, position, strict=True)]
        )
        last = torch.tensor([len(grid) - 2 for grid in own_grids])
        start = torch.minimum(choice + self.rollout, last)
        context = self._fresh(images, problem, own_grids, start, streams)
        return self._rolled_out(context, own_grids, start, choice, streams) if self.rollout else context

    def _times(
        self, grids: list[Tensor], indices: Tensor, streams: NoiseStreams, index: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return (s, t) of every row at its grid index k."""
        uniform = streams.uniform(Purpose.MIDPOINT, index=index)
        ahead = 1 if isinstance(self.sampler, MGPS) else 0
        s, t = [], []
        for row, (grid, k) in enumerate(zip(grids, indices.tolist(), strict=True)):
            middle = self.sampler.midpoint.draw(grid, k, lambda row=row: uniform[row]).reshape(())  # type: ignore[misc]
            s.append(middle.clamp(min=float(grid[1])) if ahead else middle)
            t.append(grid[k + ahead])
        return torch.stack(s), torch.stack(t)

    def _fresh(
        self,
        images: Tensor,
        problem: InverseProblem,
        grids: list[Tensor],
        indices: Tensor,
        streams: NoiseStreams,
    ) -> Context:
        """Return the paper's context, with x_t drawn from the image itself."""
        s, t = self._times(grids, indices, streams)
        schedule = self.prior.schedule
        noise = streams.normal(Purpose.TRAINING, images.shape[1:], images)
        x_t = forward(schedule, images, as_time(0.0).expand(len(images)), t).sample(noise)
        return Context(self.prior.denoise(x_t, t), x_t, s, t, problem, schedule)

    def _rolled_out(
        self, context: Context, grids: list[Tensor], start: Tensor, target: Tensor, streams: NoiseStreams
    ) -> Context:
        """Run the sampler from grid index ``start`` to ``target``; rows that have arrived stay unchanged."""
        assert isinstance(self.sampler, MGDM)
        schedule, shape, like = context.schedule, context.x_t.shape[1:], context.x_t
        run = Run(CountingPrior(self.prior), context.problem, streams)
        u = torch.stack([grid[k + 1] for grid, k in zip(grids, start.tolist(), strict=True)])
        x_u = forward(schedule, context.x_t, context.t, u).sample(
            streams.normal(Purpose.TRAINING, shape, like, index=1)
        )
        for step in range(self.rollout):
            before = start - step
            drawn = self.sampler.repeat(run, context, x_u, u, step + 1)
            after = torch.maximum(before - 1, target)
            s, t = self._times(grids, after, streams, step + 1)
            moving = after < before
            # A row that stays has no interval to bridge: any time below its own will do.
            between = torch.where(moving, t, 0.5 * context.t)
            noise = run.normal(Purpose.TRANSITION, step + 1)
            zero = as_time(0.0).expand_as(between)
            x_t = bridge(schedule, drawn.x_0, drawn.x_t, zero, between, context.t).sample(noise)
            keep = (~moving).to(like.device).reshape(-1, *[1] * (like.ndim - 1))
            x_u, u = torch.where(keep, x_u, drawn.x_t), torch.where(moving, context.t, u)
            context = replace(
                context,
                x_0=torch.where(keep, context.x_0, drawn.x_0),
                x_t=torch.where(keep, context.x_t, x_t),
                s=torch.where(moving, s, context.s),
                t=torch.where(moving, t, context.t),
            )
        return context
