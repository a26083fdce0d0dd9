r"""What every guidance shares: the step it is given, the draw it returns."""

from __future__ import annotations

__all__ = ["Guidance", "GuidedStep", "MidpointDraw", "MidpointModel"]

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..priors import Prior
from ..variational import Context, DiagonalGaussian, Objective

MidpointModel = Callable[[Context], DiagonalGaussian]


@dataclass(frozen=True)
class GuidedStep:
    """The inner problem of one sampler step.

    Attributes:
        objective: Objective L(.; c) with its context c, the denoiser and the noise z_0, z_1, ...
        final_noise: Noise of the draw x_s ~ q after optimization, shape (B, C, *spatial).
        index: Grid index k of the step.
        accepted: Most recent safeguard decision per sample, shape (B,); None before the first one.
    """

    objective: Objective
    final_noise: Callable[[], Tensor]
    index: int
    accepted: Tensor | None = None

    @property
    def context(self) -> Context:
        """The context c = (x_0, x_t, s, t, y, A)."""
        return self.objective.context

    def select(self, rows: Tensor) -> GuidedStep:
        """Restrict the step to some rows of the batch."""
        accepted = None if self.accepted is None else self.accepted[rows]
        return GuidedStep(self.objective.select(rows), lambda: self.final_noise()[rows], self.index, accepted)


@dataclass(frozen=True)
class MidpointDraw:
    """A draw x_s ~ q.

    Attributes:
        x_s: The draw, shape (B, C, *spatial).
        x_0: D(x_s, s) where the guidance has already evaluated it, else None.
        loss: Objective at the last point evaluated, shape (B,); None if it was not evaluated.
        accepted: Whether the safeguard accepted the prediction, shape (B,); None without a decision.
        model_forwards: Forward passes of the inference model.
    """

    x_s: Tensor
    x_0: Tensor | None = None
    loss: Tensor | None = None
    accepted: Tensor | None = None
    model_forwards: int = 0


class Guidance(ABC):
    """Rule by which a sampler draws its midpoint x_s.

    Subclasses are frozen dataclasses: they hold settings and no state of a run.
    """

    @abstractmethod
    def draw(self, step: GuidedStep) -> MidpointDraw:
        """Draw x_s ~ q for every row of the step, each row independently of the others."""

    def part(self, t: float) -> Guidance:
        """Return the guidance in effect at time t."""
        return self

    def reached(self, times: Sequence[float]) -> Guidance:
        """Return the guidance without the parts that are in effect at none of these times."""
        return self

    def check_times(self, times: Sequence[float]) -> None:
        """Raise ValueError if some part of the guidance is in effect at none of these times."""
        return None

    def check_compatible(self, prior: Prior) -> None:
        """Raise ValueError if a model of this guidance was trained for another prior."""
        return None
