r"""Minimisers of the inner variational problem: which way and how far from a start.

A minimiser takes G steps of one denoiser forward and one backward each. It holds numbers only, no state:
every inner problem starts afresh.

The paper uses Adam. At low noise the bridge's standard deviation is .01-.03, and Adam's first step moves
every pixel by its learning rate whatever the scale of the problem. :class:`WhitenedGradient` works in the
bridge's own coordinates instead, :math:`\mu = m_b + \sigma_b u`, where the Hessian is
:math:`I + \sigma_b^2 J^T H J` with H the likelihood's Hessian in :math:`x_0` and J the denoiser's Jacobian,
about :math:`1 / \alpha_s` at low noise. A step of size
:math:`1 / (1 + \sigma_b^2 \|H\| / \alpha_s^2)` is then nearly a Newton step.

Reference: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015.
"""

from __future__ import annotations

__all__ = ["Adam", "Minimizer", "WhitenedGradient"]

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .transitions import per_sample
from .variational import DiagonalGaussian, Gradient, Objective


class Minimizer(Protocol):
    """A rule of descent. Gauss-Newton or CG minimisers fit here too: the objective offers all they need."""

    def minimize(
        self, objective: Objective, start: DiagonalGaussian, steps: int, first: Gradient | None = None
    ) -> tuple[DiagonalGaussian, Tensor]:
        """Descend from ``start``.

        Args:
            objective: L(.; c); gradient number g uses noise number g.
            start: where to begin.
            steps: number G >= 1 of gradients.
            first: the gradient at ``start`` with noise 0, where it is at hand.

        Returns:
            The end point, and the loss (B,) at the last point evaluated.
        """
        ...


@dataclass(frozen=True)
class Adam:
    """Adam, fresh for every inner problem, one learning rate for mean and log-std (the paper's choice).

    Args:
        learning_rate: the paper's eta.
        betas: decay of the two running moments.
        epsilon: added to the denominator.
        fit_std: whether the log-std is optimised too.
    """

    learning_rate: float = 0.03
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    fit_std: bool = True

    def minimize(
        self, objective: Objective, start: DiagonalGaussian, steps: int, first: Gradient | None = None
    ) -> tuple[DiagonalGaussian, Tensor]:
        """``steps`` Adam updates; elementwise, so no row knows of another."""
        q, loss = start, torch.empty(0)
        moments = [(torch.zeros_like(start.mean), torch.zeros_like(start.mean)) for _ in range(2)]
        for g in range(steps):
            gradient = first if g == 0 and first is not None else objective.gradient(q, g)
            loss = gradient.loss
            mean = q.mean - self._update(gradient.mean, moments[0], g + 1)
            log_std = q.log_std
            if self.fit_std:
                log_std = log_std - self._update(gradient.log_std, moments[1], g + 1)
            q = DiagonalGaussian(mean, log_std)
        return q, loss

    def _update(self, gradient: Tensor, moments: tuple[Tensor, Tensor], step: int) -> Tensor:
        (beta1, beta2), (first, second) = self.betas, moments
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (second / (1 - beta2**step)).sqrt_().add_(self.epsilon)
        return first / scale * (self.learning_rate / (1 - beta1**step))


@dataclass(frozen=True)
class WhitenedGradient:
    r"""Plain gradient steps in bridge-whitened coordinates, with the step size the problem dictates.

    :math:`u \leftarrow u - \tau \nabla_u L / (1 + \sigma_b^2 h / \alpha_s^2)` with h the likelihood's largest
    curvature (squared operator norm over noise variance), per item.

    Args:
        step_size: tau, in units of the inverse Lipschitz constant; below 2 the steps contract.
        fit_std: whether the log-std is optimised too. Its single-sample gradient is noisy, and one step
            on it does harm as often as good; off by default.
    """

    step_size: float = 1.0
    fit_std: bool = False

    def minimize(
        self, objective: Objective, start: DiagonalGaussian, steps: int, first: Gradient | None = None
    ) -> tuple[DiagonalGaussian, Tensor]:
        """``steps`` gradient steps of size tau / L, L per item."""
        q, loss = start, torch.empty(0)
        context = objective.context
        variance = (2 * context.bridge.log_std).exp()
        alpha = per_sample(context.schedule.alpha(context.s), start.mean)
        lipschitz = 1.0 + variance / alpha.square() * per_sample(objective.curvature, start.mean)
        for g in range(steps):
            gradient = first if g == 0 and first is not None else objective.gradient(q, g)
            loss = gradient.loss
            mean = q.mean - self.step_size * variance / lipschitz * gradient.mean
            log_std = q.log_std
            if self.fit_std:
                # In log-std the curvature is that of u twice over.
                log_std = log_std - 0.5 * self.step_size / lipschitz * gradient.log_std
            q = DiagonalGaussian(mean, log_std)
        return q, loss
