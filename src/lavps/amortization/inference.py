r"""Training an inference model: the objective itself is the loss (the paper's Eq. 17, Algorithm 1).

.. math:: \min_\varphi E_c [ L(\mu_\varphi(c), \lambda_\varphi(c); c) ]

The gradient passes through the frozen denoiser into the model: what inference pays at every step of every
image, training pays once.
"""

from __future__ import annotations

__all__ = ["InferenceTask"]

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..minimizers import WhitenedGradient
from ..random import NoiseStreams, Purpose
from ..samplers import LAVPS, MGDM, MGPS, Sampler
from ..variational import Context, Objective
from .contexts import ContextSource
from .model import InferenceModel


class InferenceTask:
    """What the trainer needs to train an :class:`InferenceModel`.

    Args:
        model: the model.
        source: the contexts it is trained on.
        description: plain values for the checkpoint (operator family, prior's hash, ...).
        preview_images: (N, C, H, W), restored from their measurements for a preview; None for no preview.
    """

    def __init__(
        self,
        model: InferenceModel,
        source: ContextSource,
        description: dict[str, Any] | None = None,
        preview_images: Tensor | None = None,
    ) -> None:
        self.network: nn.Module = model
        self.source = source
        self.description = description or {}
        self.preview_images = preview_images

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
        """Pairs side by side: an image, and a sample given its measurement, by the model's starts alone."""
        if self.preview_images is None:
            return None
        images = self.preview_images.to(next(self.network.parameters()).device)
        problem = self.source.problem(images, range(-1, -1 - len(images), -1))
        samples = self._warm_sampler().sample(problem, seed=self.source.seed).samples
        assert samples is not None
        return torch.cat([images, samples.flatten(0, 1)], dim=-1)

    def _warm_sampler(self) -> Sampler:
        """The sampler of the contexts, without a gradient where the model is asked."""
        sampler = self.source.sampler
        if isinstance(sampler, MGPS):
            return replace(sampler, model=self.network, gradient_steps=0, safeguard=False)
        settings = {field.name: getattr(sampler, field.name) for field in fields(MGDM)}
        settings |= {"gradient_steps_end": 0, "minimizer": WhitenedGradient()}
        return LAVPS(model=self.network, safeguard=False, **settings)

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
            "solver_steps": getattr(self.network, "solver_steps", None),
            **self.description,
        }

    def _losses(self, context: Context, items: Sequence[int], q: Any) -> Tensor:
        streams = NoiseStreams.of(len(context.x_t), self.source.seed, items)

        def noise(index: int) -> Tensor:
            return streams.normal(Purpose.OBJECTIVE, context.x_t.shape[1:], context.x_t, index=index)

        return Objective(self.source.prior, context, noise).evaluate(q).loss
