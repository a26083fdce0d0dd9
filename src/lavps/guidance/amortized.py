r"""Amortized guidance: an inference model predicts the solution of the inner problem (LAVPS).

The safeguard compares the prediction with the zero-shot start, the bridge, per sample and with the same noise
z (the paper's Algorithm 2, lines 10-12), and keeps the one with the lower objective. Common random numbers
make the comparison sharp: the noise of the two losses nearly cancels in their difference.

Reference: Zheng et al., Fast and Robust Likelihood-Guided Diffusion Posterior Sampling with Amortized
Variational Inference, 2026.
"""

from __future__ import annotations

__all__ = ["Amortized"]

from dataclasses import dataclass

import torch
from torch import Tensor

from ..minimizers import Adam, Minimizer
from ..priors import Prior
from ..variational import DiagonalGaussian, DifferentiableEvaluation, Objective, ObjectiveGradient
from .base import Guidance, GuidedStep, MidpointDraw, MidpointModel
from .gradient import descend
from .linearized import Linearized


@dataclass(frozen=True)
class Amortized(Guidance):
    """Prediction of an inference model, safeguarded per sample, then refined by gradient steps.

    Args:
        model: Callable from a :class:`~lavps.variational.Context` to a
            :class:`~lavps.variational.DiagonalGaussian`.
        steps: Number of gradient steps from the start.
        minimizer: Optimizer of these steps.
        safeguard_every: Number of steps between two safeguard decisions; in between every sample keeps its
            last one, which saves a denoiser evaluation per step. 1 is the paper's; None accepts every
            prediction.

    Example:
        >>> guidance = Amortized(lambda context: context.bridge, steps=0)  # any callable is a model
        >>> guidance.safeguard_every
        1
    """

    model: MidpointModel
    steps: int = 1
    minimizer: Minimizer = Adam()
    safeguard_every: int | None = 1

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must not be negative, got {self.steps}")
        if self.safeguard_every is not None and self.safeguard_every < 1:
            raise ValueError(f"safeguard_every must be at least 1, or None: got {self.safeguard_every}")

    def check_compatible(self, prior: Prior) -> None:
        """Raise ValueError if the model records another prior than this one."""
        check = getattr(self.model, "check_prior", None)
        if check is not None:
            check(prior)

    def draw(self, step: GuidedStep) -> MidpointDraw:
        """Predict, decide, refine, draw."""
        with torch.no_grad():
            prediction = self.model(step.context)
        forwards = 0 if isinstance(self.model, Linearized) else 1
        if self.safeguard_every is None:
            return descend(step, prediction, self.steps, self.minimizer, model_forwards=forwards)
        if step.accepted is not None and step.index % self.safeguard_every:
            # A prediction that is not finite is rejected all the same.
            finite = (prediction.mean + prediction.log_std).flatten(1).isfinite().all(1)
            start = DiagonalGaussian.where(step.accepted & finite, prediction, step.context.bridge)
            return descend(step, start, self.steps, self.minimizer, model_forwards=forwards)
        return self._safeguarded(step, prediction, forwards)

    def _safeguarded(self, step: GuidedStep, prediction: DiagonalGaussian, forwards: int) -> MidpointDraw:
        """Two denoiser evaluations decide; a prediction that is not finite is rejected.

        The evaluation of the accepted start is also the forward pass of the first gradient, or D(x_s, s) if
        there is no gradient step: only rows that fell back pay another one.
        """
        objective, bridge = step.objective, step.context.bridge
        with_graph = objective.evaluate_with_graph(prediction) if self.steps else None
        warm = with_graph or objective.evaluate(prediction)
        zero = objective.evaluate(bridge)
        accepted = warm.loss <= zero.loss
        start = DiagonalGaussian.where(accepted, prediction, bridge)
        if with_graph is not None:
            first = _gradient(objective, start, with_graph, accepted)
            return descend(step, start, self.steps, self.minimizer, first, accepted, forwards)
        keep = accepted.reshape(-1, *[1] * (start.mean.ndim - 1))
        return MidpointDraw(
            torch.where(keep, warm.x_s, zero.x_s),
            torch.where(keep, warm.x_0, zero.x_0),
            torch.where(accepted, warm.loss, zero.loss),
            accepted,
            forwards,
        )


def _gradient(
    objective: Objective, start: DiagonalGaussian, warm: DifferentiableEvaluation, accepted: Tensor
) -> ObjectiveGradient:
    """Gradient at the start: from the graph at hand where accepted, evaluated again elsewhere."""
    kept, fallen = accepted.nonzero().squeeze(1), (~accepted).nonzero().squeeze(1)
    if len(fallen) == 0:
        return warm.gradient()
    if len(kept) == 0:
        return objective.gradient(start)
    gradient = warm.gradient(kept)
    fresh = objective.select(fallen).gradient(start.select(fallen))
    return ObjectiveGradient(
        gradient.loss.index_copy(0, fallen, fresh.loss),
        gradient.mean.index_copy(0, fallen, fresh.mean),
        gradient.log_std.index_copy(0, fallen, fresh.log_std),
    )
