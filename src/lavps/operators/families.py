r"""Random families of operators :math:`p_{op}`, for training and for benchmarks.

A draw is a pure function of (seed, item): it does not depend on the batch, the device or the method.
The draws of several items form one operator with batched parameters.
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

from ..random import Purpose, generator
from .base import Operator
from .blur import Blur, gaussian_kernel
from .linear import Mask, centre_box
from .motion import motion_kernel


class OperatorFamily(ABC):
    """Distribution over operators."""

    @abstractmethod
    def draw(self, items: Sequence[int], shape: Sequence[int], seed: int = 0) -> Operator:
        """Draw one operator per item, as one operator with ``len(items)`` rows (or 1 if all are the same).

        Args:
            items: Item ids; the draw depends on the id, not on the position in the batch.
            shape: Image shape (C, *spatial).
            seed: Seed of the draws.
        """


@dataclass(frozen=True)
class FixedOperator(OperatorFamily):
    """Family with one member.

    Args:
        operator: Operator shared by all items.
    """

    operator: Operator

    def __post_init__(self) -> None:
        if self.operator.batch != 1:
            raise ValueError(
                f"{self.operator!r} has parameters for {self.operator.batch} items, but a fixed operator is "
                "shared by every item: take one row with select(torch.tensor([i]))"
            )

    def draw(self, items: Sequence[int], shape: Sequence[int], seed: int = 0) -> Operator:
        """Return the operator."""
        return self.operator


@dataclass(frozen=True)
class CentreBox(OperatorFamily):
    """Inpainting of a centred box of half the image's side; deterministic."""

    def draw(self, items: Sequence[int], shape: Sequence[int], seed: int = 0) -> Mask:
        """Return the mask of :func:`lavps.operators.centre_box`, shared by all items."""
        return centre_box(shape)


@dataclass(frozen=True)
class RandomRectangle(OperatorFamily):
    """Inpainting of a rectangle at a random position, shared by the channels.

    Args:
        low: Lower bound of the sides, which are uniformly distributed, as a fraction of the image's.
        high: Upper bound of the sides.

    Example:
        >>> RandomRectangle(0.25, 0.5).draw([0, 1], (3, 8, 8), seed=0)
        Mask((2, 1, 8, 8), batched=True)
    """

    low: float = 0.4
    high: float = 0.6

    def __post_init__(self) -> None:
        _require_range(self, 1.0)

    def draw(self, items: Sequence[int], shape: Sequence[int], seed: int = 0) -> Mask:
        """Draw masks (B, 1, *spatial)."""
        masks = torch.ones(len(items), 1, *shape[1:], dtype=torch.bool)
        for mask, rng in zip(masks, _generators(items, seed), strict=True):
            box: list[slice] = []
            for n in shape[1:]:
                side = round(n * rng.uniform(self.low, self.high))
                start = int(rng.integers(0, n - side, endpoint=True))
                box.append(slice(start, start + side))
            mask[0][tuple(box)] = False
        return Mask(masks, batched=True)


@dataclass(frozen=True)
class RandomPixels(OperatorFamily):
    """Inpainting of random pixels, shared by the channels.

    Args:
        low: Lower bound of the fraction missing, which is uniformly distributed per item.
        high: Upper bound of the fraction missing.
    """

    low: float = 0.8
    high: float = 0.85

    def __post_init__(self) -> None:
        _require_range(self, 1.0)

    def draw(self, items: Sequence[int], shape: Sequence[int], seed: int = 0) -> Mask:
        """Draw masks (B, 1, *spatial)."""
        masks = []
        for rng in _generators(items, seed):
            missing = rng.uniform(self.low, self.high)
            masks.append(torch.from_numpy(rng.uniform(size=(1, *shape[1:])) >= missing))
        return Mask(torch.stack(masks), batched=True)


@dataclass(frozen=True)
class MotionBlur(OperatorFamily):
    """Blur by camera shake, for images with two spatial axes; see :func:`lavps.operators.motion_kernel`.

    Args:
        size: Side of the kernel in pixels; the default suits images of 256 pixels.
        intensity: Extent and irregularity of the camera motion, in [0, 1].
        padding: Extension of the image beyond its border.
    """

    size: int = 21
    intensity: float = 0.9
    padding: Literal["reflect", "circular"] = "reflect"

    def draw(self, items: Sequence[int], shape: Sequence[int], seed: int = 0) -> Blur:
        """Draw blurs with kernels (B, size, size)."""
        if len(shape) != 3:
            raise ValueError(f"motion blur needs images (C, H, W), got shape {tuple(shape)}")
        kernels = [motion_kernel(self.size, self.intensity, rng) for rng in _generators(items, seed)]
        return Blur(torch.stack(kernels), self.padding, batched=True)


@dataclass(frozen=True)
class RandomGaussianBlur(OperatorFamily):
    """Gaussian blur of random width, for any number of spatial axes.

    Args:
        low: Lower bound of the standard deviation in pixels, which is uniformly distributed per item.
        high: Upper bound of the standard deviation.
        padding: Extension of the image beyond its border.
    """

    low: float
    high: float
    padding: Literal["reflect", "circular"] = "reflect"

    def __post_init__(self) -> None:
        _require_range(self, math.inf)
        if self.low == 0.0:
            raise ValueError("the standard deviation of a Gaussian blur must be positive; else use Identity")

    def draw(self, items: Sequence[int], shape: Sequence[int], seed: int = 0) -> Blur:
        """Draw blurs with kernels (B, *k)."""
        # The size is that of the widest kernel: it must not depend on the other items of the batch.
        size = 2 * math.ceil(3 * self.high) + 1
        widths = [rng.uniform(self.low, self.high) for rng in _generators(items, seed)]
        kernels = [gaussian_kernel(width, size, len(shape) - 1) for width in widths]
        return Blur(torch.stack(kernels), self.padding, batched=True)


def _generators(items: Sequence[int], seed: int) -> list[np.random.Generator]:
    return [generator(seed, int(item), Purpose.OPERATOR) for item in items]


def _require_range(family: RandomRectangle | RandomPixels | RandomGaussianBlur, limit: float) -> None:
    if not 0.0 <= family.low <= family.high <= limit:
        raise ValueError(f"{family!r} needs 0 <= low <= high <= {limit:g}")
