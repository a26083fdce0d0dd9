r"""Blur: convolution of every channel with the same kernel.

.. math:: y_n = \sum_j k_j\, x_{n + c - j}, \qquad c = \lfloor \text{size} / 2 \rfloor,

with :math:`x` extended periodically or by reflection (without repeating the border pixel). The image size is
preserved, and a kernel concentrated at index :math:`c` is the identity.

With circular padding the discrete Fourier transform diagonalizes the convolution,
:math:`A = F^{-1} \mathrm{diag}(\hat k) F`, so the adjoint, the pseudo-inverse and the norm are exact.
Reflection pads, convolves on the larger periodic grid and crops, :math:`A = C K P`. Its adjoint is
:math:`P^T K^T C^T`; its pseudo-inverse uses conjugate gradients. The cost does not depend on the kernel size.
"""

from __future__ import annotations

__all__ = ["Blur", "gaussian_kernel"]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .base import Operator, SameShapeOperator

# The last transfer function of every blur, with its size, dtype and device.
_TRANSFERS: WeakKeyDictionary[Blur, tuple[tuple[object, ...], Tensor]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False, repr=False)
class Blur(SameShapeOperator):
    """Convolution with a kernel shared by the channels.

    The undamped pseudo-inverse amplifies the noise of a frequency attenuated to 1e-4 by 1e4: on measured data
    pass ``damping`` near the noise variance.

    Args:
        kernel: Kernel (*k), one axis per spatial axis of the images, of odd or even sizes.
        padding: Extension of the image beyond its border.
        batched: Whether the kernel has a leading item axis, (B, *k).

    Example:
        >>> blur = Blur(torch.tensor([0.25, 0.5, 0.25]), padding="circular")
        >>> blur(torch.tensor([[[0.0, 4.0, 0.0, 0.0]]])).round()
        tensor([[[1., 2., 1., 0.]]])
    """

    kernel: Tensor
    padding: Literal["reflect", "circular"] = "reflect"
    batched: bool = False

    def __post_init__(self) -> None:
        kernel = torch.as_tensor(self.kernel).detach()
        if self.padding not in ("reflect", "circular"):
            raise ValueError(f'padding must be "reflect" or "circular", got {self.padding!r}')
        if not kernel.is_floating_point() or kernel.ndim <= self.batched or kernel.numel() == 0:
            got = f"{kernel.dtype} of shape {tuple(kernel.shape)}"
            raise ValueError(f"a kernel must be a real tensor (*k), got {got}")
        # A copy, so that later changes of the caller's tensor do not affect the operator.
        object.__setattr__(self, "kernel", kernel.clone())

    def __call__(self, x: Tensor) -> Tensor:
        """Return the blurred images, shape (B, C, *spatial)."""
        self._require_fit(x)
        work = _at_least_single(x)
        for axis, (left, right) in self._margins():
            work = _reflect(work, axis, left, right)
        blurred = self._convolve(work)
        for axis, (left, _) in self._margins():
            blurred = blurred.narrow(axis, left, x.shape[axis])
        return blurred.to(x.dtype)

    def adjoint(self, y: Tensor) -> Tensor:
        """Return A^T y, exact: correlate with the kernel and fold the margins back into the image."""
        self._require_fit(y)
        margins = [m for _, pair in self._margins()[::-1] for m in pair]
        work = torch.nn.functional.pad(_at_least_single(y), margins)
        correlated = self._convolve(work, transpose=True)
        for axis, (left, right) in self._margins():
            correlated = _reflect_transpose(correlated, axis, left, right)
        return correlated.to(y.dtype)

    def pseudo_inverse(
        self, y: Tensor, damping: float = 0.0, iterations: int = 100, tolerance: float = 1e-6
    ) -> Tensor:
        """Return (A^T A + damping I)^+ A^T y: exact for circular padding, else by conjugate gradients.

        For circular padding without damping, frequencies whose gain is below machine epsilon times the image
        size, relative to the largest gain, are set to 0.
        """
        self._require_fit(y)
        work = _at_least_single(y)
        if self.padding == "reflect":
            return super().pseudo_inverse(work, damping, iterations, tolerance).to(y.dtype)
        spatial = work.shape[2:]
        transfer = self._transfer(spatial, work)
        power = transfer.abs().square()
        largest = power.flatten(1).amax(1).reshape(-1, *[1] * (power.ndim - 1))
        rcond = torch.finfo(work.dtype).eps * max(spatial)
        passed = (power > rcond**2 * largest) | (damping > 0)
        inverse = torch.where(passed, transfer.conj() / torch.where(passed, power + damping, 1.0), 0.0)
        return _filter(work, inverse).to(y.dtype)

    def norm(self, x: Tensor, iterations: int = 30) -> Tensor:
        """Return the largest singular value, shape (B,); exact for circular padding."""
        if self.padding == "reflect":
            return super().norm(x, iterations)
        self._require_fit(x)
        largest = self._transfer(x.shape[2:], _at_least_single(x)).abs().flatten(1).amax(1)
        return largest.expand(x.shape[0]).to(x.dtype)

    def select(self, rows: Tensor) -> Operator:
        """Return the operator with the kernels of these rows."""
        if self.batch == 1:
            return self
        return Blur(self.kernel[rows.to(self.kernel.device)], self.padding, batched=True)

    def to(self, *args: torch.device | str | torch.dtype) -> Operator:
        """Return the operator with its kernel on another device or in another dtype."""
        kernel = self.kernel
        for target in args:
            kernel = kernel.to(target)
        return Blur(kernel, self.padding, self.batched)

    @property
    def batch(self) -> int:
        """Number of kernels; 1 if all items share it."""
        return self.kernel.shape[0] if self.batched else 1

    @property
    def measurement_ndim(self) -> int:
        """Number of axes of an image (C, *spatial)."""
        return 1 + len(self.size)

    @property
    def size(self) -> tuple[int, ...]:
        """Kernel size along each spatial axis."""
        return tuple(self.kernel.shape[int(self.batched) :])

    def power(self, spatial: Sequence[int], like: Tensor) -> Tensor:
        """Return the squared gain at all frequencies of a periodic image, shape (B or 1, 1, *spatial)."""
        transform: Tensor = torch.fft.fftn(self._placed(spatial, like), dim=tuple(range(2, like.ndim)))
        return transform.abs().square()

    def _convolve(self, x: Tensor, transpose: bool = False) -> Tensor:
        transfer = self._transfer(x.shape[2:], x)
        return _filter(x, transfer.conj() if transpose else transfer)

    def _transfer(self, spatial: Sequence[int], like: Tensor) -> Tensor:
        """Return the kernel's transform on a periodic grid, (B or 1, 1, *frequencies)."""
        key, kept = (tuple(spatial), like.dtype, like.device), _TRANSFERS.get(self)
        if kept is None or kept[0] != key:
            with torch.inference_mode(False), torch.no_grad():
                placed = self._placed(spatial, like)
                kept = _TRANSFERS[self] = (key, torch.fft.rfftn(placed, dim=tuple(range(2, like.ndim))))
        return kept[1]

    def _placed(self, spatial: Sequence[int], like: Tensor) -> Tensor:
        """Return the kernel on a periodic grid, origin at 0, (B or 1, 1, *spatial)."""
        kernel = self.kernel.to(like).reshape(self.batch, 1, *self.size)
        margin = [m for n, k in zip(spatial, self.size, strict=True) for m in (n - k, 0)]
        axes = tuple(range(2, like.ndim))
        return torch.nn.functional.pad(kernel, margin[::-1]).roll([-(k // 2) for k in self.size], axes)

    def _margins(self) -> list[tuple[int, tuple[int, int]]]:
        """Return every padded axis with its padding before and after the image."""
        if self.padding == "circular":
            return []
        return [(axis, (k - 1 - k // 2, k // 2)) for axis, k in enumerate(self.size, start=2)]

    def _require_fit(self, x: Tensor) -> None:
        self._require_rows(x)
        if x.ndim - 2 != len(self.size):
            raise ValueError(
                f"{self!r} blurs {len(self.size)} spatial axes, the images have {x.ndim - 2} "
                f"(shape {tuple(x.shape)}); for one kernel per item, (B, *k), pass batched=True"
            )
        least = self.size if self.padding == "circular" else tuple(k // 2 + 1 for k in self.size)
        if any(n < k for n, k in zip(x.shape[2:], least, strict=True)):
            raise ValueError(
                f"{self!r} needs images of at least {least} pixels for {self.padding} padding, "
                f"got {tuple(x.shape[2:])}: use a smaller kernel"
            )

    def __repr__(self) -> str:
        return f"Blur(kernel {tuple(self.kernel.shape)}, padding={self.padding!r}, batched={self.batched})"


def _at_least_single(x: Tensor) -> Tensor:
    # torch.fft supports single and double precision only; features may be in half precision.
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _filter(x: Tensor, transfer: Tensor) -> Tensor:
    axes = tuple(range(2, x.ndim))
    filtered: Tensor = torch.fft.irfftn(torch.fft.rfftn(x, dim=axes) * transfer, s=x.shape[2:], dim=axes)
    return filtered


def _reflect(x: Tensor, axis: int, left: int, right: int) -> Tensor:
    # Slices instead of an index, whose gradient is not deterministic on a GPU.
    before = x.narrow(axis, 1, left).flip(axis)
    after = x.narrow(axis, x.shape[axis] - 1 - right, right).flip(axis)
    return torch.cat([before, x, after], dim=axis)


def _reflect_transpose(y: Tensor, axis: int, left: int, right: int) -> Tensor:
    size = y.shape[axis] - left - right
    folded = y.narrow(axis, left, size).clone()
    folded.narrow(axis, 1, left).add_(y.narrow(axis, 0, left).flip(axis))
    folded.narrow(axis, size - 1 - right, right).add_(y.narrow(axis, left + size, right).flip(axis))
    return folded


def gaussian_kernel(std: float, size: int | None = None, dims: int = 2) -> Tensor:
    """Return a Gaussian kernel with sum 1, float32, shape (size,) * dims, centred at index size // 2.

    Args:
        std: Standard deviation in pixels.
        size: Side of the kernel in pixels; by default it covers three standard deviations on either side.
        dims: Number of spatial axes.
    """
    if std <= 0:
        raise ValueError(f"the standard deviation of a Gaussian kernel must be positive, got {std}")
    size = 2 * math.ceil(3 * std) + 1 if size is None else size
    profile = torch.exp(-0.5 * ((torch.arange(size, dtype=torch.float64) - size // 2) / std) ** 2)
    profile = profile / profile.sum()
    kernel = profile
    for _ in range(dims - 1):
        kernel = kernel.unsqueeze(-1) * profile
    return kernel.float()
