r"""The inner variational problem of midpoint-guided samplers (the paper's Eqs. 15-16).

In a context :math:`c = (x_0, x_t, s, t, y, A)` the target distribution

.. math:: \bar\pi(x_s | x_0, x_t) \propto l(y | A, D(x_s, s)) \, q(x_s | x_0, x_t)

is approximated by :math:`q = N(\mu, diag(e^{2\lambda}))`, the minimizer of

.. math:: L(\mu, \lambda; c) = E_z[-\log l(y | A, D(\mu + e^\lambda z, s))] + KL(q \| q(x_s | x_0, x_t)),

one value per sample. The KL is in closed form; the authors' single-sample estimate is too noisy to compare
two candidates. q has a log-std, since the paper's variance :math:`\sigma^2 + f` can be negative.
"""

from __future__ import annotations

__all__ = [
    "Context",
    "DiagonalGaussian",
    "DifferentiableEvaluation",
    "Evaluation",
    "Objective",
    "ObjectiveGradient",
]

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .priors import Prior
from .problem import InverseProblem
from .schedule import Schedule, as_time
from .transitions import bridge


@dataclass(frozen=True)
class DiagonalGaussian:
    """Gaussian N(mean, diag(exp(2 log_std))), both (B, C, *spatial) or broadcastable to it.

    Example:
        >>> q = DiagonalGaussian(torch.zeros(1, 3, 8, 8), torch.zeros(1, 1, 1, 1))
        >>> q.kl(q)
        tensor([0.])
    """

    mean: Tensor
    log_std: Tensor

    def sample(self, z: Tensor) -> Tensor:
        """Return mean + exp(log_std) z."""
        return self.mean + self.log_std.exp() * z

    def kl(self, other: DiagonalGaussian) -> Tensor:
        """Return KL(self || other) per sample, shape (B,), in closed form."""
        gap = self.log_std - other.log_std
        scaled = (self.mean - other.mean) * (-other.log_std).exp()
        terms = 0.5 * ((2 * gap).exp() + scaled.square() - 1.0) - gap
        return terms.expand_as(self.mean).flatten(1).sum(1)

    def select(self, rows: Tensor) -> DiagonalGaussian:
        """Return the Gaussians of these rows."""
        return DiagonalGaussian(self.mean[rows], self.log_std.expand_as(self.mean)[rows])

    @staticmethod
    def where(condition: Tensor, a: DiagonalGaussian, b: DiagonalGaussian) -> DiagonalGaussian:
        """Return the rows of a where ``condition`` (B,) holds and those of b elsewhere."""
        keep = condition.reshape(-1, *[1] * (a.mean.ndim - 1))
        log_std = torch.where(keep, a.log_std, b.log_std)
        return DiagonalGaussian(torch.where(keep, a.mean, b.mean), log_std.expand_as(a.mean))


@dataclass(frozen=True)
class Context:
    """Context c = (x_0, x_t, s, t, y, A) of an inner problem, in sampling and in training.

    Attributes:
        x_0: Current estimate of the clean image (B, C, *spatial).
        x_t: Current noisy image (B, C, *spatial).
        s: Midpoint time, 0 < s < t, float64, () or (B,).
        t: Time of x_t, float64, () or (B,).
        problem: Measurements y and operator A of B items.
        schedule: Noise schedule.
    """

    x_0: Tensor
    x_t: Tensor
    s: Tensor
    t: Tensor
    problem: InverseProblem
    schedule: Schedule

    @cached_property
    def bridge(self) -> DiagonalGaussian:
        """Bridge q(x_s | x_0, x_t), the zero-shot initialization (the paper's Eqs. 21-22)."""
        kernel = bridge(self.schedule, self.x_0, self.x_t, as_time(0.0), self.s, self.t)
        return DiagonalGaussian(kernel.mean, kernel.std.log().to(kernel.mean.device))

    def select(self, rows: Tensor) -> Context:
        """Return the context of these rows."""
        s, t = (time if time.ndim == 0 else time[rows.cpu()] for time in (self.s, self.t))
        problem = self.problem.select(rows.cpu())
        return Context(self.x_0[rows], self.x_t[rows], s, t, problem, self.schedule)


@dataclass(frozen=True)
class ObjectiveGradient:
    """Loss L (B,) and its derivatives in mean and log_std (B, C, *spatial)."""

    loss: Tensor
    mean: Tensor
    log_std: Tensor


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of the objective at q with noise z.

    Attributes:
        loss: Loss L per sample (B,).
        q: Argument of the objective.
        x_s: Sample mean + exp(log_std) z.
        x_0: Denoised sample D(x_s, s), which may be reused.
    """

    loss: Tensor
    q: DiagonalGaussian
    x_s: Tensor
    x_0: Tensor


@dataclass(frozen=True)
class DifferentiableEvaluation(Evaluation):
    """Evaluation with the graph from x_s to the likelihood, for one gradient.

    Attributes:
        nll: Negative log-likelihood -log l(y | A, D(x_s, s)) per sample (B,), with its graph.
        leaf: Leaf x_s of the graph.
        bridge: Bridge of the context.
    """

    nll: Tensor
    leaf: Tensor
    bridge: DiagonalGaussian

    def gradient(self, rows: Tensor | None = None) -> ObjectiveGradient:
        """Return dL/d(mean, log_std) per sample, with ``rows`` only for these rows; frees the graph."""
        weight = torch.ones_like(self.nll)
        if rows is not None:
            weight = torch.zeros_like(weight).index_fill(0, rows, 1.0)
        (slope,) = torch.autograd.grad(self.nll, self.leaf, weight)
        gap = self.q.log_std - self.bridge.log_std
        mean = slope + (self.q.mean - self.bridge.mean) * (-2 * self.bridge.log_std).exp()
        log_std = slope * (self.x_s - self.q.mean) + (2 * gap).exp() - 1.0
        return ObjectiveGradient(self.loss, mean, log_std)


@dataclass(frozen=True)
class Objective:
    """Objective L(mu, lambda; c) of one context.

    Attributes:
        prior: Prior with the denoiser D.
        context: Context c.
        noise: Function from the evaluation number g = 0, 1, ... to z (B, C, *spatial). Evaluations with the
            same number share their noise, so candidates are compared with common random numbers.
    """

    prior: Prior
    context: Context
    noise: Callable[[int], Tensor]

    @property
    def curvature(self) -> Tensor:
        """Largest eigenvalue of the negative log-likelihood's Hessian in x_0, per sample (B,)."""
        return self.context.problem.curvature(self.context.x_0)

    def evaluate(self, q: DiagonalGaussian, index: int = 0) -> Evaluation:
        """Evaluate L at q with noise number ``index``; one denoiser evaluation, differentiable in q."""
        x_s = q.sample(self.noise(index))
        x_0 = self.prior.denoise(x_s, self.context.s)
        loss = q.kl(self.context.bridge) - self.context.problem.log_likelihood(x_0)
        return Evaluation(loss, q, x_s, x_0)

    def evaluate_with_graph(self, q: DiagonalGaussian, index: int = 0) -> DifferentiableEvaluation:
        """Evaluate L and keep the graph for one gradient; one denoiser evaluation."""
        bridge, x_s = self.context.bridge, q.sample(self.noise(index))
        with torch.enable_grad():
            leaf = x_s.detach().requires_grad_()
            x_0 = self.prior.denoise(leaf, self.context.s)
            nll = -self.context.problem.log_likelihood(x_0)
        loss = q.kl(bridge) + nll.detach()
        return DifferentiableEvaluation(loss, q, x_s, x_0.detach(), nll, leaf, bridge)

    def gradient(self, q: DiagonalGaussian, index: int = 0) -> ObjectiveGradient:
        """Return L and its gradient at q with noise number ``index``; one forward and one backward pass."""
        return self.evaluate_with_graph(q, index).gradient()

    def select(self, rows: Tensor) -> Objective:
        """Return the objective of these rows."""
        return Objective(self.prior, self.context.select(rows), lambda index: self.noise(index)[rows])
