"""Covariances of x_0 given x_t: independent pixels, or the power spectrum of images."""

from __future__ import annotations

__all__ = ["LARGEST_LEVEL", "Covariance", "Isotropic", "Stationary"]

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from ..schedule import as_time
from ..transitions import per_sample

LARGEST_LEVEL = 80.0  # stands for the infinite noise level at t = 1 of some schedules
_SMALL = 2**16  # pixels of an image whose colour axes are filtered together
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

    @abstractmethod
    def spectrum(self, noise_level: Tensor, like: Tensor) -> Tensor:
        """Return the eigenvalues of C at all frequencies, in the shape of images or with axes of length 1.

        Args:
            noise_level: Noise level sigma_t / alpha_t, shape () or (B,).
            like: Images (B, C, *spatial).
        """

    def to_axes(self, x: Tensor, inverse: bool = False) -> Tensor:
        """Rotate the channels of images to the axes of the spectrum, or back."""
        return x

    def filtered(self, x: Tensor, gain: Tensor) -> Tensor:
        """Multiply images by a gain at each frequency, on the axes of the spectrum.

        Args:
            x: Images (B, C, *spatial).
            gain: Gain at the frequencies of the transform of a real image, or with axes of length 1.
        """
        size, dims = tuple(x.shape[2:]), tuple(range(2, x.ndim))
        gain = gain.expand(len(gain), x.shape[1], *gain.shape[2:])
        # Of large images one axis after the other, which needs less memory.
        parts = 1 if math.prod(size) <= _SMALL else x.shape[1]
        planes = list(self.to_axes(x).chunk(parts, 1))
        for part, gains in enumerate(gain.chunk(parts, 1)):
            planes[part] = torch.fft.irfftn(torch.fft.rfftn(planes[part], dim=dims) * gains, s=size, dim=dims)
        filtered = torch.cat(planes, 1)
        del planes
        return self.to_axes(filtered, inverse=True)


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
        variance = self.spectrum(noise_level, like) ** power
        return lambda u: variance * u

    def spectrum(self, noise_level: Tensor, like: Tensor) -> Tensor:
        """Return r^2."""
        precision = self.strength / _squared(noise_level)
        if self.variance is not None:
            precision = precision + 1.0 / self.variance
        return per_sample(1.0 / precision, like)


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

    def spectrum(self, noise_level: Tensor, like: Tensor) -> Tensor:
        """Return the spectrum of C, of each colour axis."""
        return self._response(_inverse_spectrum, 1.0 / _squared(noise_level), like, 1.0)

    def to_axes(self, x: Tensor, inverse: bool = False) -> Tensor:
        """Rotate red, green and blue to a grey and two colour axes, or back."""
        return _to_axes(x, inverse)

    def _response(
        self,
        inverse_spectrum: Callable[[tuple[int, ...], float], Tensor],
        precision: Tensor,
        like: Tensor,
        power: float,
    ) -> Tensor:
        """Return (S^-1 + precision)^-power on a grid of frequencies."""
        share = torch.tensor([1.0 - 2.0 * self.chroma, self.chroma, self.chroma], dtype=torch.float64)
        axes = 3.0 * share if like.shape[1] == 3 else torch.ones(like.shape[1], dtype=torch.float64)
        shape = (-1, *[1] * (like.ndim - 2))
        scale, added = (values.to(like).reshape(shape) for values in (axes, precision))
        inverse = inverse_spectrum(tuple(like.shape[2:]), self.exponent).to(like) / self.variance
        return (inverse / scale + added.unsqueeze(1)) ** -power

    def _filter(self, precision: Tensor, like: Tensor, power: float) -> Callable[[Tensor], Tensor]:
        """Return the product with (S^-1 + precision)^-power."""
        response = self._response(_inverse_half_spectrum, precision, like, power)
        return lambda u: self.filtered(u, response)


def _squared(noise_level: Tensor) -> Tensor:
    return as_time(noise_level).clamp(max=LARGEST_LEVEL).square()


@lru_cache(maxsize=8)
def _inverse_half_spectrum(size: tuple[int, ...], exponent: float) -> Tensor:
    """Return 1 / S for unit variance, on the frequencies that the transform of a real image keeps."""
    return _inverse_spectrum(size, exponent)[..., : size[-1] // 2 + 1].clone()


def _inverse_spectrum(size: tuple[int, ...], exponent: float) -> Tensor:
    """Return 1 / S for unit variance."""
    grid = _frequencies(size)
    return (grid ** (-0.5 * exponent)).mean() * grid ** (0.5 * exponent)


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
    return ((axes.T if inverse else axes) @ x.flatten(2)).reshape(x.shape)
