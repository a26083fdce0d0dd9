r"""Maximum mean discrepancy between two sets of images, under a named embedding.

With :math:`\phi` an embedding and :math:`k(u, v) = \exp(-|u - v|^2 / 2 s^2)`,

.. math::
    \mathrm{MMD}^2 = \frac{1}{n^2} \sum_{i, j} k(a_i, a_j) + \frac{1}{m^2} \sum_{i, j} k(b_i, b_j)
        - \frac{2}{n m} \sum_{i, j} k(a_i, b_j), \qquad a_i = \phi(\text{image}_i),

the V-statistic: the terms i = j are included, as in the published code, so two sets from one distribution
have a positive value of order 1/n. CMMD is this value times 1000, for s = 10 and the CLIP embedding
ViT-L/14-336 on the unit sphere. Another embedding defines another metric, whose name is part of the result
(:class:`SetDistance`).

References:
    - Gretton, Borgwardt, Rasch, Schölkopf and Smola, A Kernel Two-Sample Test, 2012 (Eq. 5).
    - Jayasumana, Ramalingam, Veit, Glasner, Chakrabarti and Kumar, Rethinking FID: Towards a Better
      Evaluation Metric for Image Generation, 2024 (CMMD).
    - Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021 (CLIP).
"""

from __future__ import annotations

__all__ = [
    "CLIPEmbedding",
    "Embedding",
    "LPIPSEmbedding",
    "SetDistance",
    "image_mmd",
    "mmd",
    "mmd_difference",
]

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ..extras import require
from .lpips import LPIPS
from .metrics import ImageBatch

_PUBLISHED_CLIP = "openai/clip-vit-large-patch14-336"
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_ROWS = 1024  # rows of a kernel matrix computed at a time


class Embedding(Protocol):
    """Function from images to vectors, and the name of the metric that it defines."""

    @property
    def name(self) -> str:
        """Name of the metric."""

    @property
    def bandwidth(self) -> float:
        """Bandwidth s of the kernel, part of the definition of the metric."""

    def __call__(self, images: ImageBatch) -> Tensor:
        """Return vectors (B, D) of images (B, C, H, W)."""


@dataclass(frozen=True)
class SetDistance:
    """Distance between two sets of images, with the name of its metric.

    Attributes:
        name: Name of the metric.
        value: Squared MMD times the scale.
        counts: Number of images of each set; the bias of the V-statistic depends on it.
    """

    name: str
    value: float
    counts: tuple[int, int]


def image_mmd(embedding: Embedding, a: ImageBatch, b: ImageBatch, scale: float = 1000.0) -> SetDistance:
    """Return the distance between two sets of images under an embedding."""
    value = mmd(embedding(a), embedding(b), embedding.bandwidth, scale)
    return SetDistance(embedding.name, value, (len(a), len(b)))


def mmd(a: Tensor, b: Tensor, bandwidth: float = 10.0, scale: float = 1000.0) -> float:
    """Return the squared MMD times ``scale`` of embeddings a (n, D) and b (m, D); defaults as in CMMD."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or not len(a) or not len(b):
        raise ValueError(f"embeddings must be (n, D) and (m, D), got {tuple(a.shape)} and {tuple(b.shape)}")

    def mean_kernel(u: Tensor, v: Tensor) -> float:
        totals = [float(_kernel(rows, v, bandwidth).sum()) for rows in torch.split(u, _ROWS)]
        return sum(totals) / (len(u) * len(v))

    return scale * (mean_kernel(a, a) + mean_kernel(b, b) - 2.0 * mean_kernel(a, b))


def _kernel(u: Tensor, v: Tensor, bandwidth: float) -> Tensor:
    """Return k(u_i, v_j), (n, m), in float64: the three means differ only in their fourth digit."""
    u, v = u.double(), v.double()
    squares = u.square().sum(1)[:, None] + v.square().sum(1)[None] - 2.0 * u @ v.T
    return torch.exp(-squares.clamp(min=0.0) / (2.0 * bandwidth**2))


def mmd_difference(
    a: Tensor, b: Tensor, truth: Tensor, bandwidth: float = 10.0, scale: float = 1000.0
) -> Callable[[Tensor], Tensor]:
    r"""Return a function from image indices (R, n) to differences MMD(a, truth) - MMD(b, truth), (R,).

    It is an argument of :func:`~lavps.evaluation.joint_bootstrap`. With :math:`w_i` the number of times image
    i is drawn, the difference is :math:`w^T (K_{aa} - 2 K_{at} - K_{bb} + 2 K_{bt}) w / n^2` (the kernel of
    the truth cancels), so kernels are computed once for all resamples.

    Args:
        a: Embeddings (n, D) of the first method's images.
        b: Embeddings of the second method's restorations of the same images.
        truth: Embeddings of the true images.
        bandwidth: Bandwidth s of the kernel.
        scale: Factor of the result.
    """
    if not a.shape == b.shape == truth.shape:
        shapes = f"{tuple(a.shape)}, {tuple(b.shape)} and {tuple(truth.shape)}"
        raise ValueError(f"both methods and the truth need one embedding per image, got {shapes}")
    form = _kernel(a, a, bandwidth) - _kernel(b, b, bandwidth)
    form += 2.0 * (_kernel(b, truth, bandwidth) - _kernel(a, truth, bandwidth))

    def difference(rows: Tensor) -> Tensor:
        ones = torch.ones(rows.shape, dtype=form.dtype, device=form.device)
        counts = torch.zeros(len(rows), len(form), dtype=form.dtype, device=form.device)
        counts.scatter_add_(1, rows.to(form.device), ones)
        return scale * ((counts @ form) * counts).sum(1) / rows.shape[1] ** 2

    return difference


@dataclass(frozen=True)
class LPIPSEmbedding:
    """AlexNet features as normalized by LPIPS, averaged over positions, layers concatenated, (B, 1152).

    The bandwidth is about the median distance between photographs of faces.

    Attributes:
        lpips: LPIPS network.
    """

    name: ClassVar[str] = "MMD-Alex"
    bandwidth: ClassVar[float] = 1.0

    lpips: LPIPS

    def __call__(self, images: ImageBatch) -> Tensor:
        """Return vectors (B, 1152), on the CPU."""
        rows = [
            torch.cat([layer.mean((2, 3)) for layer in self.lpips.features(chunk)], dim=1)
            for chunk in images.split(self.lpips.chunk)
        ]
        return torch.cat(rows).cpu()


@dataclass(frozen=True)
class CLIPEmbedding:
    """Projected CLIP image embedding on the unit sphere.

    Attributes:
        model: Function from ``pixel_values`` (B, 3, size, size) to an object with ``image_embeds`` (B, D).
        name: Name of the metric: "CMMD" for the published ViT-L/14-336 weights only.
        size: Side of the model's input, in pixels.
        chunk: Number of images embedded at a time.
        device: Device of the model.
    """

    bandwidth: ClassVar[float] = 10.0

    model: Callable[..., Any]
    name: str
    size: int = 336
    chunk: int = 16
    device: torch.device | str = "cpu"

    @classmethod
    def load(
        cls, source: str = _PUBLISHED_CLIP, name: str | None = None, device: torch.device | str = "cpu"
    ) -> CLIPEmbedding:
        """Load the weights from the Hub or a folder.

        Args:
            source: Hub id or folder of a CLIP vision model with projection.
            name: Name of the metric; default "CMMD" for the published Hub id, else "MMD-<source>". Pass
                "CMMD" for a folder with the published weights.
            device: Device of the model.
        """
        transformers = require("transformers", "clip", "the CLIP embedding needs transformers")
        model = transformers.CLIPVisionModelWithProjection.from_pretrained(source).eval().to(device)
        name = name or ("CMMD" if source == _PUBLISHED_CLIP else f"MMD-{PurePath(source).name}")
        return cls(model, name, int(model.config.image_size), device=device)

    @torch.no_grad()
    def __call__(self, images: ImageBatch) -> Tensor:
        """Return vectors (B, D) of norm 1, on the CPU."""
        rows = [
            self.model(pixel_values=self._pixels(chunk)).image_embeds for chunk in images.split(self.chunk)
        ]
        return F.normalize(torch.cat(rows).float().cpu(), dim=1)

    def _pixels(self, images: ImageBatch) -> Tensor:
        """Return the model's input (B, 3, size, size).

        The largest centred square is resized with Pillow's bicubic filter, as in the published code.
        PyTorch's filter has another kernel, and the metric is sensitive to the difference.
        """
        height, width = images.pixels.shape[2:]
        side = min(height, width)
        left, top = (width - side) // 2, (height - side) // 2
        box = (left, top, left + side, top + side)
        colours = images.pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).cpu().numpy()
        squares = [Image.fromarray(np.ascontiguousarray(image)).crop(box) for image in colours]
        resized = [np.asarray(s.resize((self.size,) * 2, Image.Resampling.BICUBIC)) for s in squares]
        x = torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).float().to(self.device) / 255.0
        mean, std = (x.new_tensor(values).reshape(1, 3, 1, 1) for values in (_CLIP_MEAN, _CLIP_STD))
        return (x - mean) / std
