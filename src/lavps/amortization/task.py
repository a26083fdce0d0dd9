"""What a task of training is to the trainer."""

from __future__ import annotations

__all__ = ["Task"]

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn


class Task(Protocol):
    """What is trained, and how. A task with more than its network on the device has ``to(device)`` too."""

    @property
    def network(self) -> nn.Module:
        """What is trained; :meth:`loss` must call this very object."""
        ...

    def loss(self, images: Tensor, items: Sequence[int]) -> Tensor:
        """Loss per sample (B,): a function of images, items and weights, and of nothing else."""
        ...

    def validate(self, images: Tensor) -> dict[str, Any]:
        """Numbers, or lists of them, on the validation images; called with the averaged weights."""
        ...

    def preview(self) -> Tensor | None:
        """Images (N, C, H, W) in [-1, 1] to look at, if any."""
        ...

    def describe(self) -> dict[str, Any]:
        """The task in plain JSON values."""
        ...
