r"""Minimizers of the inner variational problem.

A minimizer takes G steps, each with one denoiser evaluation and its backward pass. It has no state.

The paper uses Adam. At low noise the bridge's standard deviation is 0.01 to 0.03, and Adam's first step moves
every pixel by its learning rate, whatever the scale of the problem. :class:`WhitenedGradient` works in the
bridge's coordinates instead, :math:`\mu = m_b + \sigma_b u`, where the Hessian is
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
from .variational import DiagonalGaussian, Objective, ObjectiveGradient


class Minimizer(Protocol):
    """Descent method for the inner problem."""

    def minimize(
        self,
        objective: Objective,
        start: DiagonalGaussian,
        steps: int,
        first: ObjectiveGradient | None = None,
    ) -> tuple[DiagonalGaussian, Tensor]:
        """Descend from ``start``.

        Args:
            objective: Objective L(.; c); gradient number g uses noise number g.
            start: Initial point.
            steps: Number G >= 1 of gradients.
            first: Gradient at ``start`` with noise 0, if available.

        Returns:
            The final point, and the loss (B,) at the last point evaluated.
        """


@dataclass(frozen=True)
class Adam:
    """Adam, restarted for every inner problem (the paper's choice).

    Args:
        learning_rate: Learning rate eta of mean and log-std.
        betas: Decay rates of the two running moments.
        epsilon: Constant added to the denominator.
        fit_std: Whether the log-std is optimized too.
    """

    learning_rate: float = 0.03
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    fit_std: bool = True

    def minimize(
        self,
        objective: Objective,
        start: DiagonalGaussian,
        steps: int,
        first: ObjectiveGradient | None = None,
    ) -> tuple[DiagonalGaussian, Tensor]:
        """Take ``steps`` Adam steps; they are elementwise, so rows are independent."""
        q, loss = start, torch.empty(0)
        moments = [(torch.zeros_like(start.mean), torch.zeros_like(start.mean)) for _ in range(2)]
        for g in range(steps):
            gradient = first if g == 0 and first is not None else objective.gradient(q, g)
            loss = gradient.loss
            q = DiagonalGaussian(q.mean - self._update(gradient.mean, moments[0], g + 1), q.log_std)
            if self.fit_std:
                q = DiagonalGaussian(q.mean, q.log_std - self._update(gradient.log_std, moments[1], g + 1))
        return q, loss

    def _update(self, gradient: Tensor, moments: tuple[Tensor, Tensor], step: int) -> Tensor:
        (beta1, beta2), (first, second) = self.betas, moments
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (second / (1 - beta2**step)).sqrt_().add_(self.epsilon)
        return first / scale * (self.learning_rate / (1 - beta1**step))


@dataclass(frozen=True)
class WhitenedGradient:
    r"""Gradient descent in bridge-whitened coordinates with a step size adapted to the problem.

    :math:`u \leftarrow u - \tau \nabla_u L / (1 + \sigma_b^2 h / \alpha_s^2)` with h the likelihood's largest
    curvature (squared operator norm over noise variance), per item.

    Args:
        step_size: Step size tau in units of the inverse Lipschitz constant; the steps contract below 2.
        fit_std: Whether the log-std is optimized too; its single-sample gradient is noisy.
    """

    step_size: float = 1.0
    fit_std: bool = False

    def minimize(
        self,
        objective: Objective,
        start: DiagonalGaussian,
        steps: int,
        first: ObjectiveGradient | None = None,
    ) -> tuple[DiagonalGaussian, Tensor]:
        """Take ``steps`` gradient steps of size tau / L, with L per item."""
        q, loss = start, torch.empty(0)
        context = objective.context
        variance = (2 * context.bridge.log_std).exp()
        alpha = per_sample(context.schedule.alpha(context.s), start.mean)
        lipschitz = 1.0 + variance / alpha.square() * per_sample(objective.curvature, start.mean)
        for g in range(steps):
            gradient = first if g == 0 and first is not None else objective.gradient(q, g)
            loss = gradient.loss
            mean, log_std = q.mean - self.step_size * variance / lipschitz * gradient.mean, q.log_std
            if self.fit_std:  # the curvature in log-std is twice that in u
                log_std = log_std - 0.5 * self.step_size / lipschitz * gradient.log_std
            q = DiagonalGaussian(mean, log_std)
        return q, loss
