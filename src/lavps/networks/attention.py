r"""Attention over maps of tokens: everywhere, or in a neighbourhood.

Query p attends to the keys in a square of k x k tokens around it,

.. math:: o_p = \sum_{q \in N(p)} \mathrm{softmax}_q(\langle Q_p, K_q \rangle)\, V_q.

At the border the square is shifted until it lies inside, as in NATTEN: along an axis of n tokens it starts
at :math:`\min(\max(p - \lfloor k/2 \rfloor, 0), n - k)`, so every query has exactly :math:`k^2` keys.

It is computed as masked scaled dot-product attention, whose forward and backward run on every device. A mask
over all pairs would need :math:`(HW)^2` entries: a large map is cut into tiles of queries instead, each with
the tile of keys it can see, and the mask is the outer product of a small one for rows and one for columns.

Queries and keys are of unit length and scaled by a learned number per head (cosine similarity), so no logit
can outgrow that scale. Joint attention (InvFusion) adds a second set of keys and values at the same
positions; each query then sees :math:`2 k^2` of them.

References:
    - Hassani et al., Neighborhood Attention Transformer, 2023.
    - Crowson et al., Scalable High-Resolution Pixel-Space Image Synthesis with Hourglass Diffusion
      Transformers, 2024.
    - Elata et al., InvFussion: Bridging Supervised and Zero-shot Diffusion for Inverse Problems, 2025.
"""

from __future__ import annotations

__all__ = ["CosineAttention", "global_attention", "neighbourhood_attention"]

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import AdaRMSNorm, AxialRoPE, zeroed

KeyValue = tuple[Tensor, Tensor]

# Shorter axes are not cut: a tile with its margin would be as long.
_UNCUT = 16


def global_attention(q: Tensor, sets: Sequence[KeyValue]) -> Tensor:
    """Every query sees every key of every set.

    Args:
        q: queries (B, H, W, heads, head_dim), already scaled.
        sets: pairs of keys and values of the same shape.
    """
    query, keys, values = (
        torch.cat([part.flatten(1, 2) for part in parts], dim=1).transpose(1, 2)
        for parts in ([q], [k for k, _ in sets], [v for _, v in sets])
    )
    out = F.scaled_dot_product_attention(query, keys, values, scale=1.0)
    return out.transpose(1, 2).reshape(q.shape)


def neighbourhood_attention(q: Tensor, sets: Sequence[KeyValue], window: int, tile: int | None = 8) -> Tensor:
    """Every query sees the ``window`` x ``window`` nearest keys of every set.

    Args:
        q: queries (B, H, W, heads, head_dim), already scaled.
        sets: pairs of keys and values of the same shape.
        window: k, odd; an axis shorter than it is seen whole.
        tile: side of a tile of queries on long axes; None for one mask over all pairs.
    """
    if window < 1 or window % 2 == 0:
        raise ValueError(f"the window of a neighbourhood is odd, got {window}")
    if max(q.shape[1:3]) <= window:
        return global_attention(q, sets)
    natten = _natten() if q.is_cuda and len(sets) == 1 and min(q.shape[1:3]) >= window else None
    if natten is not None:
        out: Tensor = natten.na2d(q, *sets[0], kernel_size=window, scale=1.0)
        return out
    rows, columns = (_Cut.of(n, window, tile) for n in q.shape[1:3])
    seen = _seen(rows, columns, q.device)
    queries = _tiles(q, rows, columns, margin=False)
    keys, values = (
        torch.cat([_tiles(pair[i], rows, columns, margin=True) for pair in sets], dim=2) for i in (0, 1)
    )
    mask = seen.repeat(1, 1, len(sets))[:, None]
    return _untiled(F.scaled_dot_product_attention(queries, keys, values, mask, scale=1.0), q, rows, columns)


@lru_cache(maxsize=1)
def _natten() -> ModuleType | None:
    try:
        return importlib.import_module("natten.functional")
    except ImportError:
        return None


@dataclass(frozen=True)
class _Cut:
    """How an axis of ``length`` tokens is cut: ``count`` tiles of ``tile`` queries, ``halo`` keys a side."""

    length: int
    window: int
    tile: int
    halo: int

    @classmethod
    def of(cls, length: int, window: int, tile: int | None) -> _Cut:
        window = min(window, length)
        if tile is None or length <= max(_UNCUT, tile):
            return cls(length, window, length, 0)
        half = window // 2
        for size in range(tile, 2 * tile):
            # The first query of the image looks window - 1 ahead: its tile and the margin must reach there.
            if length % size == 0 and size > half:
                return cls(length, window, size, half)
        # The last tile has as little as one query of the image, which looks window - 1 back.
        return cls(length, window, tile, window - 1)

    @property
    def count(self) -> int:
        return -(-self.length // self.tile)

    @property
    def padded(self) -> bool:
        return self.count * self.tile > self.length

    @property
    def span(self) -> int:
        return self.tile + 2 * self.halo

    def seen(self, device: torch.device) -> Tensor:
        """Which keys of its tile a query sees: (count, tile, span)."""
        query = torch.arange(self.count * self.tile, device=device).reshape(self.count, self.tile, 1)
        key = torch.arange(self.span, device=device) - self.halo + query[:, :1]
        start = (query - self.window // 2).clamp(0, self.length - self.window)
        return (key >= start) & (key < start + self.window)

    def real(self, device: torch.device) -> Tensor:
        """Which queries belong to the image and not to its padding: (count, tile)."""
        query = torch.arange(self.count * self.tile, device=device).reshape(self.count, self.tile)
        return query < self.length


def _seen(rows: _Cut, columns: _Cut, device: torch.device) -> Tensor:
    """The mask (tiles, queries, keys).

    Built anew each time, for a few per cent of the attention's cost: a cached one, first made under
    inference_mode or by a tracer, would break the training step that meets it next.
    """
    row, column = rows.seen(device), columns.seen(device)
    both = row[:, None, :, None, :, None] & column[None, :, None, :, None, :]
    if rows.padded or columns.padded:
        real = rows.real(device)[:, None, :, None] & columns.real(device)[None, :, None, :]
        # A query in the padding sees all: with nothing to see its softmax, and the gradient, would be NaN.
        both = both | ~real[..., None, None]
    return both.reshape(rows.count * columns.count, rows.tile * columns.tile, rows.span * columns.span)


def _tiles(x: Tensor, rows: _Cut, columns: _Cut, margin: bool) -> Tensor:
    """(B, H, W, heads, head_dim) to (tiles, B heads, tokens of a tile, head_dim), with margins or not."""
    pad: list[int] = [0, 0, 0, 0]
    size: list[int] = []
    for cut in (columns, rows):
        halo = cut.halo if margin else 0
        pad += [halo, halo + cut.count * cut.tile - cut.length]
        size.insert(0, cut.tile + 2 * halo)
    x = F.pad(x, pad) if any(pad) else x
    tiles = x.unfold(1, size[0], rows.tile).unfold(2, size[1], columns.tile)
    b, r, c, heads, d, *_ = tiles.shape
    return tiles.permute(1, 2, 0, 3, 5, 6, 4).reshape(r * c, b * heads, size[0] * size[1], d)


def _untiled(x: Tensor, like: Tensor, rows: _Cut, columns: _Cut) -> Tensor:
    b, h, w, heads, d = like.shape
    tiles = x.reshape(rows.count, columns.count, b, heads, rows.tile, columns.tile, d)
    whole = tiles.permute(2, 0, 4, 1, 5, 3, 6)
    return whole.reshape(b, rows.count * rows.tile, columns.count * columns.tile, heads, d)[:, :h, :w]


class CosineAttention(nn.Module):
    """Self-attention of a map of tokens, with its norm before it; the residual is the caller's.

    Args:
        width: D, a multiple of ``head_dim``.
        head_dim: channels of a head, a multiple of 8.
        condition_width: M.
        window: side of the neighbourhood, None for all tokens.
        joint: whether there is a second set of tokens y~: keys from [x, y~], values from y~.
        dropout: on the output.
        of_image: positions are relative to the image, see :class:`~lavps.networks.layers.AxialRoPE`.
    """

    def __init__(
        self,
        width: int,
        head_dim: int,
        condition_width: int,
        window: int | None = None,
        joint: bool = False,
        dropout: float = 0.0,
        of_image: bool = False,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.window = window
        self.norm = AdaRMSNorm(width, condition_width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.joint_key = nn.Linear(2 * width, width, bias=False) if joint else None
        self.joint_value = nn.Linear(width, width, bias=False) if joint else None
        # The log: a scale that training drives through zero would turn likeness into unlikeness.
        self.log_scale = nn.Parameter(torch.full((width // head_dim,), math.log(10.0)))
        self.positions = AxialRoPE(width // head_dim, head_dim, of_image)
        self.dropout = nn.Dropout(dropout)
        self.out = zeroed(nn.Linear(width, width, bias=False))

    def forward(self, x: Tensor, condition: Tensor, fused: Tensor | None = None) -> Tensor:
        """Tokens x (B, H, W, D), condition (B, M), y~ (B, H, W, D) where joint; gives (B, H, W, D)."""
        x = self.norm(x, condition)
        q, k, v = (self._heads(part) for part in self.query_key_value(x).chunk(3, dim=-1))
        turn = self.positions(*x.shape[1:3])
        q = self._direction(q, turn, self.log_scale.exp()[:, None])
        sets = [(self._direction(k, turn), v)]
        if self.joint_key is not None and self.joint_value is not None and fused is not None:
            key = self._heads(self.joint_key(torch.cat([x, fused], dim=-1)))
            sets.append((self._direction(key, turn), self._heads(self.joint_value(fused))))
        if self.window is None:
            out = global_attention(q, sets)
        else:
            out = neighbourhood_attention(q, sets, self.window)
        return self.out(self.dropout(out.flatten(3)))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], -1, self.head_dim)

    def _direction(self, x: Tensor, turn: KeyValue, scale: Tensor | float = 1.0) -> Tensor:
        """Unit vectors times the scale, turned by position; in single precision until the last moment."""
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        return AxialRoPE.rotate(F.normalize(wide, dim=-1) * scale, turn).to(x.dtype)
