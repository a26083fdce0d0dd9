"""Counting of denoiser evaluations."""

from __future__ import annotations

__all__ = ["CountingPrior"]

from torch import Tensor

from .protocol import Prior, WrappedPrior


class CountingPrior(WrappedPrior):
    """A prior that counts the images it denoises and the gradients through its denoiser.

    A call on a batch of 8 images counts as 8.

    Attributes:
        forwards: Number of images denoised.
        backwards: Number of images whose denoised estimate received a gradient.
    """

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self.forwards = self.backwards = 0

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Return D(x_t, t) and count the evaluation."""
        self.forwards += len(x_t)
        x_0 = self.prior.denoise(x_t, t)
        if x_0.requires_grad:
            x_0.register_hook(self._count_backward)  # type: ignore[no-untyped-call]
        return x_0

    def _count_backward(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)
