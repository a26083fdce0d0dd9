r"""The data step: move an estimate of x_0 towards images that explain the measurement.

Given a denoised image :math:`x_0 = D(x_t, t)`, approximate :math:`p(x | x_t) \approx N(x_0, C)`. Then

.. math:: p(x | x_t, y) \propto N(x; x_0, C)\, l(y | A(x)),

whose mode under Gaussian noise of precision W and a linear operator is

.. math:: x_0 + C q, \qquad (1 + A^T W A\, C)\, q = A^T W (y - A x_0).

:func:`data_step` solves this by conjugate gradients, or in the Fourier domain
(:mod:`lavps.data_step.convolutions`); a nonlinear operator is linearized at the current point and the step
repeated (Gauss-Newton). With noise added to :math:`x_0` and y the solution is an exact draw from
the Gaussian instead of its mode (perturb-and-solve). No denoiser is evaluated.

The covariance C correlates neighbouring pixels or does not. :class:`Isotropic` treats pixels
as independent (DiffPIR, Pi-GDM). :class:`Stationary` has the power spectrum of images; its data step is a
Wiener filter.

References:
    - Zhu et al., Denoising Diffusion Models for Plug-and-Play Image Restoration, 2023 (the proximal step).
    - Papandreou and Yuille, Gaussian Sampling by Local Perturbations, 2010 (perturb-and-solve).
    - Field, Relations between the Statistics of Natural Images and the Response Properties of Cortical Cells,
      1987 (the power spectrum of images).
"""

from __future__ import annotations

__all__ = [
    "LARGEST_LEVEL",
    "Covariance",
    "Isotropic",
    "Stationary",
    "data_step",
    "newton_step",
    "shows_all_alike",
]

from collections.abc import Callable

import torch
from torch import Tensor

from ..operators.linalg import inner, weighted_conjugate_gradient
from ..problem import InverseProblem
from ..schedule import as_time
from ..transitions import per_sample
from .convolutions import convolution_step
from .covariances import LARGEST_LEVEL, Covariance, Isotropic, Stationary

_OF_A_DRAW, _OF_THE_MODE = 3e-4, 1e-5  # errors of data steps, in standard deviations
_EVEN = 1.05  # mean square of A^T W A 1 over its squared mean, up to which A shows all pixels alike


def data_step(
    problem: InverseProblem,
    x_0: Tensor,
    covariance: Covariance,
    noise_level: Tensor,
    *,
    linearizations: int = 2,
    solver_steps: int = 30,
    tolerance: float | None = None,
    image_noise: Tensor | None = None,
    measurement_noise: Tensor | None = None,
) -> Tensor:
    r"""Return the mode of :math:`N(x; x_0, C)\, l(y | A(x))`, or a draw from it.

    Differentiable in x_0 and the noise level; of a nonlinear operator the Jacobian is treated as constant.

    Args:
        problem: Measurement y and operator A, B rows.
        x_0: Denoised images (B, C, *spatial).
        covariance: Covariance C of x_0 given x_t.
        noise_level: Noise level sigma_t / alpha_t of x_t, shape () or (B,).
        linearizations: Number of Gauss-Newton steps, unless A is linear and the noise Gaussian.
        solver_steps: Maximum number of conjugate-gradient steps of each.
        tolerance: Error at which a row stops, in standard deviations of :math:`p(x | x_t, y)`; default 3e-4
            for a draw and 1e-5 for the mode.
        image_noise: Standard normal images that perturb x_0; None for the mode.
        measurement_noise: Standard normal noise of y's shape that perturbs y; None for the mode.
    """
    if image_noise is not None:
        x_0 = x_0 + covariance.product(noise_level, x_0, 0.5)(image_noise)
    if tolerance is None:
        tolerance = _OF_THE_MODE if image_noise is None and measurement_noise is None else _OF_A_DRAW
    args = (covariance, noise_level, solver_steps, tolerance)
    if (found := convolution_step(problem, x_0, *args, measurement_noise)) is not None:
        return found
    if not problem.operator.linear:  # a saturated entry has no derivative that could move it
        x_0 = problem.operator.unsaturated(x_0, problem.y, problem.noise.precision(problem.y).rsqrt())
    x, q = x_0, torch.zeros_like(x_0)  # x = x_0 + C q
    for _ in range(linearizations):
        score = problem.likelihood_score(x, measurement_noise) - q
        hessian = problem.gauss_newton_product(x)
        move, residual = newton_step(hessian, score, *args)
        if problem.is_linear_gaussian:
            return x + move
        step = score - residual - hessian(move)
        size = per_sample(_step_size(problem, x, q, step, move, x_0, measurement_noise), x_0)
        x, q = x + size * move, q + size * step
    return x


def newton_step(
    hessian: Callable[[Tensor], Tensor],
    score: Tensor,
    covariance: Covariance,
    noise_level: Tensor,
    solver_steps: int,
    tolerance: float,
) -> tuple[Tensor, Tensor]:
    r"""Return C q with :math:`(1 + A^T W A\, C)\, q` = score, and the residual.

    Conjugate gradients; if the covariance correlates pixels, preconditioned by :math:`1 + s\, C`, where s is
    the mean of :math:`h = A^T W A\, 1` over the pixels: large structures, in which C is largest, look
    constant to A. Where the noise level is largest and h differs between pixels, s is 0: the values in a
    hole, of which nothing is known yet, converge faster without it.

    Args:
        hessian: Product :math:`u \mapsto A^T W A\, u`.
        score: Right-hand sides (B, C, *spatial).
        covariance: Covariance C of x_0 given x_t.
        noise_level: Noise level sigma_t / alpha_t, shape () or (B,).
        solver_steps: Maximum number of steps.
        tolerance: Error at which a row stops, in standard deviations of the Gaussian with precision
            :math:`C^{-1} + A^T W A`: that of a draw is 1.
    """
    atol = tolerance * score[0].numel() ** 0.5

    def system(p: Tensor, cp: Tensor) -> Tensor:
        return p + hessian(cp)

    if not covariance.correlated:
        product = covariance.product(noise_level, score)
        return weighted_conjugate_gradient(system, product, score, solver_steps, atol=atol)
    response = hessian(torch.ones_like(score))
    mean, even = response.flatten(1).mean(1).clamp(min=0.0), shows_all_alike(response)
    known = (as_time(noise_level) < LARGEST_LEVEL).to(mean.device)
    shift = torch.where(even | known, mean, 0.0)
    product = covariance.shifted(noise_level, score, shift)
    return weighted_conjugate_gradient(
        system, product, score, solver_steps, atol=atol, shift=per_sample(shift, score)
    )


def shows_all_alike(response: Tensor) -> Tensor:
    """Return for each row of A^T W A 1 whether A shows all pixels about equally well, (B,)."""
    mean = response.flatten(1).mean(1).clamp(min=0.0)
    return response.flatten(1).square().mean(1) < _EVEN * mean.square()


def _step_size(
    problem: InverseProblem,
    x: Tensor,
    q: Tensor,
    step: Tensor,
    move: Tensor,
    x_0: Tensor,
    noise: Tensor | None,
) -> Tensor:
    """Return the best of a few fractions of a Gauss-Newton step, (B,); 0 if none lowers the objective."""
    fractions = torch.tensor([0.0, 1.0, 0.5, 0.25, 0.125], dtype=x.dtype, device=x.device)
    objectives = []
    for fraction in fractions:
        moved = x + fraction * move
        distance = 0.5 * inner(moved - x_0, q + fraction * step)
        objectives.append(problem.half_squared_misfit(moved, noise) + distance)
    return fractions[torch.stack(objectives).argmin(0)]
