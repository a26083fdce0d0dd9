r"""The layers that the networks are made of.

- RMS norm: :math:`x / \mathrm{rms}(x) \cdot g`; adaptive: :math:`g = 1 + W c` for a condition vector c, with
  W = 0 at the start.
- GEGLU: :math:`W_3 (W_1 x \odot \mathrm{gelu}(W_2 x))`, three times as wide inside, W_3 = 0 at the start.
- Fourier features of a time: :math:`\cos, \sin(2 \pi f_j t)` with f from 1/8 to 32 in a geometric row,
  made for times of order one: t in [0, 1], or log SNR / 4, not the index of a chain.
- Axial rotary positions: a pair of channels of the token at row i turns by the angle :math:`i\,\omega_j`,
  another by its column, so that a product of query and key depends on their offset alone.
- Merge and split: 2 x 2 tokens to one and back; the way back is mixed with the skip by a learned weight w,
  :math:`(1 - w)\,\mathrm{skip} + w x`.

Tokens are maps (B, H, W, D). Every layer that ends a residual branch starts at zero.

References:
    - Crowson et al., Scalable High-Resolution Pixel-Space Image Synthesis with Hourglass Diffusion
      Transformers, 2024.
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
    """The layer with weight and bias 0: a residual branch that ends in it starts as the identity."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _normalised(x: Tensor) -> Tensor:
    # In single precision: the mean square of a bfloat16 row is good to two digits only.
    return F.rms_norm(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x, x.shape[-1:], eps=1e-6)


class RMSNorm(nn.Module):
    """x / rms(x) times a learned gain, over the last axis."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Of x's shape and dtype."""
        return (_normalised(x) * self.gain).to(x.dtype)


class AdaRMSNorm(nn.Module):
    """x / rms(x) (1 + W c), with W = 0 at the start."""

    def __init__(self, width: int, condition_width: int) -> None:
        super().__init__()
        self.scale = zeroed(nn.Linear(condition_width, width, bias=False))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """x (B, H, W, D) and condition (B, M) give (B, H, W, D)."""
        gain: Tensor = 1.0 + self.scale(condition)[:, None, None]
        return (_normalised(x) * gain).to(x.dtype)


class FeedForward(nn.Module):
    """GEGLU, without the norm before and the residual around it: (..., D) to (..., D)."""

    def __init__(self, width: int, expansion: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * expansion * width, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.down = zeroed(nn.Linear(expansion * width, width, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """W_3 (W_1 x * gelu(W_2 x))."""
        value, gate = self.up(x).chunk(2, dim=-1)
        return self.down(self.dropout(value * F.gelu(gate)))  # type: ignore[no-any-return]


class TimeEmbedding(nn.Module):
    """Fourier features of a time of order one, projected: (B,) to (B, M)."""

    def __init__(self, width: int, frequencies: int = 64) -> None:
        super().__init__()
        # Saved with the weights: a checkpoint keeps its meaning if this table is ever changed.
        self.frequencies: Tensor
        self.register_buffer("frequencies", torch.logspace(-3, 5, frequencies, base=2.0))
        self.project = nn.Linear(2 * frequencies, width, bias=False)

    def forward(self, t: Tensor) -> Tensor:
        """The embedding, in the weights' dtype."""
        angles = 2 * math.pi * t[:, None] * self.frequencies
        features = torch.cat([angles.cos(), angles.sin()], dim=-1)
        return self.project(features.to(self.project.weight.dtype))  # type: ignore[no-any-return]


class MappingNetwork(nn.Module):
    """From the sum of the embeddings to the condition vector: residual GEGLU layers, (B, M) to (B, M)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = RMSNorm(width)
        self.layers = nn.ModuleList(nn.Sequential(RMSNorm(width), FeedForward(width)) for _ in range(depth))
        self.last = RMSNorm(width)

    def forward(self, embedding: Tensor) -> Tensor:
        """The condition vector."""
        x = self.first(embedding)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(x)  # type: ignore[no-any-return]


class ConditionEmbedding(nn.Module):
    """The condition vector (B, M) of a time t, a second time s and a class, where the network has them.

    Where all rows share them, one vector (1, M) is computed for all.

    Args:
        width: M.
        depth: layers of the mapping network.
        second_time: whether there is a time s, with an embedding of its own.
        num_classes: number of classes, 0 for none; one more, the last, stands for "no class".
        frequencies: of the Fourier features of a time.
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
        """t and s: () or (B,); labels (B,) integers, None for no class."""
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
    """Rotary positions by row and by column; half of the channels of a head turn, half stand still.

    Positions count tokens, so the geometry of a neighbourhood is the same in images of every size. Slowest
    turn: pi / 64 a token; fastest: pi / 2. The heads have interleaved frequencies.

    Args:
        heads: of attention.
        head_dim: channels of a head.
        of_image: positions go from -1 to 1 over the longer side instead, whatever the number of tokens (the
            convention of Crowson et al.).
    """

    def __init__(self, heads: int, head_dim: int, of_image: bool = False) -> None:
        super().__init__()
        self.of_image = of_image
        count = head_dim // 8
        table = math.pi * torch.logspace(-6, -1, heads * count, base=2.0).reshape(count, heads).T
        self.frequencies: Tensor
        self.register_buffer("frequencies", table.contiguous())

    def forward(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines (H, W, heads, head_dim / 4) of the angles on a map of this size."""
        grid = torch.arange(max(height, width), device=self.frequencies.device)
        # In single precision also where the weights are not: bfloat16 does not tell angles near 100 apart.
        angles = grid[:, None, None] * self.frequencies.float()
        if self.of_image:
            angles = angles * (2.0 / max(height, width))
        shape = (height, width, *self.frequencies.shape)
        both = torch.cat([angles[:height, None].expand(shape), angles[None, :width].expand(shape)], dim=-1)
        return both.cos(), both.sin()

    @staticmethod
    def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Queries or keys (B, H, W, heads, head_dim), turned."""
        cosine, sine = (part.to(x.dtype) for part in turn)
        n = cosine.shape[-1]
        first, second, still = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine, still], dim=-1)


def merge_tokens(x: Tensor, factor: int) -> Tensor:
    """(B, H, W, D) to (B, H / f, W / f, f^2 D): the tokens of a square as one."""
    b, h, w, d = x.shape
    squares = x.reshape(b, h // factor, factor, w // factor, factor, d)
    return squares.permute(0, 1, 3, 2, 4, 5).reshape(b, h // factor, w // factor, factor * factor * d)


def split_tokens(x: Tensor, factor: int) -> Tensor:
    """(B, H, W, f^2 D) to (B, f H, f W, D), the inverse of :func:`merge_tokens`."""
    b, h, w, d = x.shape
    squares = x.reshape(b, h, w, factor, factor, d // factor**2)
    return squares.permute(0, 1, 3, 2, 4, 5).reshape(b, h * factor, w * factor, d // factor**2)


class Merge(nn.Module):
    """Squares of f x f tokens, projected to one: (B, H, W, D) to (B, H / f, W / f, E)."""

    def __init__(self, width: int, out_width: int, factor: int = 2) -> None:
        super().__init__()
        self.factor = factor
        self.project = nn.Linear(factor**2 * width, out_width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The coarser map."""
        # Under autocast the projection comes in half precision; the residual stream keeps the input's.
        return self.project(merge_tokens(x, self.factor)).to(x.dtype)  # type: ignore[no-any-return]


class Split(nn.Module):
    """One token to 2 x 2, mixed with the skip: (B, H, W, D) to (B, 2 H, 2 W, E)."""

    def __init__(self, width: int, out_width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, 4 * out_width, bias=False)
        self.weight = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """(1 - w) skip + w x, of the skip's shape."""
        return torch.lerp(skip, split_tokens(self.project(x), 2).to(skip.dtype), self.weight.to(skip.dtype))


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Images (B, C, H, W), continued below and to the right until both sizes are multiples."""
    height, width = x.shape[-2:]
    margin = (0, -width % multiple, 0, -height % multiple)
    if not any(margin):
        return x
    # An image smaller than its margin has too few pixels to reflect.
    fits = margin[1] < width and margin[3] < height
    return F.pad(x, margin, mode="reflect" if fits else "replicate")


def crop(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The part of the padded images x that lies in an image of this shape (..., H, W)."""
    return x[..., : shape[-2], : shape[-1]]
