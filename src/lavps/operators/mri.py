r"""Magnetic resonance imaging: Fourier samples of an image from several coils.

.. math:: y_n = M F (S_n \odot x), \qquad n = 1 \dots N,

with :math:`S_n` the complex sensitivity of coil n, F the orthonormal Fourier transform over all spatial axes
(zero frequency in the middle) and M the sampling mask. Measurements are complex tensors on the full grid, 0
where not sampled, with noise :math:`E|noise|^2 = std^2`. Images are real with one channel, or complex with
two real channels. The adjoint, of which a real image takes the real part, is

.. math:: A^H y = \sum_n \bar{S}_n \odot F^{-1} M y_n.
"""

from __future__ import annotations

__all__ = ["MRI"]

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .autograd import linear_map
from .base import Operator


@dataclass(frozen=True, eq=False, repr=False)
class MRI(Operator):
    """Masked multi-coil Fourier transform, from (B, 1 or 2, *spatial) to complex (B, N, *spatial).

    Args:
        mask: Mask (*spatial), 1 for sampled frequencies and 0 elsewhere, zero frequency in the middle.
        coils: Complex sensitivities (N, *spatial); None for one coil of sensitivity 1.
        complex_image: Whether images have two channels, real and imaginary part, instead of one.
        batched: Whether mask and coils have a leading item axis, (B or 1, *spatial), (B or 1, N, *spatial).

    Example:
        >>> scanner = MRI(mask=torch.ones(4, 4))
        >>> scanner(torch.ones(1, 1, 4, 4))[0, 0, 2].abs()
        tensor([0., 0., 4., 0.])
    """

    mask: Tensor
    coils: Tensor | None = None
    complex_image: bool = False
    batched: bool = False

    def __post_init__(self) -> None:
        mask = torch.as_tensor(self.mask)
        if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
            raise ValueError("a mask must be 1 where a frequency is sampled and 0 elsewhere, nothing between")
        # Copies with an item axis, so that later changes of the caller's tensors do not affect the operator.
        mask = (mask != 0).clone() if self.batched else (mask != 0)[None].clone()
        coils = torch.ones_like(mask, dtype=torch.complex64)[:, None] if self.coils is None else self.coils
        coils = coils.clone() if self.batched or self.coils is None else coils[None].clone()
        spatial = mask.ndim - 1
        if coils.ndim != mask.ndim + 1 or coils.shape[2:] != mask.shape[1:]:
            raise ValueError(
                f"a mask {tuple(mask.shape[1:])} needs coils (N, {', '.join(map(str, mask.shape[1:]))}), got "
                f"{tuple(coils.shape[-spatial - 1 :])}; pass batched=True for one mask or coil set per item"
            )
        if len({len(mask), len(coils)} - {1}) > 1:
            raise ValueError(f"masks for {len(mask)} items, coils for {len(coils)}: pass one, or as many")
        object.__setattr__(self, "mask", mask)
        object.__setattr__(self, "coils", coils)
        object.__setattr__(self, "batched", True)

    def __call__(self, x: Tensor) -> Tensor:
        """Return M F S x, complex (B, N, *spatial)."""
        self._require_rows(x)
        channels = 2 if self.complex_image else 1
        if x.shape[1] != channels or x.shape[2:] != self.mask.shape[1:]:
            expected = (channels, *self.mask.shape[1:])
            raise ValueError(f"{self!r} needs images {expected}, got {tuple(x.shape[1:])}")
        return linear_map(x, self._forward, self._backward)

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape with one channel, or two for a complex image, instead of the coils."""
        return (2 if self.complex_image else 1, *measurement_shape[1:])

    def observed(self, y: Tensor) -> Tensor:
        """Return the mask, shape (B or 1, 1, *spatial)."""
        return self.mask[:, None].to(y.device, y.real.dtype)

    def select(self, rows: Tensor) -> Operator:
        """Return the operator with the masks and coils of these rows."""
        rows = rows.to(self.mask.device)
        mask, coils = (part if len(part) == 1 else part[rows] for part in (self.mask, self._coils))
        return self if self.batch == 1 else MRI(mask, coils, self.complex_image, batched=True)

    def to(self, *args: torch.device | str | torch.dtype) -> Operator:
        """Return the operator on another device; its precision is that of the images."""
        mask, coils = self.mask, self._coils
        for target in args:
            if not isinstance(target, torch.dtype):
                mask, coils = mask.to(target), coils.to(target)
        return MRI(mask, coils, self.complex_image, batched=True)

    @property
    def batch(self) -> int:
        """Number of masks or sets of coils; 1 if all items share them."""
        return max(len(self.mask), len(self._coils))

    @property
    def measurement_ndim(self) -> int:
        """Number of axes of the samples (N, *spatial)."""
        return self.mask.ndim

    def adjoint(self, y: Tensor) -> Tensor:
        """Return A^H y, shape (B, 1 or 2, *spatial)."""
        return linear_map(y, self._backward, self._forward)

    @property
    def _coils(self) -> Tensor:
        assert self.coils is not None  # set by __post_init__
        return self.coils

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(2, self.mask.ndim + 1))

    def _forward(self, x: Tensor) -> Tensor:
        image = torch.complex(x[:, 0], x[:, 1]) if self.complex_image else x[:, 0].to(x.dtype.to_complex())
        seen = torch.fft.ifftshift(self._coils.to(image) * image[:, None], dim=self._axes)
        samples = torch.fft.fftshift(torch.fft.fftn(seen, dim=self._axes, norm="ortho"), dim=self._axes)
        return torch.where(self.mask[:, None].to(x.device), samples, 0.0)

    def _backward(self, y: Tensor) -> Tensor:
        masked = torch.fft.ifftshift(torch.where(self.mask[:, None].to(y.device), y, 0.0), dim=self._axes)
        seen = torch.fft.fftshift(torch.fft.ifftn(masked, dim=self._axes, norm="ortho"), dim=self._axes)
        image = (self._coils.to(y).conj() * seen).sum(1)
        return torch.stack([image.real, image.imag], 1) if self.complex_image else image.real[:, None]

    def __repr__(self) -> str:
        shape = tuple(self.mask.shape[1:])
        return f"MRI({shape}, {self._coils.shape[1]} coils, complex_image={self.complex_image})"
