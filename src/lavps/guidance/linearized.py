r"""Guidance without derivatives of the denoiser: the inner problem, linearized and solved.

With the denoiser replaced by :math:`D(x_s, s) \approx x_0 + J (x_s - m_b)`, J a scalar, the inner problem is
a linear least-squares problem, and its minimizer is

.. math:: m = m_b + \sigma_b u, \qquad
    (1 + \sigma_b^2 J^2\, A^T W A)\, u = \sigma_b J A^T W (y - A x_0), \qquad
    J = \frac{\alpha_s v}{\alpha_s^2 v + \sigma_s^2},

W the noise's precision, v the data variance; J is the slope of the exact denoiser of independent pixels with
this variance. For a nonlinear operator A is its Jacobian at :math:`x_0`.

The step is not new. It is the proximal step of DiffPIR, :math:`J (m - m_b) = \mathrm{prox}_{r^2}(x_0) - x_0`
with :math:`r^2 = \sigma_b^2 J^2`, and equivalently Pi-GDM's step with the denoiser's Jacobian replaced by a
scalar. What differs here is that :math:`r^2` follows from the bridge, and the loop around the step is MGDM's.

References:
    - Zhu et al., Denoising Diffusion Models for Plug-and-Play Image Restoration, 2023 (DiffPIR).
    - Song et al., Pseudoinverse-Guided Diffusion Models for Inverse Problems, 2023 (Pi-GDM).
"""

from __future__ import annotations

__all__ = ["Linearized", "linearized_step"]

from dataclasses import dataclass

import torch
from torch import Tensor

from ..operators.linalg import conjugate_gradient
from ..transitions import per_sample
from ..variational import Context, DiagonalGaussian
from .base import Guidance, GuidedStep, MidpointDraw


def _scaled_jacobian(context: Context, data_variance: float) -> Tensor:
    r""":math:`\sigma_b J`: change of D(x_s) per unit of u."""
    alpha, sigma = context.schedule.alpha(context.s), context.schedule.sigma(context.s)
    slope = alpha * data_variance / (alpha.square() * data_variance + sigma.square())
    return context.bridge.log_std.exp() * per_sample(slope, context.x_0)


def _solve(context: Context, data_variance: float, solver_steps: int) -> Tensor:
    """The u of the module's equation, by conjugate gradients."""
    problem, x_0 = context.problem, context.x_0.detach()
    jacobian, product = _scaled_jacobian(context, data_variance), problem.gauss_newton_product(x_0)
    score = jacobian * problem.likelihood_score(x_0)
    return conjugate_gradient(lambda u: u + jacobian * product(jacobian * u), score, solver_steps, 1e-6)


@torch.no_grad()
def linearized_step(
    context: Context, data_variance: float = 0.25, solver_steps: int = 0
) -> tuple[Tensor, Tensor]:
    r"""Compute the step u of the mean, in units of the bridge's standard deviation.

    No denoiser evaluation, forward or backward.

    Args:
        context: Context c, B rows.
        data_variance: Variance v of the data; 1/4 suits images in [-1, 1].
        solver_steps: Number of conjugate-gradient steps; 0 divides by the largest eigenvalue of the system
            instead, which is exact where A A^T is a multiple of the identity and too short where A blurs.

    Returns:
        u, shape (B, C, *spatial), and the largest eigenvalue :math:`1 + \sigma_b^2 J^2 h`, shape (B,), with h
        the likelihood's curvature at x_0.
    """
    problem, x_0 = context.problem, context.x_0.detach()
    jacobian = _scaled_jacobian(context, data_variance)
    largest = 1.0 + jacobian.reshape(-1).square() * problem.curvature(x_0)
    if solver_steps:
        return _solve(context, data_variance, solver_steps), largest
    return jacobian / per_sample(largest, x_0) * problem.likelihood_score(x_0), largest


@dataclass(frozen=True)
class Linearized(Guidance):
    """The linearized inner problem, solved: no training, no derivative of the denoiser.

    It moves the pixels that the measurement reaches. Late in a run, where the denoiser is nearly the
    identity, this is the solution. Early the pixels of an image are strongly correlated, and treating them as
    independent overshoots: use a small ``data_variance`` there, a model, or gradients. The step is the
    proximal step of DiffPIR (Zhu et al., 2023) and Pi-GDM's (Song et al., 2023) with a scalar Jacobian; see
    the module's documentation.

    Args:
        data_variance: Variance v of a pixel given its neighbours; 0.01 suits the first half of the time, 1
            the second, where the slope is close to 1 / alpha_s.
        solver_steps: Number of conjugate-gradient steps. One is enough where A A^T is a multiple of the
            identity (block means, masks).

    Example:
        >>> switch(Linearized(data_variance=0.01), Linearized(), at=0.5)  # doctest: +SKIP
    """

    data_variance: float = 1.0
    solver_steps: int = 3

    def __post_init__(self) -> None:
        if self.data_variance <= 0 or self.solver_steps < 1:
            raise ValueError(f"data_variance must be positive and solver_steps at least 1: {self}")

    @torch.no_grad()
    def __call__(self, context: Context) -> DiagonalGaussian:
        """Return q: the bridge with its mean moved by sigma_b u."""
        bridge, u = context.bridge, _solve(context, self.data_variance, self.solver_steps)
        return DiagonalGaussian(bridge.mean + bridge.log_std.exp() * u, bridge.log_std.expand_as(u))

    def draw(self, step: GuidedStep) -> MidpointDraw:
        """Draw x_s from the shifted bridge."""
        return MidpointDraw(self(step.context).sample(step.objective.noise(0)))
