"""The interface between training tasks and the trainer."""

from __future__ import annotations

__all__ = ["Task"]

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn


class Task(Protocol):
    """A network with its loss. A task with more modules than its network also has ``to(device)``."""

    @property
    def network(self) -> nn.Module:
        """Network to train; :meth:`loss` must call this very object."""

    def loss(self, images: Tensor, items: Sequence[int]) -> Tensor:
        """Return the loss per sample (B,), a function of images, items and weights only."""

    def validate(self, images: Tensor) -> dict[str, Any]:
        """Return numbers, or lists of them, on the validation images; the first is the loss.

        It is called with the averaged weights, and the loss chooses among averages of several lengths.
        """

    def preview(self) -> Tensor | None:
        """Return preview images (N, C, H, W) in [-1, 1], if any."""

    def describe(self) -> dict[str, Any]:
        """Return the task as JSON values."""
