r"""The inner variational problem of midpoint-guided samplers (the paper's Eqs. 15-16).

In a context :math:`c = (x_0, x_t, s, t, y, A)` a sampler wants

.. math:: \bar\pi(x_s | x_0, x_t) \propto l(y | A, D(x_s, s)) \, q(x_s | x_0, x_t)

and takes the nearest :math:`q = N(\mu, diag(e^{2\lambda}))`, the minimiser of

.. math:: L(\mu, \lambda; c) = E_z[-\log l(y | A, D(\mu + e^\lambda z, s))] + KL(q \| q(x_s | x_0, x_t)),

one value per sample, never reduced over the batch. The KL is in closed form: an estimate by the same
single sample z, as the authors' code has it, adds noise that drowns the comparison of two candidates. The
spread is a log standard deviation; the paper's variance :math:`\sigma^2 + f` can become negative.
"""

from __future__ import annotations

__all__ = ["Context", "DiagonalGaussian", "DifferentiableEvaluation", "Evaluation", "Gradient", "Objective"]

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
    """N(mean, diag(exp(2 log_std))), both (B, C, *spatial) or broadcastable to it."""

    mean: Tensor
    log_std: Tensor

    def sample(self, z: Tensor) -> Tensor:
        """Mean + exp(log_std) z."""
        return self.mean + self.log_std.exp() * z

    def kl(self, other: DiagonalGaussian) -> Tensor:
        """KL(self || other) per sample, shape (B,), in closed form."""
        gap = self.log_std - other.log_std
        scaled = (self.mean - other.mean) * (-other.log_std).exp()
        terms = 0.5 * ((2 * gap).exp() + scaled.square() - 1.0) - gap
        return terms.expand_as(self.mean).flatten(1).sum(1)

    def select(self, rows: Tensor) -> DiagonalGaussian:
        """These rows."""
        return DiagonalGaussian(self.mean[rows], self.log_std.expand_as(self.mean)[rows])

    @staticmethod
    def where(condition: Tensor, a: DiagonalGaussian, b: DiagonalGaussian) -> DiagonalGaussian:
        """Row by row, a where ``condition`` (B,) holds and b elsewhere."""
        keep = condition.reshape(-1, *[1] * (a.mean.ndim - 1))
        return DiagonalGaussian(
            torch.where(keep, a.mean, b.mean), torch.where(keep, a.log_std, b.log_std).expand_as(a.mean)
        )


@dataclass(frozen=True)
class Context:
    """c = (x_0, x_t, s, t, y, A): all an initializer may know. Shared by sampling and training.

    Attributes:
        x_0: current estimate of the clean image (B, C, *spatial).
        x_t: current noisy image (B, C, *spatial).
        s: midpoint time, float64, () or (B,), 0 < s < t.
        t: time of x_t, float64, () or (B,).
        problem: y and A, B items.
        schedule: the schedule of s and t.
    """

    x_0: Tensor
    x_t: Tensor
    s: Tensor
    t: Tensor
    problem: InverseProblem
    schedule: Schedule

    @cached_property
    def bridge(self) -> DiagonalGaussian:
        """q(x_s | x_0, x_t), the zero-shot start (the paper's Eqs. 21-22)."""
        kernel = bridge(self.schedule, self.x_0, self.x_t, as_time(0.0), self.s, self.t)
        return DiagonalGaussian(kernel.mean, kernel.std.log().to(kernel.mean.device))

    def select(self, rows: Tensor) -> Context:
        """The context of these rows."""
        s, t = (time if time.ndim == 0 else time[rows.cpu()] for time in (self.s, self.t))
        problem = self.problem.select(rows.cpu())
        return Context(self.x_0[rows], self.x_t[rows], s, t, problem, self.schedule)


@dataclass(frozen=True)
class Gradient:
    """L (B,) and its derivatives in mean and log_std (B, C, *spatial)."""

    loss: Tensor
    mean: Tensor
    log_std: Tensor


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of the objective at q with noise z.

    Attributes:
        loss: L per sample (B,).
        q: where it was evaluated.
        x_s: mean + exp(log_std) z.
        x_0: D(x_s, s): known once evaluated, and free to whoever uses the same x_s.
    """

    loss: Tensor
    q: DiagonalGaussian
    x_s: Tensor
    x_0: Tensor


@dataclass(frozen=True)
class DifferentiableEvaluation(Evaluation):
    """An evaluation that has kept the graph from x_s to the likelihood, for one gradient.

    Attributes:
        nll: -log l(y | A, D(x_s, s)) per sample (B,), with its graph.
        leaf: the x_s it starts from.
        bridge: the bridge of the context.
    """

    nll: Tensor
    leaf: Tensor
    bridge: DiagonalGaussian

    def gradient(self, rows: Tensor | None = None) -> Gradient:
        """dL/d(mean, log_std) per sample, where given only of ``rows``; frees the graph.

        Only the denoiser and the likelihood are differentiated by torch; the KL and x_s = mean +
        exp(log_std) z have derivatives of one line each.
        """
        weight = torch.ones_like(self.nll)
        if rows is not None:
            weight = torch.zeros_like(weight).index_fill(0, rows, 1.0)
        (slope,) = torch.autograd.grad(self.nll, self.leaf, weight)
        gap = self.q.log_std - self.bridge.log_std
        mean = slope + (self.q.mean - self.bridge.mean) * (-2 * self.bridge.log_std).exp()
        log_std = slope * (self.x_s - self.q.mean) + (2 * gap).exp() - 1.0
        return Gradient(self.loss, mean, log_std)


@dataclass(frozen=True)
class Objective:
    """L(mu, lambda; c) for one context.

    Attributes:
        prior: the denoiser D.
        context: the context c.
        noise: z for evaluation number g = 0, 1, ...: (B, C, *spatial). Evaluations with one number share
            their noise, so candidates are compared with common random numbers.
    """

    prior: Prior
    context: Context
    noise: Callable[[int], Tensor]

    @property
    def curvature(self) -> Tensor:
        """Largest eigenvalue of the likelihood's Hessian in x_0, per sample (B,)."""
        return self.context.problem.curvature(self.context.x_0)

    def evaluate(self, q: DiagonalGaussian, index: int = 0) -> Evaluation:
        """L at q with noise number ``index``: one forward. Differentiable in q where torch records."""
        x_s = q.sample(self.noise(index))
        x_0 = self.prior.denoise(x_s, self.context.s)
        loss = q.kl(self.context.bridge) - self.context.problem.log_likelihood(x_0)
        return Evaluation(loss, q, x_s, x_0)

    def evaluate_with_graph(self, q: DiagonalGaussian, index: int = 0) -> DifferentiableEvaluation:
        """The same, ready for one gradient: one forward, and its graph is kept."""
        bridge, x_s = self.context.bridge, q.sample(self.noise(index))
        with torch.enable_grad():
            leaf = x_s.detach().requires_grad_()
            x_0 = self.prior.denoise(leaf, self.context.s)
            nll = -self.context.problem.log_likelihood(x_0)
        loss = q.kl(bridge) + nll.detach()
        return DifferentiableEvaluation(loss, q, x_s, x_0.detach(), nll, leaf, bridge)

    def gradient(self, q: DiagonalGaussian, index: int = 0) -> Gradient:
        """L at q with noise number ``index`` and its gradient: one forward and one backward."""
        return self.evaluate_with_graph(q, index).gradient()

    def select(self, rows: Tensor) -> Objective:
        """The objective of these rows alone."""
        return Objective(
            self.prior,
            self.context.select(rows),
            lambda index: self.noise(index)[rows],
        )
