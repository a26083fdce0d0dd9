r"""Linear operators on single pixels or blocks, in closed form.

- Denoising: :math:`A = I`.
- Super-resolution by r: :math:`A` is the mean over blocks of :math:`r^d` pixels. Its rows are orthogonal,
  :math:`A A^T = r^{-d} I`, so :math:`A^+ = r^d A^T` copies each mean over its block.
- Inpainting: :math:`A = \mathrm{diag}(m)`, :math:`m \in \{0, 1\}`, is a projection, :math:`A^+ = A^T = A`.

With damping, :math:`(A^T A + \delta I)^{-1} A^T = A^T / (s^2 + \delta)` with :math:`s` the only nonzero
singular value.
"""

from __future__ import annotations

__all__ = ["AveragePool", "Identity", "Mask", "centre_box"]

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Operator, SameShapeOperator


class _Projection(SameShapeOperator):
    """Diagonal operator with entries 0 and 1."""

    def adjoint(self, y: Tensor) -> Tensor:
        """Return A y."""
        return self(y)

    def pseudo_inverse(
        self, y: Tensor, damping: float = 0.0, iterations: int = 100, tolerance: float = 1e-6
    ) -> Tensor:
        """Return A y / (1 + damping), exact."""
        return self(y) / (1.0 + damping)

    def norm(self, x: Tensor, iterations: int = 30) -> Tensor:
        """Return 1 for every row with an observed value, else 0; shape (B,)."""
        return self(torch.ones_like(x)).flatten(1).amax(1)


@dataclass(frozen=True)
class Identity(_Projection):
    """Identity A = I (denoising)."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return x, shape (B, C, *spatial)."""
        return x


@dataclass(frozen=True)
class AveragePool(Operator):
    """Means of blocks along all spatial axes (super-resolution), (B, C, H, W) to (B, C, H / r, W / r).

    Args:
        factor: Side r of a block in pixels.

    Example:
        >>> AveragePool(2)(torch.tensor([[[1.0, 3.0, 5.0, 7.0]]]))
        tensor([[[2., 6.]]])
    """

    factor: int

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise ValueError(f"the factor of AveragePool must be at least 1, got {self.factor}")

    def __call__(self, x: Tensor) -> Tensor:
        """Return the block means, shape (B, C, *[n / r for n in spatial])."""
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
        """Return the shape with each spatial size multiplied by r."""
        channels, *spatial = measurement_shape
        return (channels, *[n * self.factor for n in spatial])

    def adjoint(self, y: Tensor) -> Tensor:
        """Return A^T y: r^-d times each value, copied over its block."""
        return self._copies(y) * self._gain(y)

    def pseudo_inverse(
        self, y: Tensor, damping: float = 0.0, iterations: int = 100, tolerance: float = 1e-6
    ) -> Tensor:
        """Return A^T y / (r^-d + damping), exact; without damping each value copied over its block."""
        gain = self._gain(y)
        return self._copies(y) * (gain / (gain + damping))

    def norm(self, x: Tensor, iterations: int = 30) -> Tensor:
        """Return r^(-d/2) for every row, shape (B,)."""
        return x.new_full((x.shape[0],), self._gain(x) ** 0.5)

    def _gain(self, x: Tensor) -> float:
        return float(self.factor) ** (2 - x.ndim)

    def _copies(self, y: Tensor) -> Tensor:
        for axis in range(2, y.ndim):
            y = y.repeat_interleave(self.factor, dim=axis)
        return y


@dataclass(frozen=True, eq=False, repr=False)
class Mask(_Projection):
    """Inpainting, y = mask * x; missing values are 0 in y even where x is not finite.

    Args:
        mask: Mask, 1 or True for observed values and 0 for missing ones, (*spatial) or (C or 1, *spatial).
        batched: Whether the mask has a leading item axis, (B, C or 1, *spatial).

    Example:
        >>> Mask(torch.tensor([1, 0, 1]))(torch.tensor([[[1.0, 2.0, 3.0]]]))
        tensor([[[1., 0., 3.]]])
    """

    mask: Tensor
    batched: bool = False

    def __post_init__(self) -> None:
        mask = torch.as_tensor(self.mask)
        if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
            raise ValueError("a mask must be 1 where a value is observed and 0 elsewhere, nothing between")
        # A copy, so that later changes of the caller's tensor do not affect the operator.
        object.__setattr__(self, "mask", (mask != 0).clone())

    def __call__(self, x: Tensor) -> Tensor:
        """Return x where observed and 0 elsewhere, shape (B, C, *spatial)."""
        self._require_match(x)
        # Not a product, which would be NaN where a missing value is NaN or infinite.
        return torch.where(self.mask.to(x.device), x, 0.0)

    def observed(self, y: Tensor) -> Tensor:
        """Return the mask in y's dtype."""
        self._require_match(y)
        return self.mask.to(y)

    def select(self, rows: Tensor) -> Operator:
        """Return the operator with the masks of these rows."""
        return self if self.batch == 1 else Mask(self.mask[rows.to(self.mask.device)], batched=True)

    def to(self, *args: torch.device | str | torch.dtype) -> Operator:
        """Return the operator on another device; a mask is always Boolean."""
        mask = self.mask
        for target in args:
            mask = mask if isinstance(target, torch.dtype) else mask.to(target)
        return Mask(mask, self.batched)

    @property
    def batch(self) -> int:
        """Number of masks; 1 if all items share it."""
        return self.mask.shape[0] if self.batched else 1

    @property
    def measurement_ndim(self) -> int:
        """Number of axes of the mask without the batch, which y with a batch axis always exceeds."""
        return self.mask.ndim - self.batched

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
    """Return the mask without a centred box of half the image's side along every spatial axis.

    Args:
        shape: Image shape (C, *spatial).
    """
    mask = torch.ones(tuple(shape[1:]), dtype=torch.bool)
    mask[tuple(slice((n - n // 2) // 2, (n - n // 2) // 2 + n // 2) for n in shape[1:])] = False
    return Mask(mask)
