r"""Guidance by gradients of the inner objective, through the denoiser (MGDM's own).

Reference: Janati et al., A Mixture-Based Framework for Guiding Diffusion Models, 2025.
"""

from __future__ import annotations

__all__ = ["Gradient", "descend"]

from dataclasses import dataclass

from torch import Tensor

from ..minimizers import Adam, Minimizer
from ..variational import DiagonalGaussian, ObjectiveGradient
from .base import Guidance, GuidedStep, MidpointDraw


def descend(
    step: GuidedStep,
    start: DiagonalGaussian,
    steps: int,
    minimizer: Minimizer,
    first: ObjectiveGradient | None = None,
    accepted: Tensor | None = None,
    model_forwards: int = 0,
) -> MidpointDraw:
    """Take gradient steps from a start, then draw x_s; with no gradient step, draw from the start."""
    if steps == 0:
        x_s, loss = start.sample(step.objective.noise(0)), None
    else:
        q, loss = minimizer.minimize(step.objective, start, steps, first)
        x_s = q.sample(step.final_noise())
    return MidpointDraw(x_s, None, loss, accepted, model_forwards)


@dataclass(frozen=True)
class Gradient(Guidance):
    """Gradient steps on the objective from the bridge: zero-shot, one forward and one backward per step.

    Args:
        steps: Number G of gradient steps; 0 draws from the bridge, without guidance.
        minimizer: Optimizer of the inner problem.

    Example:
        >>> Gradient(steps=2).steps
        2
    """

    steps: int = 3
    minimizer: Minimizer = Adam()

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must not be negative, got {self.steps}")

    def draw(self, step: GuidedStep) -> MidpointDraw:
        """Descend from the bridge q(x_s | x_0, x_t) and draw x_s."""
        return descend(step, step.context.bridge, self.steps, self.minimizer)
