r"""Random families of operators :math:`p_{op}`: what a model is trained on, what a benchmark draws.

A draw is a pure function of (seed, item): the operator of item 7 is the same alone, in any batch, on any
device and for every method compared on it. One draw per item; the result is one operator with batched
parameters.
"""

from __future__ import annotations

__all__ = [
    "CentreBox",
    "FixedOperator",
    "MotionBlur",
    "OperatorFamily",
    "RandomGaussianBlur",
    "RandomPixels",
    "RandomRectangle",
]

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..random import Purpose, generator
from .base import Operator
from .blur import Blur, gaussian_kernel
from .linear import Mask, centre_box
from .motion import motion_kernel


class OperatorFamily(ABC):
    """A distribution over operators."""

    @abstractmethod
    def draw(self, items: Sequence[int], shape: Sequence[int], seed: int = 0) -> Operator:
        """One operator per item, as one operator with ``len(items)`` rows (or 1, if all are the same).

        Args:
            items: item ids; the id, not its place in the batch, decides the draw.
            shape: image shape (C, *spatial).
            seed: the same (seed, item) gives the same operator, always.
        """


@dataclass(frozen=True)
class FixedOperator(OperatorFamily):
    """The family with one member.

    Args:
        operator: an operator shared by all items.
    """

    operator: Operator

    def __post_init__(self) -> None:
        if self.operator.batch != 1:
            raise ValueError(
                f"{self.operator!r} has parameters for {self.operator.batch} items; a fixed operator serves "
                "every item: take one row with select(torch.tensor([i]))"
            )

    def draw(self, items: Sequence[int], shape: Sequence[int], seed: int = 0) -> Operator:
        """The operator itself."""
        return self.operator


@dataclass(frozen=True)
class CentreBox(OperatorFamily):
    """Inpainting of a centred box of half the image's side; nothing is random."""

    def draw(self, items: Sequence[int], shape: Sequence[int], seed: int = 0) -> Mask:
        """The mask of :func:`lavps.operators.centre_box`, shared by all items."""
        return centre_box(shape)


@dataclass(frozen=True)
class RandomRectangle(OperatorFamily):
    """Inpainting of a rectangle anywhere in the image; channels share it.

    Args:
        low: least side of the rectangle, as a fraction of the image's side along the same axis.
        high: largest side; every side is uniform between the two.
    """

    low: float = 0.4
    high: float = 0.6

    def __post_init__(self) -> None:
        _require_range(self, self.low, self.high, 1.0)

    def draw(self, items: Sequence[int], shape: Sequence[int], seed: int = 0) -> Mask:
        """Masks (B, 1, *spatial)."""

        def missing(rng: np.random.Generator) -> Tensor:
            mask = torch.ones(1, *shape[1:], dtype=torch.bool)
            box: list[slice] = []
            for n in shape[1:]:
                side = round(n * rng.uniform(self.low, self.high))
                start = int(rng.integers(0, n - side, endpoint=True))
                box.append(slice(start, start + side))
            mask[0][tuple(box)] = False
            return mask

        return Mask(torch.stack([missing(rng) for rng in _generators(items, seed)]), batched=True)


@dataclass(frozen=True)
class RandomPixels(OperatorFamily):
    """Inpainting of scattered pixels, each missing with a probability drawn per item; channels share them.

    Args:
        low: least probability of a pixel to be missing.
        high: largest; the item's probability is uniform between the two.
    """

    low: float = 0.8
    high: float = 0.85

    def __post_init__(self) -> None:
        _require_range(self, self.low, self.high, 1.0)

    def draw(self, items: Sequence[int], shape: Sequence[int], seed: int = 0) -> Mask:
        """Masks (B, 1, *spatial)."""

        def observed(rng: np.random.Generator) -> Tensor:
            missing = rng.uniform(self.low, self.high)
            return torch.from_numpy(rng.uniform(size=(1, *shape[1:])) >= missing)

        return Mask(torch.stack([observed(rng) for rng in _generators(items, seed)]), batched=True)


@dataclass(frozen=True)
class MotionBlur(OperatorFamily):
    """Blur by camera shake, see :func:`lavps.operators.motion_kernel`; two spatial axes.

    Args:
        size: side of the kernel in pixels; 21 belongs to images of 256 pixels, scale it with them.
        intensity: in [0, 1], how far and how crookedly the camera moves.
        padding: how the image continues beyond its border.
    """

    size: int = 21
    intensity: float = 0.9
    padding: Literal["reflect", "circular"] = "reflect"

    def draw(self, items: Sequence[int], shape: Sequence[int], seed: int = 0) -> Blur:
        """Blurs with kernels (B, size, size)."""
        if len(shape) != 3:
            raise ValueError(f"motion blur is for images (C, H, W), got shape {tuple(shape)}")
        kernels = [motion_kernel(self.size, self.intensity, rng) for rng in _generators(items, seed)]
        return Blur(torch.stack(kernels), self.padding, batched=True)


@dataclass(frozen=True)
class RandomGaussianBlur(OperatorFamily):
    """Blur by a Gaussian of random width, over any number of spatial axes.

    Args:
        low: least standard deviation in pixels.
        high: largest; the item's is uniform between the two.
        padding: how the image continues beyond its border.
    """

    low: float
    high: float
    padding: Literal["reflect", "circular"] = "reflect"

    def __post_init__(self) -> None:
        _require_range(self, self.low, self.high, math.inf)
        if self.low == 0.0:
            raise ValueError(
                "the standard deviation of a Gaussian blur must be positive; use Identity for none"
            )

    def draw(self, items: Sequence[int], shape: Sequence[int], seed: int = 0) -> Blur:
        """Blurs with kernels (B, *k)."""
        # The size is that of the widest member, or the kernel of an item would depend on its neighbours.
        size = 2 * math.ceil(3 * self.high) + 1
        widths = [rng.uniform(self.low, self.high) for rng in _generators(items, seed)]
        kernels = [gaussian_kernel(width, size, len(shape) - 1) for width in widths]
        return Blur(torch.stack(kernels), self.padding, batched=True)


def _generators(items: Sequence[int], seed: int) -> list[np.random.Generator]:
    return [generator(seed, int(item), Purpose.OPERATOR) for item in items]


def _require_range(family: OperatorFamily, low: float, high: float, limit: float) -> None:
    if not 0.0 <= low <= high <= limit:
        raise ValueError(f"{family!r} needs 0 <= low <= high <= {limit:g}")
