r"""Noise as a pure function of (seed, item, sample, purpose, step, index).

Nothing here holds a state that advances: a draw is found by its address. So a batch of N equals N single
runs, a resumed run continues exactly, a thread cannot disturb another, and two methods compared on an item
see the same measurement noise. Bits come from a generator seeded by a hash of the address, on the CPU,
whatever the device of the images: every device receives the same numbers.
"""

from __future__ import annotations

__all__ = ["NoiseStreams", "Purpose", "generator"]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

_WORD = (1 << 64) - 1


class Purpose(IntEnum):
    """What a draw is for. The numbers are part of every published seed: add, never renumber."""

    PRIOR = 0
    MEASUREMENT = 1
    OPERATOR = 2
    INITIAL = 3
    MIDPOINT = 4
    TRANSITION = 5
    OBJECTIVE = 6
    VARIATIONAL = 7
    DDIM = 8
    RENOISE = 9
    PROBE = 10
    COMPONENT = 11


def _bits(address: Sequence[int]) -> np.random.SFC64:
    words = np.array([word & _WORD for word in address], dtype=np.uint64)
    return np.random.SFC64(np.random.SeedSequence(words.view(np.uint32)))


def generator(seed: int, item: int, purpose: Purpose, index: int = 0) -> np.random.Generator:
    """A NumPy generator for draws with structure of their own (a kernel's path, a mask)."""
    return np.random.Generator(_bits((seed, item, 0, purpose, 0, index)))


def _normal_from_bits(words: Tensor) -> Tensor:
    """Box-Muller on int32 words (B, 2m) -> standard normals (B, 2m), float32."""
    m = words.shape[1] // 2
    uniform = words[:, :m].bitwise_and(0xFFFFFF).float().add_(0.5).mul_(2.0**-24)
    radius = uniform.log_().mul_(-2.0).sqrt_()
    angle = words[:, m:].float().mul_(2.0 * math.pi * 2.0**-32)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)


@dataclass(frozen=True)
class NoiseStreams:
    """One stream per row of a batch.

    Attributes:
        seeds: one seed per row.
        items: one item id per row (which measurement).
        samples: one sample index per row (which of the item's posterior samples).
    """

    seeds: tuple[int, ...]
    items: tuple[int, ...]
    samples: tuple[int, ...]

    @classmethod
    def of(
        cls,
        batch: int,
        seed: int | Sequence[int] = 0,
        items: Sequence[int] | None = None,
        num_samples: int = 1,
    ) -> NoiseStreams:
        """Streams for ``batch`` items with ``num_samples`` samples each, item-major.

        Args:
            batch: number of items B.
            seed: one seed for all items, or one per item.
            items: item ids, default 0..B-1. The id, not the place in the batch, decides the noise.
            num_samples: N samples an item: rows are (item 0, sample 0), (item 0, sample 1), ...
        """
        seeds = [int(seed)] * batch if isinstance(seed, int | np.integer) else [int(s) for s in seed]
        ids = list(range(batch)) if items is None else [int(i) for i in items]
        if len(seeds) != batch or len(ids) != batch:
            raise ValueError(
                f"{batch} items need as many seeds and item ids: got {len(seeds)} seeds, {len(ids)} ids"
            )
        rows = [(b, n) for b in range(batch) for n in range(num_samples)]
        return cls(
            tuple(seeds[b] for b, _ in rows), tuple(ids[b] for b, _ in rows), tuple(n for _, n in rows)
        )

    def __len__(self) -> int:
        return len(self.seeds)

    def select(self, rows: Sequence[int]) -> NoiseStreams:
        """The streams of these rows."""
        return NoiseStreams(
            tuple(self.seeds[r] for r in rows),
            tuple(self.items[r] for r in rows),
            tuple(self.samples[r] for r in rows),
        )

    def _words(self, purpose: Purpose, step: int, index: int, count: int) -> Tensor:
        """``count`` 64-bit words a row, as int32 pairs (B, 2 count)."""
        rows = np.empty((len(self), count), dtype=np.uint64)
        for row, address in enumerate(zip(self.seeds, self.items, self.samples, strict=True)):
            rows[row] = _bits((*address, purpose, step, index)).random_raw(count)
        return torch.from_numpy(rows.view(np.int32))

    def normal(
        self, purpose: Purpose, shape: Sequence[int], like: Tensor, step: int = 0, index: int = 0
    ) -> Tensor:
        """Standard normals (B, *shape) on ``like``'s device and dtype (complex: unit variance in all)."""
        if like.is_complex():
            parts = self.normal(purpose, (*shape, 2), like.real, step, index)
            return torch.view_as_complex(parts) * math.sqrt(0.5)
        size = math.prod(shape)
        noise = _normal_from_bits(self._words(purpose, step, index, (size + 1) // 2))
        return noise[:, :size].reshape(len(self), *shape).to(like)

    def uniform(self, purpose: Purpose, step: int = 0, index: int = 0) -> Tensor:
        """One uniform number in [0, 1) per row, shape (B,), float64."""
        words = self._words(purpose, step, index, 1).view(torch.int64)
        return words.squeeze(1).bitwise_and((1 << 53) - 1).double() * 2.0**-53

    def poisson(self, purpose: Purpose, rate: Tensor, step: int = 0, index: int = 0) -> Tensor:
        """Counts of the given rates (B, *shape), as floats of the rate's dtype."""
        rates = rate.detach().double().cpu().numpy()
        counts = np.empty_like(rates)
        for row, address in enumerate(zip(self.seeds, self.items, self.samples, strict=True)):
            counts[row] = np.random.Generator(_bits((*address, purpose, step, index))).poisson(rates[row])
        return torch.from_numpy(counts).to(rate)
