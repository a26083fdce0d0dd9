r"""Layers of the networks.

- RMS norm: :math:`x / \mathrm{rms}(x) \cdot g`; adaptive: :math:`g = 1 + W c` for a condition vector c, with
  W initialized to 0.
- GEGLU: :math:`W_3 (W_1 x \odot \mathrm{gelu}(W_2 x))` with three times the width and W_3 initialized to 0.
- Fourier features of a time: :math:`\cos, \sin(2 \pi f_j t)` with geometric f from 1/8 to 32, for times of
  order one (t in [0, 1] or log SNR / 4, not the index of a chain).
- Axial rotary positions: channel pairs of the token at row i rotate by the angle :math:`i\,\omega_j`, others
  by its column, so products of queries and keys depend on their offset only.
- Merge and split: 2 x 2 tokens to one and back; splitting interpolates with the skip by a learned weight w,
  :math:`(1 - w)\,\mathrm{skip} + w x`.

Tokens are maps (B, H, W, D). Every layer that ends a residual branch is initialized to zero.

References:
    - Shazeer, GLU Variants Improve Transformer, 2020.
    - Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021.
"""

from __future__ import annotations

__all__ = [
    "AdaRMSNorm",
    "AxialRoPE",
    "ConditionEmbedding",
    "FeedForward",
    "MappingNetwork",
    "Merge",
    "RMSNorm",
    "Split",
    "TimeEmbedding",
    "crop",
    "merge_tokens",
    "pad_to_multiple",
    "split_tokens",
    "zeroed",
]

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_Layer = TypeVar("_Layer", nn.Linear, nn.Conv2d)


def zeroed(layer: _Layer) -> _Layer:
    """Set weight and bias to 0, so that a residual branch that ends in the layer starts as the identity."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _normalised(x: Tensor) -> Tensor:
    # In single precision: the mean square in bfloat16 has only two digits.
    return F.rms_norm(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x, x.shape[-1:], eps=1e-6)


class RMSNorm(nn.Module):
    """x / rms(x) times a learned gain, over the last axis."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized x."""
        return (_normalised(x) * self.gain).to(x.dtype)


class AdaRMSNorm(nn.Module):
    """x / rms(x) (1 + W c), with W initialized to 0."""

    def __init__(self, width: int, condition_width: int) -> None:
        super().__init__()
        self.scale = zeroed(nn.Linear(condition_width, width, bias=False))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return (B, H, W, D) for x (B, H, W, D) and condition (B, M)."""
        gain: Tensor = 1.0 + self.scale(condition)[:, None, None]
        return (_normalised(x) * gain).to(x.dtype)


class FeedForward(nn.Module):
    """GEGLU without norm and residual connection: (..., D) to (..., D)."""

    def __init__(self, width: int, expansion: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * expansion * width, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.down = zeroed(nn.Linear(expansion * width, width, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """Return W_3 (W_1 x * gelu(W_2 x))."""
        value, gate = self.up(x).chunk(2, dim=-1)
        return self.down(self.dropout(value * F.gelu(gate)))  # type: ignore[no-any-return]


class TimeEmbedding(nn.Module):
    """Fourier features of a time of order one, projected: (B,) to (B, M)."""

    def __init__(self, width: int, frequencies: int = 64) -> None:
        super().__init__()
        # Saved with the weights, so that checkpoints do not depend on this definition.
        self.frequencies: Tensor
        # Never on the meta device, where logspace imports sympy: half a second of every start.
        spaced = torch.logspace(-3, 5, frequencies, base=2.0, device="cpu")
        self.register_buffer("frequencies", spaced)
        self.project = nn.Linear(2 * frequencies, width, bias=False)

    def forward(self, t: Tensor) -> Tensor:
        """Return the embedding in the dtype of the weights."""
        angles = 2 * math.pi * t[:, None] * self.frequencies
        features = torch.cat([angles.cos(), angles.sin()], dim=-1)
        return self.project(features.to(self.project.weight.dtype))  # type: ignore[no-any-return]


class MappingNetwork(nn.Module):
    """Residual GEGLU layers from the sum of the embeddings to the condition vector: (B, M) to (B, M)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = RMSNorm(width)
        self.layers = nn.ModuleList(nn.Sequential(RMSNorm(width), FeedForward(width)) for _ in range(depth))
        self.last = RMSNorm(width)

    def forward(self, embedding: Tensor) -> Tensor:
        """Return the condition vector."""
        x = self.first(embedding)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(x)  # type: ignore[no-any-return]


class ConditionEmbedding(nn.Module):
    """The condition vector of a time t, a second time s and a class, as far as the network has them.

    It has shape (B, M), or (1, M) if all rows share them.

    Args:
        width: Width M of the condition vector.
        depth: Number of layers of the mapping network.
        second_time: Presence of a second time s with its own embedding.
        num_classes: Number of classes, 0 for none; one more, the last, stands for "no class".
        frequencies: Number of frequencies of the Fourier features of a time.
    """

    def __init__(
        self, width: int, depth: int, second_time: bool, num_classes: int, frequencies: int = 64
    ) -> None:
        super().__init__()
        self.null_class = num_classes
        self.t = TimeEmbedding(width, frequencies)
        self.s = TimeEmbedding(width, frequencies) if second_time else None
        self.classes = nn.Embedding(num_classes + 1, width) if num_classes else None
        self.mapping = MappingNetwork(width, depth)

    def forward(self, batch: int, t: Tensor, s: Tensor | None, labels: Tensor | None) -> Tensor:
        """Return the condition vector for t and s of shape () or (B,) and labels (B,), None for no class."""
        if (s is None) != (self.s is None):
            raise ValueError("s must be given if and only if the configuration has second_time=True")
        if labels is not None and self.classes is None:
            raise ValueError("labels were given to a network without classes: num_classes is 0")
        embedding = self.t(self._time(t))
        if self.s is not None and s is not None:
            embedding = embedding + self.s(self._time(s))
        if self.classes is not None:
            if labels is None:
                labels = torch.full((batch,), self.null_class, device=embedding.device)
            embedding = embedding + self.classes(labels)
        return self.mapping(embedding)  # type: ignore[no-any-return]

    def _time(self, t: Tensor) -> Tensor:
        return t.to(self.t.frequencies.device, torch.float32).reshape(-1)


class AxialRoPE(nn.Module):
    """Rotary positions by row and by column, applied to half of the channels of a head.

    Positions count tokens, so the geometry of a neighbourhood does not depend on the image size. Frequencies
    range from pi / 64 to pi / 2 per token and are interleaved over the heads.

    Args:
        heads: Number of attention heads.
        head_dim: Channels per head.
        of_image: Positions from -1 to 1 over the longer side (the convention of Crowson et al.).
    """

    def __init__(self, heads: int, head_dim: int, of_image: bool = False) -> None:
        super().__init__()
        self.of_image = of_image
        count = head_dim // 8
        table = math.pi * torch.logspace(-6, -1, heads * count, base=2.0).reshape(count, heads).T
        self.frequencies: Tensor
        self.register_buffer("frequencies", table.contiguous())

    def forward(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (H, W, heads, head_dim / 4) of the angles on a map of this size."""
        grid = torch.arange(max(height, width), device=self.frequencies.device)
        # In single precision for all weights: bfloat16 does not resolve angles near 100.
        angles = grid[:, None, None] * self.frequencies.float()
        if self.of_image:
            angles = angles * (2.0 / max(height, width))
        shape = (height, width, *self.frequencies.shape)
        both = torch.cat([angles[:height, None].expand(shape), angles[None, :width].expand(shape)], dim=-1)
        return both.cos(), both.sin()

    @staticmethod
    def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate queries or keys (B, H, W, heads, head_dim)."""
        cosine, sine = (part.to(x.dtype) for part in rotation)
        n = cosine.shape[-1]
        first, second, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine, rest], dim=-1)


def merge_tokens(x: Tensor, factor: int) -> Tensor:
    """Merge squares of f x f tokens: (B, H, W, D) to (B, H / f, W / f, f^2 D)."""
    b, h, w, d = x.shape
    squares = x.reshape(b, h // factor, factor, w // factor, factor, d)
    return squares.permute(0, 1, 3, 2, 4, 5).reshape(b, h // factor, w // factor, factor * factor * d)


def split_tokens(x: Tensor, factor: int) -> Tensor:
    """Split tokens, the inverse of :func:`merge_tokens`: (B, H, W, f^2 D) to (B, f H, f W, D)."""
    b, h, w, d = x.shape
    squares = x.reshape(b, h, w, factor, factor, d // factor**2)
    return squares.permute(0, 1, 3, 2, 4, 5).reshape(b, h * factor, w * factor, d // factor**2)


class Merge(nn.Module):
    """Projection of squares of f x f tokens to one token: (B, H, W, D) to (B, H / f, W / f, E)."""

    def __init__(self, width: int, out_width: int, factor: int = 2) -> None:
        super().__init__()
        self.factor = factor
        self.project = nn.Linear(factor**2 * width, out_width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the coarser map."""
        # Under autocast the projection is in half precision; the residual stream keeps the input's dtype.
        return self.project(merge_tokens(x, self.factor)).to(x.dtype)  # type: ignore[no-any-return]


class Split(nn.Module):
    """Projection of one token to 2 x 2, interpolated with the skip: (B, H, W, D) to (B, 2 H, 2 W, E)."""

    def __init__(self, width: int, out_width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, 4 * out_width, bias=False)
        self.weight = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Return (1 - w) skip + w x, in the shape of the skip."""
        return torch.lerp(skip, split_tokens(self.project(x), 2).to(skip.dtype), self.weight.to(skip.dtype))


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Pad images (B, C, H, W) at the bottom and right until both sizes are multiples."""
    height, width = x.shape[-2:]
    margin = (0, -width % multiple, 0, -height % multiple)
    if not any(margin):
        return x
    # Reflection needs an image larger than the margin.
    fits = margin[1] < width and margin[3] < height
    return F.pad(x, margin, mode="reflect" if fits else "replicate")


def crop(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Crop padded images x to the spatial size of a shape (..., H, W)."""
    return x[..., : shape[-2], : shape[-1]]
