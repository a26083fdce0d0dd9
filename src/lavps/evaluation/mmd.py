r"""Maximum mean discrepancy between two sets of images, under a named embedding.

With :math:`\phi` an embedding and :math:`k(u, v) = \exp(-|u - v|^2 / 2 s^2)`,

.. math::
    \mathrm{MMD}^2 = \frac{1}{n^2} \sum_{i, j} k(a_i, a_j) + \frac{1}{m^2} \sum_{i, j} k(b_i, b_j)
        - \frac{2}{n m} \sum_{i, j} k(a_i, b_j), \qquad a_i = \phi(\text{image}_i),

the V-statistic: the terms i = j are kept, as in the published code, so two sets of one law give a little more
than 0 (of order 1/n). CMMD is this number, times 1000, for s = 10 and the CLIP embedding ViT-L/14-336 on the
unit sphere. A number found with another embedding is another metric: it travels with its name
(:class:`SetDistance`), and no other embedding may call itself CMMD.

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

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from .lpips import LPIPS
from .metrics import ImageBatch

_PUBLISHED_CLIP = "openai/clip-vit-large-patch14-336"
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_ROWS = 1024  # of a kernel matrix at a time


class Embedding(Protocol):
    """What turns images into vectors, and how the metric made with it is called."""

    @property
    def name(self) -> str:
        """Of the metric."""
        ...

    @property
    def bandwidth(self) -> float:
        """s of the kernel: part of the metric's definition."""
        ...

    def __call__(self, images: ImageBatch) -> Tensor:
        """Vectors (B, D) of images (B, C, H, W)."""
        ...


@dataclass(frozen=True)
class SetDistance:
    """A distance between two sets of images, and what it may be compared with.

    Attributes:
        name: of the metric.
        value: squared MMD times the scale.
        counts: how many images each set has; the V-statistic's bias depends on it.
    """

    name: str
    value: float
    counts: tuple[int, int]


def image_mmd(embedding: Embedding, a: ImageBatch, b: ImageBatch, scale: float = 1000.0) -> SetDistance:
    """The distance between two sets of images under an embedding, with its name."""
    value = mmd(embedding(a), embedding(b), embedding.bandwidth, scale)
    return SetDistance(embedding.name, value, (len(a), len(b)))


def mmd(a: Tensor, b: Tensor, bandwidth: float = 10.0, scale: float = 1000.0) -> float:
    """Squared MMD times ``scale`` between embeddings a (n, D) and b (m, D); the defaults are CMMD's."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or not len(a) or not len(b):
        raise ValueError(
            f"embeddings (n, D) and (m, D) are needed, got {tuple(a.shape)} and {tuple(b.shape)}"
        )

    def mean_kernel(u: Tensor, v: Tensor) -> float:
        totals = [float(_kernel(rows, v, bandwidth).sum()) for rows in torch.split(u, _ROWS)]
        return sum(totals) / (len(u) * len(v))

    return scale * (mean_kernel(a, a) + mean_kernel(b, b) - 2.0 * mean_kernel(a, b))


def _kernel(u: Tensor, v: Tensor, bandwidth: float) -> Tensor:
    """k(u_i, v_j), (n, m), in float64: the three means differ in their fourth digit."""
    u, v = u.double(), v.double()
    squares = u.square().sum(1)[:, None] + v.square().sum(1)[None] - 2.0 * u @ v.T
    return torch.exp(-squares.clamp(min=0.0) / (2.0 * bandwidth**2))


def mmd_difference(
    a: Tensor, b: Tensor, truth: Tensor, bandwidth: float = 10.0, scale: float = 1000.0
) -> Callable[[Tensor], Tensor]:
    r"""How much farther a is from the truth than b, as a function of the images drawn.

    For :func:`~lavps.evaluation.joint_bootstrap`. With :math:`w_i` the number of times image i is drawn, the
    difference is :math:`w^T (K_{aa} - 2 K_{at} - K_{bb} + 2 K_{bt}) w / n^2` (the truth's own kernel
    cancels), so kernels are computed once for all resamples.

    Args:
        a: embeddings (n, D) of the first method's images.
        b: of the second's, image by image.
        truth: of the true images.
        bandwidth: s of the kernel.
        scale: of the result.

    Returns:
        A function from image indices (R, n) to differences MMD(a, truth) - MMD(b, truth), (R,).
    """
    if not a.shape == b.shape == truth.shape:
        raise ValueError(
            "one embedding an image is needed of both methods and of the truth, got "
            f"{tuple(a.shape)}, {tuple(b.shape)} and {tuple(truth.shape)}"
        )
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
    """AlexNet's features as LPIPS normalises them, averaged over positions, layers side by side (B, 1152).

    The bandwidth is about the median distance between photographs of faces.

    Attributes:
        lpips: the network.
    """

    name: ClassVar[str] = "MMD-Alex"
    bandwidth: ClassVar[float] = 1.0

    lpips: LPIPS

    def __call__(self, images: ImageBatch) -> Tensor:
        """Vectors (B, 1152) on the CPU."""
        rows = [
            torch.cat([layer.mean((2, 3)) for layer in self.lpips.features(chunk)], dim=1)
            for chunk in images.split(self.lpips.chunk)
        ]
        return torch.cat(rows).cpu()


@dataclass(frozen=True)
class CLIPEmbedding:
    """CLIP's projected image embedding on the unit sphere.

    Attributes:
        model: maps ``pixel_values`` (B, 3, size, size) to an object with ``image_embeds`` (B, D).
        name: of the metric: "CMMD" for the published ViT-L/14-336 weights only.
        size: pixels a side of the model's input.
        chunk: images at a time.
        device: where the model is.
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
        """The embedding with weights from the Hub or a folder.

        Args:
            source: Hub id or folder of a CLIP vision model with projection.
            name: of the metric; default "CMMD" for the published weights and "MMD-<source>" for others.
                For a folder that holds the published ones, say "CMMD".
            device: where to compute.
        """
        try:
            transformers = importlib.import_module("transformers")
        except ImportError as error:
            raise ImportError('the CLIP embedding needs transformers: pip install "lavps[clip]"') from error
        model = transformers.CLIPVisionModelWithProjection.from_pretrained(source).eval().to(device)
        name = name or ("CMMD" if source == _PUBLISHED_CLIP else f"MMD-{PurePath(source).name}")
        return cls(model, name, int(model.config.image_size), device=device)

    @torch.no_grad()
    def __call__(self, images: ImageBatch) -> Tensor:
        """Vectors of norm 1, (B, D), on the CPU."""
        rows = [
            self.model(pixel_values=self._pixels(chunk)).image_embeds for chunk in images.split(self.chunk)
        ]
        embedded = torch.cat(rows).float().cpu()
        return F.normalize(embedded, dim=1)

    def _pixels(self, images: ImageBatch) -> Tensor:
        """The model's input (B, 3, size, size).

        Pillow's bicubic resampling of the largest centred square, as in the published code: torch's has
        another kernel, and the metric is sensitive to the difference.
        """
        height, width = images.pixels.shape[2:]
        side = min(height, width)
        left, top = (width - side) // 2, (height - side) // 2
        box = (left, top, left + side, top + side)
        colours = images.pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).cpu().numpy()
        resized = [
            np.asarray(
                Image.fromarray(np.ascontiguousarray(image))
                .crop(box)
                .resize((self.size,) * 2, Image.Resampling.BICUBIC)
            )
            for image in colours
        ]
        x = torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).float().to(self.device) / 255.0
        mean, std = (x.new_tensor(values).reshape(1, 3, 1, 1) for values in (_CLIP_MEAN, _CLIP_STD))
        return (x - mean) / std
