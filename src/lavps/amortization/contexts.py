r"""The distribution of contexts a model is trained on (the paper's Algorithm 1, lines 3-10).

:math:`x \sim` data, :math:`A \sim p_{op}` (one draw per sample), :math:`y \sim l(\cdot | A x)`, t uniform on
the sampler's own grid inside its window, s | t as the sampler draws it, :math:`x_t \sim q(\cdot | x)`,
:math:`x_0 = D(x_t, t)`.

At test time :math:`x_0` comes from the sampler's previous :math:`x_s`, not from :math:`D(x_t, t)`. With
``rollout`` = J > 0 the context is reached as the sampler reaches it: from Algorithm 1's at J grid steps
earlier, by J steps of the sampler with the current model. J = 0 is the paper's.

A model is asked on the grid it was trained on, or on one of several: a sampler of fewer steps takes longer
strides from t to s, and ``step_counts`` draws the grid per sample too.

Everything is a function of (seed, item), the image and the weights; nothing is remembered.
"""

from __future__ import annotations

__all__ = ["ContextSource"]

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..initializers import WarmStartModel
from ..noise import NoiseModel
from ..operators.families import OperatorFamily
from ..priors import Prior
from ..problem import InverseProblem
from ..random import NoiseStreams, Purpose
from ..samplers import MGDM, MGPS
from ..schedule import as_time, time_grid
from ..transitions import bridge, forward
from ..variational import Context
from .measurements import measure


@dataclass(frozen=True)
class ContextSource:
    """Contexts as a sampler meets them.

    Args:
        sampler: whose grid, window and midpoints are used; its prior is the denoiser.
        family: p_op.
        noise: the noise model of the measurements.
        rollout: J steps of the sampler's own before the context, with the current model; MGDM only.
        seed: of everything random.
        step_counts: numbers of steps K of the grids, each as often; default the sampler's own.
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
        for grid in self.grids:
            if not self._places(grid):
                raise ValueError(
                    f"the sampler's window holds no step of the grid of {len(grid) - 1}: lower r_switch"
                )

    @property
    def prior(self) -> Prior:
        """The denoiser D."""
        return self.sampler.prior

    @property
    def grids(self) -> list[Tensor]:
        """The grids of time, one for each number of steps."""
        counts = self.step_counts or (self.sampler.num_steps,)
        return [time_grid(count, self.sampler.grid_power) for count in counts]

    @property
    def window(self) -> tuple[float, float]:
        """First and last time at which the model is asked, on the sampler's own grid."""
        grid = time_grid(self.sampler.num_steps, self.sampler.grid_power)
        places = self._places(grid)
        return float(grid[places[0]]), float(grid[places[-1]])

    def _places(self, grid: Tensor) -> list[int]:
        """The places k of a grid at which the model is asked."""
        if isinstance(self.sampler, MGPS):
            return list(range(1, len(grid) - 1))
        return [k for k in range(2, len(grid) - 1) if self.sampler.in_window(float(grid[k]))]

    def problem(self, images: Tensor, items: Sequence[int]) -> InverseProblem:
        """y ~ l(. | A x) with an operator of its own for every image."""
        return measure(images, items, self.family, self.noise, self.seed)

    @torch.no_grad()
    def draw(self, images: Tensor, items: Sequence[int], model: WarmStartModel | None = None) -> Context:
        """One context per image.

        Args:
            images: clean images (B, C, *spatial).
            items: the samples' ids, which decide all that is random about them.
            model: the current model, for ``rollout``.
        """
        streams = NoiseStreams.of(len(images), self.seed, items)
        problem = self.problem(images, items)
        grids = self.grids
        pick = (streams.uniform(Purpose.TIME, index=1) * len(grids)).long()
        walk = [grids[i] for i in pick.tolist()]
        place = streams.uniform(Purpose.TIME)
        allowed = [torch.tensor(self._places(grid)) for grid in grids]
        choice = torch.stack(
            [allowed[i][(p * len(allowed[i])).long()] for i, p in zip(pick, place, strict=True)]
        )
        last = torch.tensor([len(grid) - 2 for grid in walk])
        start = torch.minimum(choice + self.rollout, last)
        context = self._fresh(images, problem, walk, start, streams)
        for step in range(self.rollout):
            assert model is not None, "rollout needs the current model"
            before = start - step
            after = torch.maximum(before - 1, choice)
            context = self._advance(context, walk, after, before, model, streams, step)
        return context

    def _times(
        self, grids: list[Tensor], places: Tensor, streams: NoiseStreams, index: int = 0
    ) -> tuple[Tensor, Tensor]:
        """(s, t) of every row: what the sampler does at its place k of its grid."""
        uniform = streams.uniform(Purpose.MIDPOINT, index=index)
        ahead = 1 if isinstance(self.sampler, MGPS) else 0
        s, t = [], []
        for row, (grid, k) in enumerate(zip(grids, places.tolist(), strict=True)):
            middle = self.sampler.midpoint.draw(grid, k, lambda row=row: uniform[row]).reshape(())  # type: ignore[misc]
            s.append(middle.clamp(min=float(grid[1])) if ahead else middle)
            t.append(grid[k + ahead])
        return torch.stack(s), torch.stack(t)

    def _fresh(
        self,
        images: Tensor,
        problem: InverseProblem,
        grids: list[Tensor],
        places: Tensor,
        streams: NoiseStreams,
    ) -> Context:
        s, t = self._times(grids, places, streams)
        schedule = self.prior.schedule
        noise = streams.normal(Purpose.TRAINING, images.shape[1:], images)
        x_t = forward(schedule, images, as_time(0.0).expand(len(images)), t).sample(noise)
        return Context(self.prior.denoise(x_t, t), x_t, s, t, problem, schedule)

    def _advance(
        self,
        context: Context,
        grids: list[Tensor],
        places: Tensor,
        previous: Tensor,
        model: WarmStartModel,
        streams: NoiseStreams,
        step: int,
    ) -> Context:
        """One step of the Gibbs loop without gradients; rows that have arrived stand still."""

        def normal(index: int) -> Tensor:
            return streams.normal(Purpose.TRAINING, context.x_t.shape[1:], context.x_t, step + 1, index)

        schedule, s, u = context.schedule, context.s, context.t
        x_s = model(context).sample(normal(0))
        x_0 = self.prior.denoise(x_s, s)
        x_u = forward(schedule, x_s, s, u).sample(normal(1))
        s_next, t_next = self._times(grids, places, streams, step + 1)
        moving = places < previous
        time_between = torch.where(moving, t_next, 0.5 * u)
        x_t = bridge(schedule, x_0, x_u, as_time(0.0).expand_as(u), time_between, u).sample(normal(2))
        keep = (~moving).to(x_t.device).reshape(-1, *[1] * (x_t.ndim - 1))
        return Context(
            torch.where(keep, context.x_0, x_0),
            torch.where(keep, context.x_t, x_t),
            torch.where(moving, s_next, s),
            torch.where(moving, t_next, u),
            context.problem,
            schedule,
        )
