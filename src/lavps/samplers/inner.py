"""Drawing a midpoint: initialise, descend, sample. The step that MGDM, LAVPS and MGPS have in common."""

from __future__ import annotations

__all__ = ["MidpointDraw", "draw_midpoint"]

from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from ..initializers import Initializer
from ..minimizers import Minimizer
from ..random import Purpose
from ..variational import Context, Objective
from .base import Run

# Inner problems of one step are told apart by index = repetition * _STRIDE + gradient step.
_STRIDE = 1 << 20


@dataclass(frozen=True)
class MidpointDraw:
    """x_s ~ q, and what is known about it.

    Attributes:
        x_s: the draw, one per row.
        x_0: D(x_s, s) where the safeguard has already computed it, else None.
        loss: the objective where it was last evaluated, else None.
        accepted: whether the warm start was kept, per row; None where there was no choice.
        model_forwards: inference-model passes.
    """

    x_s: Tensor
    x_0: Tensor | None
    loss: Tensor | None
    accepted: Tensor | None
    model_forwards: int


def draw_midpoint(
    run: Run,
    context: Context,
    initializer: Initializer,
    minimizer: Minimizer,
    gradient_steps: int,
    step: int,
    repetition: int = 0,
) -> MidpointDraw:
    """Solve the inner problem of a context approximately and draw x_s ~ q.

    With no gradient step, x_s uses the noise the safeguard used, so that D(x_s, s) comes for free.
    """

    @lru_cache(maxsize=1)
    def noise(index: int) -> Tensor:
        return run.normal(Purpose.OBJECTIVE, step, repetition * _STRIDE + index)

    objective = Objective(run.prior, context, noise)
    start = initializer.start(objective, differentiable=gradient_steps > 0)
    if gradient_steps == 0:
        if start.evaluation is None:
            return MidpointDraw(start.q.sample(noise(0)), None, None, start.accepted, start.model_forwards)
        known = start.evaluation
        return MidpointDraw(known.x_s, known.x_0, known.loss, start.accepted, start.model_forwards)
    q, loss = minimizer.minimize(objective, start.q, gradient_steps, start.gradient)
    x_s = q.sample(run.normal(Purpose.VARIATIONAL, step, repetition))
    return MidpointDraw(x_s, None, loss, start.accepted, start.model_forwards)
