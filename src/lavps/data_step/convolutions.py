r"""Data steps of convolutions and masks, solved on the pixels of y with the help of the Fourier transform.

The data step :math:`x_0 + C A^T z` of a linear operator needs the solution of

.. math:: (A C A^T + \sigma_y^2)\, z = y - A x_0.

If A is a periodic convolution with transfer function H, followed by taking every r-th pixel, and C is
diagonal in the Fourier domain too, then so is :math:`A C A^T`, on the grid of y. A frequency of y has the
eigenvalue

.. math:: r^{-d} \sum_k |H_k|^2 C_k

over the :math:`r^d` frequencies k of the image that coincide with it. This solves the data step of block
means and of periodic blurs. For a mask, the inverse for the whole image, restricted to the observed pixels,
is the preconditioner of conjugate gradients: it is local, so that only pixels near a hole are wrong at first.

If the observed pixels are scattered over the image, all of them are near missing ones. At high noise levels
the data step is then solved on the pixels of the image, :math:`(C^{-1} + M / \sigma_y^2)\, u = M (y - x_0) /
\sigma_y^2`, with the share of observed pixels in place of the mask M in the preconditioner. The number of
steps does not depend on the size of the image.
"""

from __future__ import annotations

__all__ = ["convolution_step"]

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..operators import AveragePool, Blur, Identity, Mask, Operator
from ..operators.linalg import weighted_conjugate_gradient
from ..problem import InverseProblem
from ..schedule import as_time
from ..transitions import per_sample
from .covariances import Covariance

_HIGH = 1.0  # noise level above which long waves vary freely, so that masks take more steps
_MORE = 4  # times as many
_REGION, _EVEN = 16, 1.03  # pixels; mean square over squared mean of the share observed in such regions


def convolution_step(
    problem: InverseProblem,
    x: Tensor,
    covariance: Covariance,
    noise_level: Tensor,
    solver_steps: int,
    tolerance: float,
    measurement_noise: Tensor | None = None,
) -> Tensor | None:
    """Return the data step from x, or None for operators that are no periodic convolutions or masks.

    Args:
        problem: Measurement y and operator A, B rows.
        x: Images (B, C, *spatial).
        covariance: Covariance C of x_0 given x_t.
        noise_level: Noise level sigma_t / alpha_t, shape () or (B,).
        solver_steps: Maximum number of conjugate-gradient steps.
        tolerance: Error at which a row stops, in standard deviations of the measurement's noise.
        measurement_noise: Standard normal noise of y's shape that perturbs y; None for the mode.
    """
    operator = problem.operator
    if not problem.is_linear_gaussian or (power := _power(operator, x.shape[2:], x)) is None:
        return None
    prediction = operator(x)
    variance = 1.0 / problem.noise.precision(prediction)
    residual = problem.residual(prediction)
    if measurement_noise is not None:
        noise = measurement_noise * variance.sqrt()
        residual = residual + (operator(noise) if isinstance(operator, Mask) else noise)
        del noise
    mean = variance.expand_as(residual).flatten(1).mean(1)
    eigenvalues = _folded(power * covariance.spectrum(noise_level, x), residual)
    inverse = _inverse(covariance, operator, eigenvalues, mean, residual)
    if not isinstance(operator, Mask) and variance.numel() in (1, len(residual)):  # the inverse is exact
        z = inverse(residual)
        del power, eigenvalues, inverse, residual
        return x + covariance.product(noise_level, x)(operator.adjoint(z))
    product = covariance.product(noise_level, x)

    def system(_: Tensor, z: Tensor) -> Tensor:
        return variance * z + operator(product(operator.adjoint(z)))

    # Most residuals are in directions with about the mean eigenvalue; there this is their size in the noise.
    atol = tolerance * (residual[0].numel() / (1.0 + eigenvalues.flatten(1).mean(1) / mean)).sqrt()
    high = (as_time(noise_level) > _HIGH).to(x.device).expand(len(x))
    steps = torch.where(high, _MORE * solver_steps, solver_steps)
    pixels = covariance.correlated and isinstance(operator, Mask)
    scattered = high & (_is_scattered(operator, x) if pixels else False)
    moved = torch.zeros_like(x)
    if not bool(scattered.all()):
        limit = torch.where(scattered, 0, steps)
        z, _ = weighted_conjugate_gradient(system, inverse, residual, limit, atol=atol)
        moved = product(operator.adjoint(z))
    if bool(scattered.any()):
        args = covariance, noise_level, torch.where(scattered, steps, 0), tolerance
        moved = moved + _scattered_step(operator, residual, variance, *args)
    return x + moved


def _is_scattered(operator: Operator, x: Tensor) -> Tensor:
    """Return whether a mask observes about the same share of pixels in all regions of the images, (B,)."""
    known = operator(torch.ones_like(x)).mean(1, keepdim=True)
    for axis in range(2, x.ndim):
        side = min(_REGION, x.shape[axis])
        known = known.unfold(axis, side, side).mean(-1)
    shares = known.flatten(1)
    return shares.square().mean(1) < _EVEN * shares.mean(1).square()


def _scattered_step(
    operator: Operator,
    residual: Tensor,
    variance: Tensor,
    covariance: Covariance,
    noise_level: Tensor,
    steps: Tensor,
    tolerance: float,
) -> Tensor:
    """Return the change of the images, solved on their pixels; 0 for rows without steps."""
    precision = operator(torch.ones_like(residual)) / variance
    shift = precision.flatten(1).mean(1)
    found, _ = weighted_conjugate_gradient(
        lambda p, cp: torch.addcmul(p, precision, cp),
        covariance.shifted(noise_level, residual, shift),
        precision * residual,
        steps,
        atol=tolerance * residual[0].numel() ** 0.5,
        shift=per_sample(shift, residual),
    )
    return found


def _folded(spectrum: Tensor, like: Tensor) -> Tensor:
    """Return the spectrum on the coarser grid of a measurement: the mean over coinciding frequencies."""
    for axis, n in enumerate(like.shape[2:], start=2):
        if spectrum.shape[axis] > 1:
            spectrum = spectrum.reshape(*spectrum.shape[:axis], -1, n, *spectrum.shape[axis + 1 :]).mean(axis)
    return spectrum


def _inverse(
    covariance: Covariance, operator: Operator, eigenvalues: Tensor, variance: Tensor, like: Tensor
) -> Callable[[Tensor], Tensor]:
    """Return the product with the inverse of A C A^T + variance, restricted to the observed pixels."""
    half = eigenvalues[..., : like.shape[-1] // 2 + 1]
    gain = 1.0 / (half + variance.reshape(-1, *[1] * (like.ndim - 1)))

    def inverse(e: Tensor) -> Tensor:
        found = covariance.filtered(e, gain)
        return operator(found) if isinstance(operator, Mask) else found

    return inverse


def _power(operator: Operator, size: Sequence[int], like: Tensor) -> Tensor | None:
    """Return |H|^2 on the frequencies of an image, (B or 1, 1, *spatial); None if A is no such operator."""
    if isinstance(operator, Identity | Mask):
        return like.new_ones(1, 1, *size)
    if isinstance(operator, AveragePool):
        found = like.new_ones(1, 1)
        for n in size:
            frequency = torch.arange(n, dtype=torch.float64) / n
            angle = 2 * math.pi * frequency[:, None] * torch.arange(operator.factor)
            gain = torch.polar(torch.ones_like(angle), angle).mean(1).abs().square()
            found = found.unsqueeze(-1) * gain.to(like)
        return found
    if isinstance(operator, Blur) and operator.padding == "circular":
        return operator.power(size, like)
    return None
