r"""Global and neighbourhood attention over maps of tokens.

Query p attends to the keys in a square of k x k tokens around it,

.. math:: o_p = \sum_{q \in N(p)} \mathrm{softmax}_q(\langle Q_p, K_q \rangle)\, V_q.

At the border the square is shifted inside, as in NATTEN: along an axis of n tokens it starts at
:math:`\min(\max(p - \lfloor k/2 \rfloor, 0), n - k)`, so every query has exactly :math:`k^2` keys.

The implementation is masked scaled dot-product attention, which runs on every device. A mask over all pairs
would need :math:`(HW)^2` entries, so a large map is cut into tiles of queries, each with its tile of visible
keys; the mask is the outer product of one for rows and one for columns.

Queries and keys are normalized and multiplied by a learned scale per head (cosine similarity), which bounds
the logits. Joint attention (InvFusion) adds a second set of keys and values at the same positions.

References:
    - Hassani et al., Neighborhood Attention Transformer, 2023.
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

# Shorter axes are not cut: a tile with its margin would be as long as the axis.
_UNCUT = 16


def global_attention(q: Tensor, sets: Sequence[KeyValue]) -> Tensor:
    """Attend from every query to every key of every set.

    Args:
        q: Scaled queries, shape (B, H, W, heads, head_dim).
        sets: Pairs of keys and values of the same shape.
    """
    query, keys, values = (
        torch.cat([part.flatten(1, 2) for part in parts], dim=1).transpose(1, 2)
        for parts in ([q], [k for k, _ in sets], [v for _, v in sets])
    )
    out = F.scaled_dot_product_attention(query, keys, values, scale=1.0)
    return out.transpose(1, 2).reshape(q.shape)


def neighbourhood_attention(q: Tensor, sets: Sequence[KeyValue], window: int, tile: int | None = 8) -> Tensor:
    """Attend from every query to the ``window`` x ``window`` nearest keys of every set.

    Args:
        q: Scaled queries, shape (B, H, W, heads, head_dim).
        sets: Pairs of keys and values of the same shape.
        window: Side k of the neighbourhood, odd; an axis shorter than it is attended to in full.
        tile: Side of a tile of queries on long axes; None for one mask over all pairs.
    """
    if window < 1 or window % 2 == 0:
        raise ValueError(f"the window of a neighbourhood must be odd, got {window}")
    if max(q.shape[1:3]) <= window:
        return global_attention(q, sets)
    natten = _natten() if q.is_cuda and len(sets) == 1 and min(q.shape[1:3]) >= window else None
    if natten is not None:
        out: Tensor = natten.na2d(q, *sets[0], kernel_size=window, scale=1.0)
        return out
    rows, columns = (_Cut.from_length(n, window, tile) for n in q.shape[1:3])
    queries = _tiles(q, rows, columns, margin=False)
    keys, values = (
        torch.cat([_tiles(pair[i], rows, columns, margin=True) for pair in sets], dim=2) for i in (0, 1)
    )
    mask = _mask(rows, columns, q.device).repeat(1, 1, len(sets))[:, None]
    return _untiled(F.scaled_dot_product_attention(queries, keys, values, mask, scale=1.0), q, rows, columns)


@lru_cache(maxsize=1)
def _natten() -> ModuleType | None:
    try:
        return importlib.import_module("natten.functional")
    except ImportError:
        return None


@dataclass(frozen=True)
class _Cut:
    """Tiling of an axis of ``length`` tokens: tiles of ``tile`` queries with ``halo`` more keys per side."""

    length: int
    window: int
    tile: int
    halo: int

    @classmethod
    def from_length(cls, length: int, window: int, tile: int | None) -> _Cut:
        window = min(window, length)
        if tile is None or length <= max(_UNCUT, tile):
            return cls(length, window, length, 0)
        half = window // 2
        for size in range(tile, 2 * tile):
            # The first query of the image sees window - 1 tokens ahead, all within its tile and margin.
            if length % size == 0 and size > half:
                return cls(length, window, size, half)
        # The last tile may hold a single query of the image, which sees window - 1 tokens back.
        return cls(length, window, tile, window - 1)

    @property
    def count(self) -> int:
        return -(-self.length // self.tile)

    @property
    def span(self) -> int:
        return self.tile + 2 * self.halo

    def visible(self, device: torch.device) -> Tensor:
        """Return the mask of keys that each query of a tile sees, shape (count, tile, span)."""
        query = torch.arange(self.count * self.tile, device=device).reshape(self.count, self.tile, 1)
        key = torch.arange(self.span, device=device) - self.halo + query[:, :1]
        start = (query - self.window // 2).clamp(0, self.length - self.window)
        return (key >= start) & (key < start + self.window)

    def real(self, device: torch.device) -> Tensor:
        """Return the mask of queries that are not padding, shape (count, tile)."""
        query = torch.arange(self.count * self.tile, device=device).reshape(self.count, self.tile)
        return query < self.length


def _mask(rows: _Cut, columns: _Cut, device: torch.device) -> Tensor:
    """Return the mask (tiles, queries, keys).

    It is not cached: a tensor created under inference_mode or by a tracer would break a later training step.
    """
    row, column = rows.visible(device), columns.visible(device)
    both = row[:, None, :, None, :, None] & column[None, :, None, :, None, :]
    if any(cut.count * cut.tile > cut.length for cut in (rows, columns)):
        real = rows.real(device)[:, None, :, None] & columns.real(device)[None, :, None, :]
        # Queries in the padding see all keys: the softmax over no keys, and its gradient, would be NaN.
        both = both | ~real[..., None, None]
    return both.reshape(rows.count * columns.count, rows.tile * columns.tile, rows.span * columns.span)


def _tiles(x: Tensor, rows: _Cut, columns: _Cut, margin: bool) -> Tensor:
    """Reshape (B, H, W, heads, head_dim) to (tiles, B heads, tokens per tile, head_dim)."""
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
    """Self-attention over a map of tokens, with its norm but without the residual connection.

    Args:
        width: Channels D of a token, a multiple of ``head_dim``.
        head_dim: Channels per head, a multiple of 8.
        condition_width: Width M of the condition vector.
        window: Side of the neighbourhood, None for global attention.
        joint: Presence of a second set of tokens y~: keys from [x, y~], values from y~.
        dropout: Dropout rate of the output.
        of_image: Positions relative to the image, see :class:`~lavps.nn.layers.AxialRoPE`.
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
        self.head_dim, self.window = head_dim, window
        self.norm = AdaRMSNorm(width, condition_width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.joint_key = nn.Linear(2 * width, width, bias=False) if joint else None
        self.joint_value = nn.Linear(width, width, bias=False) if joint else None
        # Stored as a logarithm: a negative scale would favour dissimilar keys.
        self.log_scale = nn.Parameter(torch.full((width // head_dim,), math.log(10.0)))
        self.positions = AxialRoPE(width // head_dim, head_dim, of_image)
        self.dropout = nn.Dropout(dropout)
        self.out = zeroed(nn.Linear(width, width, bias=False))

    def forward(self, x: Tensor, condition: Tensor, fused: Tensor | None = None) -> Tensor:
        """Return (B, H, W, D) for tokens x (B, H, W, D), condition (B, M) and, if joint, y~ (B, H, W, D)."""
        x = self.norm(x, condition)
        q, k, v = (self._heads(part) for part in self.query_key_value(x).chunk(3, dim=-1))
        rotation = self.positions(*x.shape[1:3])
        q = self._direction(q, rotation, self.log_scale.exp()[:, None])
        sets = [(self._direction(k, rotation), v)]
        if self.joint_key is not None and self.joint_value is not None and fused is not None:
            key = self._heads(self.joint_key(torch.cat([x, fused], dim=-1)))
            sets.append((self._direction(key, rotation), self._heads(self.joint_value(fused))))
        if self.window is None:
            out = global_attention(q, sets)
        else:
            out = neighbourhood_attention(q, sets, self.window)
        return self.out(self.dropout(out.flatten(3)))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], -1, self.head_dim)

    def _direction(self, x: Tensor, rotation: KeyValue, scale: Tensor | float = 1.0) -> Tensor:
        """Normalize, scale and rotate by position, in at least single precision."""
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        return AxialRoPE.rotate(F.normalize(wide, dim=-1) * scale, rotation).to(x.dtype)
