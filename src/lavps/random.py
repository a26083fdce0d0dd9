r"""Noise as a pure function of (seed, item, sample, purpose, step, index).

Nothing here holds a state that advances: a draw is found by its address. So a batch of N equals N single
runs, a resumed run continues exactly, a thread cannot disturb another, and two methods compared on an item
see the same measurement noise.

The address is hashed to a 128-bit key per row, and word number i of the draw is a keyed hash of i, for all
rows at once. (NumPy's and torch's generators are seeded one row at a time; for many small rows that costs
more than the sampling.) All on the CPU, whatever the device of the images: every device receives the same
numbers.

Reference: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014 (the mixing function).
"""

from __future__ import annotations

__all__ = ["NoiseStreams", "Purpose", "generator"]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_WORD = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_KEY_STARTS = (np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344))  # digits of pi

Words = npt.NDArray[np.uint64]


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
    TIME = 12
    TRAINING = 13
    AUGMENTATION = 14
    REFERENCE = 15


def _mix(z: Words, key: Words | None = None) -> Words:
    """SplitMix64's finaliser, a bijection of 64-bit words, in place; a second key enters half-way."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    if key is not None:
        z ^= key
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _hash(*words: int) -> int:
    """The same mixing of a few plain integers, which NumPy would be slow at."""
    z = 0
    for word in words:
        z = ((z ^ word) + int(_GOLDEN)) & _WORD
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
        z ^= z >> 31
    return z


def _normal_from_words(words: Words) -> npt.NDArray[np.float32]:
    """Box-Muller: words (B, m) to standard normals (B, 2 m)."""
    radius = (words >> np.uint64(40)).astype(np.float32)
    radius += np.float32(0.5)
    radius *= np.float32(2.0**-24)
    np.log(radius, out=radius)
    radius *= np.float32(-2.0)
    np.sqrt(radius, out=radius)
    angle = (words & np.uint64(0xFFFFFF)).astype(np.float32)
    angle *= np.float32(2.0 * math.pi * 2.0**-24)
    normals = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    normals *= radius[:, None]
    return normals.reshape(len(words), 2 * words.shape[1])


def generator(seed: int, item: int, purpose: Purpose, index: int = 0) -> np.random.Generator:
    """A NumPy generator for draws with structure of their own (a kernel's path, a mask)."""
    return NoiseStreams((seed,), (item,), (0,)).generators(purpose, index=index)[0]


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

    @cached_property
    def _rows(self) -> tuple[Words, ...]:
        """Both keys of every row after hashing (seed, item, sample): two arrays (B,)."""
        columns = [
            np.array([word & _WORD for word in column], dtype=np.uint64)
            for column in (self.seeds, self.items, self.samples)
        ]
        keys = []
        for start in _KEY_STARTS:
            key = np.full(len(self), start, dtype=np.uint64)
            for column in columns:
                key = _mix((key ^ column) + _GOLDEN)
            keys.append(key)
        return tuple(keys)

    def _keys(self, purpose: Purpose, step: int, index: int) -> list[Words]:
        """Both keys of every row for this draw: two arrays (B,)."""
        draw = np.uint64(_hash(int(purpose), step, index))
        return [_mix((key ^ draw) + _GOLDEN) for key in self._rows]

    def _words(self, purpose: Purpose, step: int, index: int, count: int) -> Words:
        """``count`` 64-bit words a row, (B, count)."""
        first, second = self._keys(purpose, step, index)
        counter = np.arange(count, dtype=np.uint64) * _GOLDEN
        return _mix(counter + first[:, None], second[:, None])

    def generators(self, purpose: Purpose, step: int = 0, index: int = 0) -> list[np.random.Generator]:
        """A NumPy generator a row, for draws whose length is not known beforehand."""
        keys = np.stack(self._keys(purpose, step, index), axis=1)
        return [np.random.Generator(np.random.SFC64(np.random.SeedSequence(key.tolist()))) for key in keys]

    def normal(
        self, purpose: Purpose, shape: Sequence[int], like: Tensor, step: int = 0, index: int = 0
    ) -> Tensor:
        """Standard normals (B, *shape) on ``like``'s device and dtype (complex: unit variance in all)."""
        if like.is_complex():
            parts = self.normal(purpose, (*shape, 2), like.real, step, index)
            return torch.view_as_complex(parts) * math.sqrt(0.5)
        size = math.prod(shape)
        noise = _normal_from_words(self._words(purpose, step, index, (size + 1) // 2))
        return torch.from_numpy(noise[:, :size]).reshape(len(self), *shape).to(like)

    def uniform(self, purpose: Purpose, step: int = 0, index: int = 0) -> Tensor:
        """One uniform number in [0, 1) per row, shape (B,), float64."""
        words = self._words(purpose, step, index, 1)[:, 0]
        return torch.from_numpy((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)

    def poisson(self, purpose: Purpose, rate: Tensor, step: int = 0, index: int = 0) -> Tensor:
        """Counts of the given rates (B, *shape), as floats of the rate's dtype."""
        rates = rate.detach().double().cpu().numpy()
        counts = np.empty_like(rates)
        for row, generator in enumerate(self.generators(purpose, step, index)):
            counts[row] = generator.poisson(rates[row])
        return torch.from_numpy(counts).to(rate)
