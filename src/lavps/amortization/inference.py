r"""Training an inference model: the objective itself is the loss (the paper's Eq. 17, Algorithm 1).

.. math:: \min_\varphi E_c [ L(\mu_\varphi(c), \lambda_\varphi(c); c) ]

The gradient passes through the frozen denoiser into the model: what inference pays at every step of every
image, training pays once.
"""

from __future__ import annotations

__all__ = ["InferenceTask"]

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..random import NoiseStreams, Purpose
from ..variational import Context, Objective
from .contexts import ContextSource
from .model import InferenceModel


class InferenceTask:
    """What the trainer needs to train an :class:`InferenceModel`.

    Args:
        model: the model.
        source: the contexts it is trained on.
        description: plain values for the checkpoint (operator family, prior's hash, ...).
    """

    def __init__(
        self, model: InferenceModel, source: ContextSource, description: dict[str, Any] | None = None
    ) -> None:
        self.network: nn.Module = model
        self.source = source
        self.description = description or {}

    def to(self, device: torch.device | str) -> None:
        """Bring the frozen denoiser to where the model is trained."""
        frozen = getattr(self.source.prior, "network", None)
        if isinstance(frozen, nn.Module):
            frozen.to(device).requires_grad_(False)

    def loss(self, images: Tensor, items: Sequence[int]) -> Tensor:
        """L(model(c); c) per pixel (B,), c drawn for these items."""
        context = self.source.draw(images, items, self.network)
        # A rollout leaves the half-precision weights of autocast behind, cast without a graph: with them no
        # gradient would reach the model.
        torch.clear_autocast_cache()
        return self._losses(context, items, self.network(context)) / context.x_t[0].numel()

    @torch.no_grad()
    def validate(self, images: Tensor) -> dict[str, float | list[float]]:
        """Loss of the warm start and of the zero-shot start by tenths of the time, and how often it wins."""
        items = range(-1, -1 - len(images), -1)  # never met in training
        context = self.source.draw(images, items, self.network)
        warm = self._losses(context, items, self.network(context))
        zero = self._losses(context, items, context.bridge)
        result: dict[str, float | list[float]] = {
            "warm": float(warm.mean()),
            "zero": float(zero.mean()),
            "acceptance": float((warm <= zero).double().mean()),
        }
        bins = (context.t * 10).long().clamp(max=9)
        for name, values in (("warm_by_time", warm), ("zero_by_time", zero)):
            result[name] = [float(values[bins == b].mean()) for b in range(10)]
        return result

    def preview(self) -> Tensor | None:
        """Nothing to look at: a warm start is not an image."""
        return None

    def describe(self) -> dict[str, Any]:
        """Family, noise, window and contexts in plain values."""
        source = self.source
        return {
            "kind": "inference",
            "sampler": type(source.sampler).__name__,
            "num_steps": source.sampler.num_steps,
            "window": list(source.window),
            "step_counts": list(source.step_counts),
            "midpoint": repr(source.sampler.midpoint),
            "family": repr(source.family),
            "noise": repr(source.noise),
            "rollout": source.rollout,
            "seed": source.seed,
            "conditioning": [repr(part) for part in getattr(self.network, "conditioning", ())],
            **self.description,
        }

    def _losses(self, context: Context, items: Sequence[int], q: Any) -> Tensor:
        streams = NoiseStreams.of(len(context.x_t), self.source.seed, items)

        def noise(index: int) -> Tensor:
            return streams.normal(Purpose.OBJECTIVE, context.x_t.shape[1:], context.x_t, index=index)

        return Objective(self.source.prior, context, noise).evaluate(q).loss
