r"""The distribution of contexts a model is trained on (the paper's Algorithm 1, lines 3-10).

:math:`x \sim` data, :math:`A \sim p_{op}` (one draw per sample), :math:`y \sim l(\cdot | A x)`, t uniform on
the sampler's own grid inside its window, s | t as the sampler draws it, :math:`x_t \sim q(\cdot | x)`,
:math:`x_0 = D(x_t, t)`.

At test time :math:`x_0` comes from the sampler's previous :math:`x_s`, not from :math:`D(x_t, t)`. With
``rollout`` = J > 0 the context is reached as the sampler reaches it: from Algorithm 1's at J grid steps
earlier, by J steps of the sampler with the current model. J = 0 is the paper's.

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


@dataclass(frozen=True)
class ContextSource:
    """Contexts as a sampler meets them.

    Args:
        sampler: whose grid, window and midpoints are used; its prior is the denoiser.
        family: p_op.
        noise: the noise model of the measurements.
        rollout: J steps of the sampler's own before the context, with the current model; MGDM only.
        seed: of everything random.
    """

    sampler: MGDM | MGPS
    family: OperatorFamily
    noise: NoiseModel
    rollout: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rollout > 0 and not isinstance(self.sampler, MGDM):
            raise ValueError("rollout follows MGDM's loop; use rollout=0 for MGPS")
        if not self.places:
            raise ValueError("the sampler's window holds no step of its grid: lower r_switch")

    @property
    def prior(self) -> Prior:
        """The denoiser D."""
        return self.sampler.prior

    @property
    def grid(self) -> Tensor:
        """The sampler's grid."""
        return time_grid(self.sampler.num_steps, self.sampler.grid_power)

    @property
    def places(self) -> list[int]:
        """The places k of the grid at which the model is asked."""
        if isinstance(self.sampler, MGPS):
            return list(range(1, self.sampler.num_steps))
        grid = self.grid
        return [k for k in range(2, self.sampler.num_steps) if self.sampler.in_window(float(grid[k]))]

    @torch.no_grad()
    def problem(self, images: Tensor, items: Sequence[int]) -> InverseProblem:
        """y ~ l(. | A x) with an operator of its own for every image."""
        operator = self.family.draw(items, tuple(images.shape[1:]), self.seed).to(images.device)
        return InverseProblem.simulate(images, operator, self.noise, self.seed, items)

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
        places = torch.tensor(self.places)
        choice = places[(streams.uniform(Purpose.TIME) * len(places)).long()]
        start = (choice + self.rollout).clamp(max=self.sampler.num_steps - 1)
        context = self._fresh(images, problem, start, streams)
        for step in range(self.rollout):
            assert model is not None, "rollout needs the current model"
            context = self._advance(
                context, (start - 1 - step).clamp(min=choice), start - step, model, streams, step
            )
        return context

    def _times(self, places: Tensor, streams: NoiseStreams, index: int = 0) -> tuple[Tensor, Tensor]:
        """(s, t) of every row: what the sampler does at its place k."""
        grid, uniform = self.grid, streams.uniform(Purpose.MIDPOINT, index=index)
        s = torch.stack(
            [
                self.sampler.midpoint.draw(grid, k, lambda row=row: uniform[row]).reshape(())  # type: ignore[misc]
                for row, k in enumerate(places.tolist())
            ]
        )
        if isinstance(self.sampler, MGPS):
            return s.clamp(min=float(grid[1])), grid[places + 1]
        return s, grid[places]

    def _fresh(
        self, images: Tensor, problem: InverseProblem, places: Tensor, streams: NoiseStreams
    ) -> Context:
        s, t = self._times(places, streams)
        schedule = self.prior.schedule
        noise = streams.normal(Purpose.TRAINING, images.shape[1:], images)
        x_t = forward(schedule, images, as_time(0.0).expand(len(images)), t).sample(noise)
        return Context(self.prior.denoise(x_t, t), x_t, s, t, problem, schedule)

    def _advance(
        self,
        context: Context,
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
        s_next, t_next = self._times(places, streams, step + 1)
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
