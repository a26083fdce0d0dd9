r"""Nonlinear operators: clipped exposure, Fourier magnitudes, JPEG compression.

- High dynamic range: :math:`y = \mathrm{clip}(c\, x, -1, 1)`.
- Phase retrieval: :math:`y = |F P (x + 1) / 2|`, the magnitude of the orthonormal Fourier transform of the
  image, mapped to [0, 1] and zero-padded.
- JPEG: :math:`y = \mathrm{clip}(T^{-1} Q\, \mathrm{round}(T x / Q), -1, 1)` with :math:`T` the conversion to
  YCbCr and the cosine transform of 8 x 8 blocks, and :math:`Q` the quantization tables of the standard. The
  gradient of rounding is that of the identity (straight-through).

References:
    - ITU-T T.81, Digital compression and coding of continuous-tone still images, Annex K, 1992.
    - ITU-T T.871, JPEG File Interchange Format, 2011 (the colour transform).
"""

from __future__ import annotations

__all__ = ["JPEG", "HDRClip", "PhaseRetrieval"]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Operator, SameShapeOperator

# Y = 0.299 R + 0.587 G + 0.114 B; Cb and Cr are B - Y and R - Y scaled to the range of Y.
_LUMA = np.array([0.299, 0.587, 0.114])
_TO_YCBCR = np.stack(
    [_LUMA, (np.eye(3)[2] - _LUMA) / (2.0 - 2.0 * _LUMA[2]), (np.eye(3)[0] - _LUMA) / (2.0 - 2.0 * _LUMA[0])]
)
_TO_RGB = np.linalg.inv(_TO_YCBCR)

# The orthonormal cosine transform: row u, column i.
_COSINE = np.sqrt(0.25 / np.array([2.0] + [1.0] * 7))[:, None] * np.cos(
    np.arange(8)[:, None] * (2 * np.arange(8) + 1) * math.pi / 16
)

# Tables K.1 and K.2 of the standard, row by row.
_LUMINANCE = (
    *(16, 11, 10, 16, 24, 40, 51, 61),
    *(12, 12, 14, 19, 26, 58, 60, 55),
    *(14, 13, 16, 24, 40, 57, 69, 56),
    *(14, 17, 22, 29, 51, 87, 80, 62),
    *(18, 22, 37, 56, 68, 109, 103, 77),
    *(24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101),
    *(72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMINANCE = (
    *(17, 18, 24, 47, 99, 99, 99, 99),
    *(18, 21, 26, 66, 99, 99, 99, 99),
    *(24, 26, 56, 99, 99, 99, 99, 99),
    *(47, 66, 99, 99, 99, 99, 99, 99),
    *(99,) * 32,
)


_CERTAIN = 4.0  # standard deviations of the noise


@dataclass(frozen=True)
class HDRClip(SameShapeOperator):
    """Overexposure y = clip(scale x, -1, 1).

    Args:
        scale: Exposure; values beyond 1 / scale in magnitude are clipped.
    """

    linear: ClassVar[bool] = False
    scale: float = 2.0

    def __post_init__(self) -> None:
        if self.scale <= 0.0:
            raise ValueError(f"the scale of HDRClip must be positive, got {self.scale}")

    def __call__(self, x: Tensor) -> Tensor:
        """Return clip(scale x, -1, 1), shape (B, C, *spatial)."""
        return (self.scale * x).clamp(-1.0, 1.0)

    def unsaturated(self, x: Tensor, y: Tensor, std: Tensor) -> Tensor:
        """Return x, not clipped where y is more than four standard deviations from the limits."""
        limit = (1.0 - 1e-6) / self.scale
        return torch.where(y.abs() < 1.0 - _CERTAIN * std, x.clamp(-limit, limit), x)

    def jvp(self, x: Tensor, u: Tensor) -> Tensor:
        """Return scale u where the image is not clipped, 0 elsewhere."""
        return torch.where((self.scale * x).abs() <= 1.0, self.scale * u, 0.0)

    def vjp(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the same; the Jacobian is diagonal."""
        return self.jvp(x, z)


@dataclass(frozen=True)
class PhaseRetrieval(Operator):
    """Fourier magnitudes (B, C, *padded) of the image mapped to [0, 1], padded = round(oversampling n).

    Args:
        oversampling: Size of the transform relative to the image, at least 1. With 2, almost every image is
            determined up to shift and reflection.

    Example:
        >>> PhaseRetrieval(oversampling=2.0)(torch.zeros(1, 3, 8, 8)).shape
        torch.Size([1, 3, 16, 16])
    """

    linear: ClassVar[bool] = False
    oversampling: float = 2.0

    def __post_init__(self) -> None:
        if self.oversampling < 1.0:
            raise ValueError(f"oversampling must be at least 1, got {self.oversampling}")

    def __call__(self, x: Tensor) -> Tensor:
        """Return |F P (x + 1) / 2|, shape (B, C, *padded)."""
        padded = [round(self.oversampling * n) for n in x.shape[2:]]
        spectrum = torch.fft.fftn((x + 1.0) / 2.0, s=padded, dim=tuple(range(2, x.ndim)), norm="ortho")
        # The gradient of the modulus at 0 is 0 in torch, so it is finite everywhere.
        magnitude: Tensor = spectrum.abs()
        return magnitude

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape with each spatial size divided by the oversampling."""
        channels, *padded = measurement_shape
        # Exact, since the padded size is within half a pixel of oversampling * n.
        return (channels, *[round(m / self.oversampling) for m in padded])


@dataclass(frozen=True)
class JPEG(SameShapeOperator):
    """JPEG compression of grey or RGB images; [-1, 1] represents 0..255.

    Args:
        quality: Quality from 1 (coarsest) to 100, as defined by the Independent JPEG Group's software.
        tables: Quantization tables of luminance and chrominance, 64 numbers each, instead of a quality.
        subsampling: Factors of the chroma subsampling, vertical and horizontal, each 1 or 2.

    Example:
        >>> JPEG(quality=20, subsampling=(2, 2))(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 3, 32, 32])
    """

    linear: ClassVar[bool] = False
    quality: int | None = None
    tables: tuple[tuple[int, ...], ...] | None = None
    subsampling: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        if (self.quality is None) == (self.tables is None):
            raise ValueError("JPEG takes a quality or quantization tables")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ValueError(f"JPEG quality must be between 1 and 100, got {self.quality}")
        if any(len(table) != 64 or min(table) < 1 for table in self.tables or ()):
            raise ValueError("quantization tables have 64 numbers, each at least 1")
        if set(self.subsampling) - {1, 2}:
            raise ValueError(f"factors of the chroma subsampling are 1 or 2, got {self.subsampling}")

    @property
    def measurement_ndim(self) -> int:
        """Number of axes of an image (C, H, W)."""
        return 3

    def __call__(self, x: Tensor) -> Tensor:
        """Return the decompressed images, shape (B, 1 or 3, H, W)."""
        if x.ndim != 4 or x.shape[1] not in (1, 3):
            raise ValueError(f"JPEG needs images (B, 1 or 3, H, W), got {tuple(x.shape)}")
        height, width = x.shape[2:]
        down, across = (8 * factor for factor in self.subsampling)
        levels = F.pad(x, (0, -width % across, 0, -height % down), mode="replicate") * 127.5
        levels = levels - 0.5  # 0..255 minus 128; the chroma rows sum to 0, so all planes are centred at 0
        if x.shape[1] == 3:
            levels = torch.einsum("ij,bjhw->bihw", x.new_tensor(_TO_YCBCR), levels)
        tables = self._scaled_tables(x)
        # Planes and pixels are rounded to 8 bits before and after the coefficients are.
        if self.subsampling == (1, 1) or x.shape[1] == 1:
            levels = _round(self._quantize(_round(levels), tables))
        else:
            grey = _round(self._quantize(_round(levels[:, :1]), tables[:1]))
            colour = F.avg_pool2d(levels[:, 1:], self.subsampling)
            colour = _round(self._quantize(_round(colour), tables[1:]))
            # Decoders interpolate with a triangle filter.
            colour = F.interpolate(colour, size=grey.shape[2:], mode="bilinear", align_corners=False)
            levels = torch.cat([grey, _round(colour)], dim=1)
        if x.shape[1] == 3:
            levels = _round(torch.einsum("ij,bjhw->bihw", x.new_tensor(_TO_RGB), levels))
        return ((levels[:, :, :height, :width] + 0.5) / 127.5).clamp(-1.0, 1.0)

    @staticmethod
    def _quantize(planes: Tensor, table: Tensor) -> Tensor:
        """Round the cosine coefficients of 8 x 8 blocks to multiples of the tables; (B, C, H, W)."""
        cosine = planes.new_tensor(_COSINE)
        blocks = planes.reshape(*planes.shape[:2], planes.shape[2] // 8, 8, -1, 8)
        ratio = _round(torch.einsum("ui,bchiwj,vj->bchuwv", cosine, blocks, cosine) / table)
        blocks = torch.einsum("ui,bchuwv,vj->bchiwj", cosine, ratio * table, cosine)
        return blocks.flatten(4, 5).flatten(2, 3)

    def _scaled_tables(self, x: Tensor) -> Tensor:
        """Return the quantization tables of the planes of images, shape (C, 1, 8, 1, 8)."""
        tables = self.tables or _tables_of(self.quality or 1)
        planes = [tables[0], tables[-1], tables[-1]][: x.shape[1]]
        return x.new_tensor(planes).reshape(-1, 1, 8, 1, 8)


def _tables_of(quality: int) -> tuple[tuple[int, ...], ...]:
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return tuple(
        tuple(min(max((entry * scale + 50) // 100, 1), 255) for entry in table)
        for table in (_LUMINANCE, _CHROMINANCE)
    )


def _round(x: Tensor) -> Tensor:
    """Round to the nearest integers, with the gradient of the identity."""
    return x + (x.round() - x).detach()
