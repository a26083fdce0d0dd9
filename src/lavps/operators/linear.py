r"""Linear operators that act on each pixel or block alone, with everything in closed form.

- denoising: :math:`A = I`;
- super-resolution by r: :math:`A` is the mean over blocks of :math:`r^d` pixels, whose rows are orthogonal,
  :math:`A A^T = r^{-d} I`, so :math:`A^+ = r^d A^T` copies each mean over its block;
- inpainting: :math:`A = \mathrm{diag}(m)` with :math:`m \in \{0, 1\}`, a projection, so
  :math:`A^+ = A^T = A`.

With damping, :math:`(A^T A + \delta I)^{-1} A^T` scales :math:`A^T` by :math:`1 / (s^2 + \delta)`, where
:math:`s` is the one singular value these operators have besides 0.
"""

from __future__ import annotations

__all__ = ["AveragePool", "Identity", "Mask", "centre_box"]

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Operator


@dataclass(frozen=True)
class Identity(Operator):
    """A = I: the measurement is the noisy image itself (denoising)."""

    def __call__(self, x: Tensor) -> Tensor:
        """x, shape (B, C, *spatial)."""
        return x

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """The measurement's own shape."""
        return tuple(measurement_shape)

    def adjoint(self, y: Tensor) -> Tensor:
        """Y itself."""
        return y

    def pseudo_inverse(
        self, y: Tensor, damping: float = 0.0, iterations: int = 100, tolerance: float = 1e-6
    ) -> Tensor:
        """Y / (1 + damping), exact."""
        return y / (1.0 + damping)

    def norm(self, x: Tensor, iterations: int = 30) -> Tensor:
        """1 for every row, shape (B,)."""
        return x.new_ones(x.shape[0])


@dataclass(frozen=True)
class AveragePool(Operator):
    """Super-resolution: the mean of blocks of ``factor`` pixels a side, over all spatial axes.

    (B, C, H, W) gives (B, C, H / r, W / r), and likewise for signals and volumes.

    Args:
        factor: r, the side of a block.
    """

    factor: int

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise ValueError(f"the factor of AveragePool must be at least 1, got {self.factor}")

    def __call__(self, x: Tensor) -> Tensor:
        """Block means, shape (B, C, *[n / r for n in spatial])."""
        spatial, r = x.shape[2:], self.factor
        if any(n % r for n in spatial):
            raise ValueError(
                f"AveragePool({r}) needs sizes divisible by {r}, got {tuple(spatial)}: "
                f"crop or pad the image to {tuple(n - n % r for n in spatial)} or "
                f"{tuple(n + -n % r for n in spatial)}"
            )
        blocks = x.reshape(*x.shape[:2], *[part for n in spatial for part in (n // r, r)])
        return blocks.mean(dim=tuple(range(3, blocks.ndim, 2)))

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """Each spatial size times r."""
        channels, *spatial = measurement_shape
        return (channels, *[n * self.factor for n in spatial])

    def adjoint(self, y: Tensor) -> Tensor:
        """Each value spread evenly over its block: r^-d in every pixel."""
        return self._copies(y) * self._gain(y)

    def pseudo_inverse(
        self, y: Tensor, damping: float = 0.0, iterations: int = 100, tolerance: float = 1e-6
    ) -> Tensor:
        """A^T y / (r^-d + damping), exact; without damping each value copied over its block."""
        gain = self._gain(y)
        return self._copies(y) * (gain / (gain + damping))

    def norm(self, x: Tensor, iterations: int = 30) -> Tensor:
        """r^(-d/2) for every row, shape (B,)."""
        return x.new_full((x.shape[0],), self._gain(x) ** 0.5)

    def _gain(self, x: Tensor) -> float:
        return float(self.factor) ** (2 - x.ndim)

    def _copies(self, y: Tensor) -> Tensor:
        for axis in range(2, y.ndim):
            y = y.repeat_interleave(self.factor, dim=axis)
        return y


@dataclass(frozen=True, eq=False, repr=False)
class Mask(Operator):
    """Inpainting: y = mask * x, of the image's shape; what is missing is 0 in y, whatever x is there.

    Args:
        mask: 1 (or True) where a value is observed, 0 where it is missing. Without ``batched``, of shape
            (*spatial) or (C or 1, *spatial) and shared by all items.
        batched: the first axis counts items: (B, C or 1, *spatial), one mask per row.
    """

    mask: Tensor
    batched: bool = False

    def __post_init__(self) -> None:
        mask = torch.as_tensor(self.mask)
        if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
            raise ValueError("a mask holds 1 where a value is observed and 0 elsewhere, nothing between")
        # A copy: the operator stays what it is when the caller's tensor changes.
        object.__setattr__(self, "mask", (mask != 0).clone())

    def __call__(self, x: Tensor) -> Tensor:
        """X where observed, 0 elsewhere, shape (B, C, *spatial)."""
        self._require_match(x)
        # Not a product: a NaN or infinity in a missing place must not reach the measurement.
        return torch.where(self.mask.to(x.device), x, 0.0)

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """The measurement's own shape."""
        return tuple(measurement_shape)

    def observed(self, y: Tensor) -> Tensor:
        """The mask, in y's dtype."""
        return self.mask.to(y)

    def select(self, rows: Tensor) -> Operator:
        """The masks of these rows."""
        return self if self.batch == 1 else Mask(self.mask[rows.to(self.mask.device)], batched=True)

    def to(self, *args: torch.device | str | torch.dtype) -> Operator:
        """The operator on another device; a mask has no dtype of its own."""
        mask = self.mask
        for target in args:
            mask = mask if isinstance(target, torch.dtype) else mask.to(target)
        return Mask(mask, self.batched)

    @property
    def batch(self) -> int:
        """Number of masks: 1 when shared by all items."""
        return self.mask.shape[0] if self.batched else 1

    def adjoint(self, y: Tensor) -> Tensor:
        """Mask * y."""
        return self(y)

    def pseudo_inverse(
        self, y: Tensor, damping: float = 0.0, iterations: int = 100, tolerance: float = 1e-6
    ) -> Tensor:
        """Mask * y / (1 + damping), exact."""
        return self(y) / (1.0 + damping)

    def norm(self, x: Tensor, iterations: int = 30) -> Tensor:
        """1 for every row with anything observed, else 0; shape (B,)."""
        return self(torch.ones_like(x)).flatten(1).amax(1)

    def _require_match(self, x: Tensor) -> None:
        self._require_rows(x)
        axes = (x.ndim,) if self.batched else (x.ndim - 1, x.ndim - 2)
        sizes = tuple(self.mask.shape)
        if len(sizes) not in axes or any(
            m not in (1, n) for m, n in zip(sizes[::-1], x.shape[::-1], strict=False)
        ):
            expected = "(B, C or 1, *spatial)" if self.batched else "(*spatial) or (C or 1, *spatial)"
            raise ValueError(
                f"{self!r} does not fit images {tuple(x.shape)}: its shape must be {expected}"
                + ("" if self.batched else "; for one mask per item pass batched=True")
            )

    def __repr__(self) -> str:
        return f"Mask({tuple(self.mask.shape)}, batched={self.batched})"


def centre_box(shape: Sequence[int]) -> Mask:
    """The mask that misses a centred box of half the image's side along every spatial axis.

    Args:
        shape: image shape (C, *spatial).
    """
    mask = torch.ones(tuple(shape[1:]), dtype=torch.bool)
    mask[tuple(slice((n - n // 2) // 2, (n - n // 2) // 2 + n // 2) for n in shape[1:])] = False
    return Mask(mask)
