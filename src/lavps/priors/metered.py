"""Counting what a run spends on its denoiser."""

from __future__ import annotations

__all__ = ["MeteredPrior"]

from torch import Tensor

from ..schedule import Schedule
from .base import Prior


class MeteredPrior:
    """A prior that counts the images it denoises and the gradients that come back through them.

    One meter belongs to one run. Counts are in images: a call on a batch of 8 counts 8.

    Attributes:
        forwards: images denoised.
        backwards: images whose denoised estimate received a gradient.
    """

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self.forwards = 0
        self.backwards = 0

    @property
    def schedule(self) -> Schedule:
        """The schedule of the prior within."""
        return self.prior.schedule

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """D(x_t, t), counted."""
        self.forwards += len(x_t)
        x_0 = self.prior.denoise(x_t, t)
        if x_0.requires_grad:
            x_0.register_hook(self._count_backward)  # type: ignore[no-untyped-call]
        return x_0

    def _count_backward(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)
