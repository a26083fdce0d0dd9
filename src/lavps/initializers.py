r"""Where the inner optimisation starts: zero-shot, warm, or the better of the two.

- :class:`ZeroShot`: the bridge :math:`q(x_s | x_0, x_t)`, as MGDM and MGPS do.
- :class:`WarmStart`: what an inference model (or any callable) predicts from the context;
  :class:`LikelihoodStep` is such a callable that needs no training.
- :class:`Safeguarded`: per sample, the warm start if its loss is no higher than the zero-shot start's, both
  evaluated with the same noise z (the paper's Algorithm 2, lines 10-12). Common random numbers make the
  verdict sharp: the noise of the two losses nearly cancels in their difference.
- :class:`Remembered`: the choice that a :class:`Safeguarded` start made some steps ago, for nothing.
"""

from __future__ import annotations

__all__ = [
    "Initializer",
    "LikelihoodStep",
    "Remembered",
    "Safeguarded",
    "Start",
    "WarmStart",
    "WarmStartModel",
    "ZeroShot",
    "amortized",
    "likelihood_step",
    "require_fit",
]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .operators.conjugate import conjugate_gradient
from .priors import Prior
from .transitions import per_sample
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


@dataclass(frozen=True)
class Remembered:
    """The warm start where an earlier verdict was for it, else the bridge: no forward of the denoiser.

    Args:
        model: any callable from a :class:`~lavps.variational.Context` to a DiagonalGaussian.
        verdict: (B,) whether a row's warm start was kept when the safeguard last judged.
    """

    model: WarmStartModel
    verdict: Tensor

    def start(self, objective: Objective, differentiable: bool) -> Start:
        """q = model(c) where the verdict says so; a prediction that is not finite loses all the same."""
        with torch.no_grad():
            candidate = self.model(objective.context)
        finite = (candidate.mean + candidate.log_std).flatten(1).isfinite().all(1)
        q = DiagonalGaussian.where(self.verdict & finite, candidate, objective.context.bridge)
        return Start(q, model_forwards=1)


def _reach(context: Context, data_variance: float) -> Tensor:
    r""":math:`\sigma_b J` of :func:`likelihood_step`: what a unit of u moves in D(x_s)."""
    alpha, sigma = context.schedule.alpha(context.s), context.schedule.sigma(context.s)
    slope = alpha * data_variance / (alpha.square() * data_variance + sigma.square())
    return context.bridge.log_std.exp() * per_sample(slope, context.x_0)


def _solved(context: Context, data_variance: float, solver_steps: int) -> Tensor:
    """The u of :class:`LikelihoodStep`, by conjugate gradients."""
    problem, x_0 = context.problem, context.x_0.detach()
    reach, stiffness = _reach(context, data_variance), problem.stiffness(x_0)
    pull = reach * problem.pull(x_0)
    return conjugate_gradient(lambda u: u + reach * stiffness(reach * u), pull, solver_steps, 1e-6)


@torch.no_grad()
def likelihood_step(
    context: Context, data_variance: float = 0.25, solver_steps: int = 0
) -> tuple[Tensor, Tensor]:
    r"""The step of the mean, in units of the bridge's spread, that guidance would take were D linear.

    .. math:: u(c) = \sigma_b J A^T W (y - A x_0) / (1 + \sigma_b^2 J^2 h), \qquad
        J = \alpha_s v / (\alpha_s^2 v + \sigma_s^2),

    W the noise's precision, h the likelihood's curvature at x_0, v the variance of the data, J the slope of
    the denoiser at s of independent pixels of this variance: no pass of the denoiser, forward or backward.

    Args:
        context: c, B rows.
        data_variance: v; 1/4 suits images in [-1, 1].
        solver_steps: above 0, u is what :class:`LikelihoodStep` solves for, by as many steps of conjugate
            gradients: the same where A A^T is a multiple of the identity, longer where A blurs.

    Returns:
        u (B, C, *spatial) and the stiffness :math:`1 + \sigma_b^2 J^2 h` (B,).
    """
    problem, x_0 = context.problem, context.x_0.detach()
    reach = _reach(context, data_variance)
    stiffness = 1.0 + reach.reshape(-1).square() * problem.curvature(x_0)
    if solver_steps:
        return _solved(context, data_variance, solver_steps), stiffness
    return reach / per_sample(stiffness, x_0) * problem.pull(x_0), stiffness


@dataclass(frozen=True)
class LikelihoodStep:
    r"""A warm start without training: the bridge, moved to where guidance would take it were D linear.

    .. math:: m = m_b + \sigma_b u, \qquad
        (1 + \sigma_b^2 J^2\, A^T W A)\, u = \sigma_b J A^T W (y - A x_0),

    with the W and J of :func:`likelihood_step`, which bounds what this solves: a few conjugate-gradient steps
    of the operator, and no pass of the denoiser, forward or backward. For an operator that is not linear A is
    its Jacobian at x_0.

    It moves the pixels that the measurement reaches. Late in the run, where the denoiser is nearly the
    identity, that is all that is to be done. Early the pixels of an image move together, and a rule that
    takes them for independent overshoots: there ask a model, take gradients, or step gently
    (:meth:`gentle`). ``LAVPS(prior, model, gradient_steps_start=0, r_step=0.5)`` does so in the first half of
    the time and has this rule in the second. ``LAVPS(prior, LikelihoodStep(), gradient_steps_start=0)`` has
    nothing else; keep its safeguard.

    Args:
        data_variance: v, the larger the nearer J to the identity over alpha_s.
        solver_steps: conjugate-gradient steps. One is enough where A A^T is a multiple of the identity: block
            means, masks.
    """

    data_variance: float = 1.0
    solver_steps: int = 3

    @classmethod
    def gentle(cls) -> LikelihoodStep:
        """The rule for the first half of the time: v = 1/100, what a pixel varies beside its neighbours.

        ``LAVPS(prior, LikelihoodStep.gentle(), gradient_steps_start=0, safeguard=False, r_step=0.5)`` needs
        no training and no derivative of the denoiser: one forward a step, any operator near a linear one.
        """
        return cls(data_variance=0.01)

    @torch.no_grad()
    def __call__(self, context: Context) -> DiagonalGaussian:
        """The bridge with its mean moved by u(c)."""
        bridge, u = context.bridge, _solved(context, self.data_variance, self.solver_steps)
        return DiagonalGaussian(bridge.mean + bridge.log_std.exp() * u, bridge.log_std.expand_as(u))

    def start(self, objective: Objective, differentiable: bool) -> Start:
        """Itself a rule for the start, without a judge: no model is asked."""
        return Start(self(objective.context))


def amortized(model: WarmStartModel, safeguard: bool) -> Initializer:
    """The model's prediction, safeguarded or taken as it is."""
    return Safeguarded(model) if safeguard else WarmStart(model)
