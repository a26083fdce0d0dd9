r"""The task of training an inference model, with the objective as its loss (the paper's Eq. 17).

.. math:: \min_\varphi E_c [ L(\mu_\varphi(c), \lambda_\varphi(c); c) ]

The gradient passes through the frozen denoiser into the model: its cost per step and image moves from
inference to training.
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


class InferenceTask:
    """The task of training an inference model.

    Args:
        source: Contexts it is trained on; the model is the one in its sampler's guidance.
        description: Plain values for the checkpoint (operator family, hash of the prior, ...).
        preview_images: Images restored from their measurements for a preview, shape (N, C, H, W); None for no
            preview.
    """

    def __init__(
        self,
        source: ContextSource,
        description: dict[str, Any] | None = None,
        preview_images: Tensor | None = None,
    ) -> None:
        if not isinstance(source.model, nn.Module):
            raise TypeError(f"the model to train must be a torch module, got {source.model!r}")
        self.network: nn.Module = source.model
        self.source = source
        self.description = description or {}
        self.preview_images = preview_images

    def to(self, device: torch.device | str) -> None:
        """Move the frozen denoiser to the device of the model."""
        frozen = getattr(self.source.prior, "network", None)
        if isinstance(frozen, nn.Module):
            frozen.to(device).requires_grad_(False)

    def loss(self, images: Tensor, items: Sequence[int]) -> Tensor:
        """Return L(model(c); c) per pixel (B,), with c drawn for these items."""
        context = self.source.draw(images, items)
        # A rollout caches half-precision weights without a graph, through which no gradient would flow.
        torch.clear_autocast_cache()
        return self._losses(context, items, self.network(context)) / context.x_t[0].numel()

    @torch.no_grad()
    def validate(self, images: Tensor) -> dict[str, float | list[float]]:
        """Return the losses of the model and of the bridge by tenths of time, and the acceptance rate."""
        items = range(-1, -1 - len(images), -1)  # not used in training
        context = self.source.draw(images, items)
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
        """Return pairs of an image and a sample given its measurement, with the current model."""
        if self.preview_images is None:
            return None
        images = self.preview_images.to(next(self.network.parameters()).device)
        problem = self.source.problem(images, range(-1, -1 - len(images), -1))
        samples = self.source.sampler.sample(problem, seed=self.source.seed).samples
        assert samples is not None
        return torch.cat([images, samples.flatten(0, 1)], dim=-1)

    def describe(self) -> dict[str, Any]:
        """Return JSON values of operators, noise, window and contexts."""
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
        streams = NoiseStreams.from_seed(len(context.x_t), self.source.seed, items)

        def noise(index: int) -> Tensor:
            return streams.normal(Purpose.OBJECTIVE, context.x_t.shape[1:], context.x_t, index=index)

        return Objective(self.source.prior, context, noise).evaluate(q).loss
