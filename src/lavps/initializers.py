r"""Where the inner optimisation starts: zero-shot, warm, or the better of the two.

- :class:`ZeroShot`: the bridge :math:`q(x_s | x_0, x_t)`, as MGDM and MGPS do.
- :class:`WarmStart`: what an inference model (or any callable) predicts from the context.
- :class:`Safeguarded`: per sample, the warm start if its loss is no higher than the zero-shot start's, both
  evaluated with the same noise z (the paper's Algorithm 2, lines 10-12). Common random numbers make the
  verdict sharp: the noise of the two losses nearly cancels in their difference.
"""

from __future__ import annotations

__all__ = [
    "Initializer",
    "Safeguarded",
    "Start",
    "WarmStart",
    "WarmStartModel",
    "ZeroShot",
    "amortized",
    "require_fit",
]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .priors import Prior
from .variational import (
    Context,
    DiagonalGaussian,
    DifferentiableEvaluation,
    Evaluation,
    Gradient,
    Objective,
)

WarmStartModel = Callable[[Context], DiagonalGaussian]


def require_fit(model: WarmStartModel, prior: Prior) -> None:
    """Let a model that knows its prior (one loaded from a checkpoint) refuse another, saying why."""
    check = getattr(model, "check_prior", None)
    if check is not None:
        check(prior)


@dataclass(frozen=True)
class Start:
    """Where to start, and what finding it out has already paid for.

    Attributes:
        q: the start, per sample.
        evaluation: L at q with noise 0, if it was computed.
        gradient: the gradient at q with noise 0, if it was asked for and cost less than a fresh one.
        accepted: (B,) whether the warm start was kept; None where there was no choice.
        model_forwards: passes of the inference model.
    """

    q: DiagonalGaussian
    evaluation: Evaluation | None = None
    gradient: Gradient | None = None
    accepted: Tensor | None = None
    model_forwards: int = 0


class Initializer(Protocol):
    """A rule for the start of an inner problem."""

    def start(self, objective: Objective, differentiable: bool) -> Start:
        """The start for this objective.

        Args:
            objective: L(.; c) with its context.
            differentiable: whether a gradient at the start will be wanted, so that a graph is worth keeping.
        """
        ...


@dataclass(frozen=True)
class ZeroShot:
    """The bridge's mean and log-std; costs nothing."""

    def start(self, objective: Objective, differentiable: bool) -> Start:
        """q = bridge."""
        return Start(objective.context.bridge)


@dataclass(frozen=True)
class WarmStart:
    """A model's prediction, taken as it is.

    Args:
        model: any callable from a :class:`~lavps.variational.Context` to a DiagonalGaussian.
    """

    model: WarmStartModel

    def start(self, objective: Objective, differentiable: bool) -> Start:
        """q = model(c)."""
        with torch.no_grad():
            return Start(self.model(objective.context), model_forwards=1)


@dataclass(frozen=True)
class Safeguarded:
    """The warm start where it is no worse than the bridge, per sample, with common random numbers.

    Args:
        model: any callable from a :class:`~lavps.variational.Context` to a DiagonalGaussian.
    """

    model: WarmStartModel

    def start(self, objective: Objective, differentiable: bool) -> Start:
        """Two forwards of the denoiser decide; a prediction that is not finite loses.

        The winner's evaluation is the first gradient's forward: only rows that fell back pay a new one.
        """
        with torch.no_grad():
            candidate = self.model(objective.context)
        zero_shot = objective.context.bridge
        differentiated = objective.evaluate_with_graph(candidate) if differentiable else None
        warm = differentiated or objective.evaluate(candidate)
        zero = objective.evaluate(zero_shot)
        accepted = warm.loss <= zero.loss
        q = DiagonalGaussian.where(accepted, candidate, zero_shot)
        keep = accepted.reshape(-1, *[1] * (q.mean.ndim - 1))
        evaluation = Evaluation(
            torch.where(accepted, warm.loss, zero.loss),
            q,
            torch.where(keep, warm.x_s, zero.x_s),
            torch.where(keep, warm.x_0, zero.x_0),
        )
        gradient = self._gradient(objective, q, differentiated, accepted) if differentiated else None
        return Start(q, evaluation, gradient, accepted, model_forwards=1)

    @staticmethod
    def _gradient(
        objective: Objective, q: DiagonalGaussian, warm: DifferentiableEvaluation, accepted: Tensor
    ) -> Gradient:
        kept, fallen = accepted.nonzero().squeeze(1), (~accepted).nonzero().squeeze(1)
        if len(fallen) == 0:
            return warm.gradient()
        if len(kept) == 0:
            return objective.gradient(q)
        gradient = warm.gradient(kept)
        fresh = objective.select(fallen).gradient(q.select(fallen))
        return Gradient(
            gradient.loss.index_copy(0, fallen, fresh.loss),
            gradient.mean.index_copy(0, fallen, fresh.mean),
            gradient.log_std.index_copy(0, fallen, fresh.log_std),
        )


def amortized(model: WarmStartModel, safeguard: bool) -> Initializer:
    """The model's prediction, safeguarded or taken as it is."""
    return Safeguarded(model) if safeguard else WarmStart(model)
