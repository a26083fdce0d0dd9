"""Augmentation of training images: mirroring and quarter turns, functions of (seed, item)."""

from __future__ import annotations

__all__ = ["Augmentation"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..random import NoiseStreams, Purpose


@dataclass(frozen=True)
class Augmentation:
    """Random mirroring and quarter turns; both together are the eight symmetries of a square.

    Attributes:
        flip: Horizontal mirroring of half of the samples.
        quarter_turns: Rotation by 0, 90, 180 or 270 degrees, with equal probability; square images only.
        seed: Seed of the draws.

    Example:
        >>> import torch
        >>> images = torch.arange(4.0).reshape(1, 1, 2, 2).expand(200, 1, 2, 2)
        >>> augmented = Augmentation(flip=True, quarter_turns=True)(images, range(200))
        >>> len(augmented.unique(dim=0))
        8
    """

    flip: bool = False
    quarter_turns: bool = False
    seed: int = 0

    def __call__(self, images: Tensor, items: Sequence[int]) -> Tensor:
        """Return the images (B, C, H, W) as training samples ``items``."""
        streams = NoiseStreams.from_seed(len(items), self.seed, items)
        if self.flip:
            mirrored = streams.uniform(Purpose.AUGMENTATION) < 0.5
            images = torch.where(mirrored.reshape(-1, 1, 1, 1), images.flip(-1), images)
        if self.quarter_turns:
            turns = (4.0 * streams.uniform(Purpose.AUGMENTATION, index=1)).long().tolist()
            images = torch.stack(
                [image.rot90(turn, (-2, -1)) for image, turn in zip(images, turns, strict=True)]
            )
        return images

    def check(self, shape: Sequence[int]) -> None:
        """Raise ValueError if images of this shape (C, *spatial) cannot be turned."""
        if self.quarter_turns and (len(shape) != 3 or shape[1] != shape[2]):
            raise ValueError(f"quarter turns need square images, not the shape {tuple(shape)}")

    def describe(self) -> dict[str, Any]:
        """Return JSON values that must not change between a run and its continuation."""
        return {"flip": self.flip} | ({"quarter_turns": True} if self.quarter_turns else {})
