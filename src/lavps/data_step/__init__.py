r"""The data step: move an estimate of x_0 towards images that explain the measurement.

Given a denoised image :math:`x_0 = D(x_t, t)`, approximate :math:`p(x | x_t) \approx N(x_0, C)`. Then

.. math:: p(x | x_t, y) \propto N(x; x_0, C)\, l(y | A(x)),

whose mode under Gaussian noise of precision W and a linear operator is

.. math:: x_0 + C q, \qquad (1 + A^T W A\, C)\, q = A^T W (y - A x_0).

:func:`data_step` solves this by conjugate gradients; a nonlinear operator is linearized at the current point
and the step repeated (Gauss-Newton). With noise added to :math:`x_0` and y the solution is an exact draw from
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

__all__ = ["LARGEST_LEVEL", "Covariance", "Isotropic", "Stationary", "data_step", "newton_step"]

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from ..operators.linalg import inner, weighted_conjugate_gradient
from ..problem import InverseProblem
from ..schedule import as_time
from ..transitions import per_sample

LARGEST_LEVEL = 80.0  # stands for the infinite noise level at t = 1 of some schedules
_EVEN = 1.05  # mean square of A^T W A 1 over its squared mean, up to which A observes all pixels alike
_CUTOFF = 0.6  # cycles per image below which the spectrum is flat

# A grey and two colour axes, orthonormal.
_AXES = torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=torch.float64)
_AXES /= _AXES.square().sum(1, keepdim=True).sqrt()


class Covariance(ABC):
    """Covariance C of x_0 given x_t, as a function of the noise level sigma_t / alpha_t.

    Attributes:
        correlated: Whether C correlates pixels and has :meth:`shifted`, which preconditions data steps.
    """

    correlated: ClassVar[bool] = False

    @abstractmethod
    def product(self, noise_level: Tensor, like: Tensor, power: float = 1.0) -> Callable[[Tensor], Tensor]:
        """Return the product u -> C^power u, symmetric.

        Args:
            noise_level: Noise level sigma_t / alpha_t, shape () or (B,); may be infinite.
            like: Images (B, C, *spatial) that the product will be applied to.
            power: Power of C; 1/2 for its square root.
        """

    def shifted(self, noise_level: Tensor, like: Tensor, precision: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the product u -> (C^-1 + precision)^-1 u; for correlated pixels.

        Args:
            noise_level: Noise level sigma_t / alpha_t, shape () or (B,).
            like: Images (B, C, *spatial).
            precision: Precision that is added, shape (B,).
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Isotropic(Covariance):
    r"""Independent pixels: :math:`1 / r^2 = \lambda \alpha^2 / \sigma^2 + 1 / v`.

    Args:
        strength: Weight lambda of the denoised image against the measurement; 1 is Tweedie's with a flat
            prior, DiffPIR tunes it.
        variance: Variance v of a pixel; None for infinite.
    """

    strength: float = 1.0
    variance: float | None = None

    def __post_init__(self) -> None:
        if self.strength <= 0 or (self.variance is not None and self.variance <= 0):
            raise ValueError(f"strength and variance must be positive: {self}")

    def product(self, noise_level: Tensor, like: Tensor, power: float = 1.0) -> Callable[[Tensor], Tensor]:
        """Return the product with a power of r^2."""
        precision = self.strength / _squared(noise_level)
        if self.variance is not None:
            precision = precision + 1.0 / self.variance
        variance = per_sample(precision**-power, like)
        return lambda u: variance * u


@dataclass(frozen=True)
class Stationary(Covariance):
    r"""Images with a power spectrum: correlated pixels, correlated colours.

    .. math:: C = (S^{-1} + \alpha^2 / \sigma^2)^{-1}, \qquad S(k) \propto (1 + k^2 / k_0^2)^{-p / 2},

    k in cycles per image, diagonal in the Fourier domain; the mean of S is the variance of a pixel. Red,
    green and blue are rotated to a grey and two colour axes.

    Args:
        variance: Variance of a pixel.
        exponent: Exponent p of the power law; 2 for photographs, larger for smooth images.
        chroma: Share of each colour axis in the variance; 1/3 for independent channels.

    Example:
        >>> Stationary.fit(torch.randn(50, 1, 32, 32)).exponent < 0.1  # white noise has a flat spectrum
        True
    """

    correlated: ClassVar[bool] = True
    variance: float = 0.2
    exponent: float = 2.5
    chroma: float = 0.04

    def __post_init__(self) -> None:
        if self.variance <= 0 or self.exponent < 0 or not 0 < self.chroma < 0.5:
            raise ValueError(f"Stationary needs variance > 0, exponent >= 0 and chroma in (0, 1/2): {self}")

    @classmethod
    def fit(cls, images: Tensor) -> Stationary:
        """Estimate the numbers from images (B, C, *spatial), by least squares on a logarithmic scale."""
        deviation = _to_axes(images.double() - images.double().mean(0))
        dims = tuple(range(2, images.ndim))
        power = torch.fft.fftn(deviation, dim=dims, norm="ortho").abs().square().mean(0)
        share = power.flatten(1).mean(1)
        spectrum = (power / share.reshape(-1, *[1] * len(dims))).mean(0).flatten()[1:]
        k = _frequencies(tuple(images.shape[2:])).flatten()[1:]
        weight = 1.0 / k  # high frequencies are many
        log_k, log_power = k.log(), spectrum.clamp(min=1e-12).log()
        centred = log_k - (weight * log_k).sum() / weight.sum()
        slope = float((weight * centred * log_power).sum() / (weight * centred * log_k).sum())
        chroma = float(share[1:].mean() / share.sum()) if len(share) == 3 else cls.chroma
        return cls(float(share.mean()), max(-2.0 * slope, 0.0), min(max(chroma, 1e-3), 0.33))

    def product(self, noise_level: Tensor, like: Tensor, power: float = 1.0) -> Callable[[Tensor], Tensor]:
        """Return the filter with a power of C's spectrum."""
        return self._filter(1.0 / _squared(noise_level), like, power)

    def shifted(self, noise_level: Tensor, like: Tensor, precision: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the filter whose precision is larger by a constant."""
        return self._filter(1.0 / _squared(noise_level) + precision.detach().double().cpu(), like, 1.0)

    def _filter(self, precision: Tensor, like: Tensor, power: float) -> Callable[[Tensor], Tensor]:
        """Return the product with (S^-1 + precision)^-power."""
        size, dims = tuple(like.shape[2:]), tuple(range(1, like.ndim - 1))
        share = torch.tensor([1.0 - 2.0 * self.chroma, self.chroma, self.chroma], dtype=torch.float64)
        axes = 3.0 * share if like.shape[1] == 3 else torch.ones(like.shape[1], dtype=torch.float64)
        scale, added = (values.to(like).reshape(-1, *[1] * len(dims)) for values in (axes, precision))
        inverse = _inverse_spectrum(size, self.exponent).to(like) / self.variance
        response = (inverse / scale + added.unsqueeze(1)) ** -power

        def product(u: Tensor) -> Tensor:
            filtered = [  # one axis after the other, which needs less memory
                torch.fft.irfftn(torch.fft.rfftn(plane, dim=dims) * gain, s=size, dim=dims)
                for plane, gain in zip(_to_axes(u).unbind(1), response.unbind(1), strict=True)
            ]
            return _to_axes(torch.stack(filtered, 1), inverse=True)

        return product


def _squared(noise_level: Tensor) -> Tensor:
    return as_time(noise_level).clamp(max=LARGEST_LEVEL).square()


@lru_cache(maxsize=8)
def _inverse_spectrum(size: tuple[int, ...], exponent: float) -> Tensor:
    """Return 1 / S for unit variance, on the frequencies that the transform of a real image keeps."""
    grid = _frequencies(size)
    return (grid ** (-0.5 * exponent)).mean() * grid[..., : size[-1] // 2 + 1] ** (0.5 * exponent)


def _frequencies(size: tuple[int, ...]) -> Tensor:
    """Return 1 + k^2 / k_0^2 on the grid of the Fourier transform, k in cycles per image."""
    scale = math.prod(size) ** (1.0 / len(size))
    found = torch.ones((), dtype=torch.float64)
    for n in size:
        found = found.unsqueeze(-1) + (torch.fft.fftfreq(n, dtype=torch.float64) * scale / _CUTOFF).square()
    return found


def _to_axes(x: Tensor, inverse: bool = False) -> Tensor:
    """Rotate red, green and blue to a grey and two colour axes; other numbers of channels stay."""
    if x.shape[1] != 3:
        return x
    axes = _AXES.to(x)
    rotated: Tensor = torch.einsum("ij,bj...->bi...", axes.T if inverse else axes, x)
    return rotated


def data_step(
    problem: InverseProblem,
    x_0: Tensor,
    covariance: Covariance,
    noise_level: Tensor,
    *,
    linearizations: int = 2,
    solver_steps: int = 30,
    tolerance: float = 1e-6,
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
        tolerance: Relative residual at which a row stops.
        image_noise: Standard normal images that perturb x_0; None for the mode.
        measurement_noise: Standard normal noise of y's shape that perturbs y; None for the mode.
    """
    if image_noise is not None:
        x_0 = x_0 + covariance.product(noise_level, x_0, 0.5)(image_noise)
    x, q = x_0, torch.zeros_like(x_0)  # x = x_0 + C q
    for _ in range(linearizations):
        score = problem.likelihood_score(x, measurement_noise) - q
        hessian = problem.gauss_newton_product(x)
        move, residual = newton_step(hessian, score, covariance, noise_level, solver_steps, tolerance)
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
    tolerance: float = 1e-6,
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
        tolerance: Relative residual at which a row stops.
    """

    def system(p: Tensor, cp: Tensor) -> Tensor:
        return p + hessian(cp)

    if not covariance.correlated:
        product = covariance.product(noise_level, score)
        return weighted_conjugate_gradient(system, product, score, solver_steps, tolerance)
    response = hessian(torch.ones_like(score)).flatten(1)
    mean = response.mean(1).clamp(min=0.0)
    even = response.square().mean(1) < _EVEN * mean.square()
    known = (as_time(noise_level) < LARGEST_LEVEL).to(mean.device)
    shift = torch.where(even | known, mean, 0.0)
    product = covariance.shifted(noise_level, score, shift)
    return weighted_conjugate_gradient(
        system, product, score, solver_steps, tolerance, per_sample(shift, score)
    )


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
