"""One guidance early in the run, another one late: the only dependence of a guidance on time."""

from __future__ import annotations

__all__ = ["Switch", "switch"]

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..priors import Prior
from .base import Guidance, GuidedStep, MidpointDraw

_TOLERANCE = 1e-9  # grid times are quotients: 0.1 and 10 / 100 are the same time


@dataclass(frozen=True)
class Switch(Guidance):
    """``first`` while t > at, ``then`` once t <= at; write it as :func:`switch`."""

    first: Guidance
    then: Guidance
    at: float

    def __post_init__(self) -> None:
        self._check_between(0.0, 1.0)

    def _check_between(self, low: float, high: float) -> None:
        if not low < self.at < high:
            raise ValueError(
                f"switch at t = {self.at:g} leaves one part without any time: it must lie strictly between "
                f"{low:g} and {high:g}"
            )
        for part, bounds in ((self.first, (self.at, high)), (self.then, (low, self.at))):
            if isinstance(part, Switch):
                part._check_between(*bounds)

    def part(self, t: float) -> Guidance:
        """Return the guidance in effect at time t."""
        return (self.then if t <= self.at + _TOLERANCE else self.first).part(t)

    def _divide(self, times: Sequence[float]) -> tuple[list[float], list[float]]:
        """Return the times of the first part and those of the second."""
        early = [t for t in times if t > self.at + _TOLERANCE]
        return early, [t for t in times if t <= self.at + _TOLERANCE]

    def reached(self, times: Sequence[float]) -> Guidance:
        """Return the guidance without the parts that are in effect at none of these times."""
        early, late = self._divide(times)
        if not early or not late:
            return self.then.reached(late) if late else self.first.reached(early)
        return Switch(self.first.reached(early), self.then.reached(late), self.at)

    def check_times(self, times: Sequence[float]) -> None:
        """Raise ValueError if a part is in effect at none of these times."""
        early, late = self._divide(times)
        for part, reached, where in ((self.first, early, ">"), (self.then, late, "<=")):
            if not reached:
                raise ValueError(
                    f"{part!r} is never reached: the grid has no step with t {where} {self.at:g} (its steps "
                    f"run from t = {max(times):.3g} to {min(times):.3g}); leave it out, or use more steps"
                )
            part.check_times(reached)

    def check_compatible(self, prior: Prior) -> None:
        """Raise ValueError if a model of either part was trained for another prior."""
        self.first.check_compatible(prior)
        self.then.check_compatible(prior)

    def draw(self, step: GuidedStep) -> MidpointDraw:
        """Draw with the part in effect; rows at different times are drawn by their own parts."""
        late = step.context.t <= self.at + _TOLERANCE
        if bool(late.all()):
            return self.then.draw(step)
        if not bool(late.any()):
            return self.first.draw(step)
        x_s = step.context.x_t.clone()
        for part, rows in ((self.first, ~late), (self.then, late)):
            chosen: Tensor = rows.nonzero().squeeze(1).to(x_s.device)
            x_s[chosen] = part.draw(step.select(chosen)).x_s
        return MidpointDraw(x_s)


def switch(first: Guidance, then: Guidance, *, at: float) -> Switch:
    """Use ``first`` while t > at, and ``then`` once t <= at.

    Args:
        first: Guidance of the early steps.
        then: Guidance of the late steps.
        at: Time of the switch, strictly between 0 and 1. Switches nest.

    Raises:
        ValueError: A part would never be in effect.

    Example:
        >>> from lavps.guidance import Gradient
        >>> switch(Gradient(steps=3), Gradient(steps=1), at=0.1).part(0.05).steps
        1
    """
    return Switch(first, then, at)
