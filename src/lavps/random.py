r"""Counter-based random numbers: noise as a pure function of (seed, item, sample, purpose, step, index).

No generator has a state. A batch of N therefore equals N single runs, a resumed run continues exactly,
threads are independent, and two methods compared on an item use the same measurement noise.

The address is hashed to a 128-bit key per row, and word i of a draw is a keyed hash of i, for all rows at
once: seeding a generator of NumPy or torch per row would cost more than the sampling. The numbers are drawn
on the CPU, so that they are the same for every device.

Reference: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014 (the mixing function).
"""

from __future__ import annotations

__all__ = ["NoiseStreams", "Purpose", "generator"]

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from operator import index as integer

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_WORD = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = 1 << 20  # words per row that are transformed together
_KEY_STARTS = (np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344))  # digits of pi

Words = npt.NDArray[np.uint64]


class Purpose(IntEnum):
    """Purpose of a draw. Results of published seeds depend on the numbers: never renumber."""

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
    DATA_STEP = 16


def _mix(z: Words, key: Words | None = None) -> Words:
    """Apply SplitMix64's finalizer, a bijection of 64-bit words, in place; xor a second key half-way."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    if key is not None:
        z ^= key
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _hash(*words: int) -> int:
    """Hash a few integers with the same mixing function; faster than NumPy."""
    z = 0
    for word in words:
        z = ((z ^ word) + int(_GOLDEN)) & _WORD
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
        z ^= z >> 31
    return z


def _normal_from_words(words: Words, normals: npt.NDArray[np.float32]) -> None:
    """Transform words (B, m) to standard normals (B, 2, m) by Box-Muller."""
    radius = (words >> np.uint64(40)).astype(np.float32)
    radius += np.float32(0.5)
    radius *= np.float32(2.0**-24)
    np.log(radius, out=radius)
    radius *= np.float32(-2.0)
    np.sqrt(radius, out=radius)
    angle = (words & np.uint64(0xFFFFFF)).astype(np.float32)
    angle *= np.float32(2.0 * math.pi * 2.0**-24)
    np.multiply(np.cos(angle), radius, out=normals[:, 0])
    np.multiply(np.sin(angle), radius, out=normals[:, 1])


def generator(seed: int, item: int, purpose: Purpose, index: int = 0) -> np.random.Generator:
    """Return a NumPy generator for structured draws, such as a mask or a kernel's path."""
    return NoiseStreams((seed,), (item,), (0,)).generators(purpose, index=index)[0]


@dataclass(frozen=True)
class NoiseStreams:
    """Random streams, one per row of a batch.

    Attributes:
        seeds: Seed of each row.
        items: Item id of each row (measurement).
        samples: Sample index of each row (posterior sample of the item).

    Example:
        >>> streams = NoiseStreams((0, 0), items=(3, 7), samples=(0, 0))
        >>> noise = streams.normal(Purpose.INITIAL, (1, 8, 8), like=torch.empty(0))
        >>> torch.equal(noise[1:], streams.select([1]).normal(Purpose.INITIAL, (1, 8, 8), like=noise))
        True
    """

    seeds: tuple[int, ...]
    items: tuple[int, ...]
    samples: tuple[int, ...]

    @classmethod
    def from_seed(
        cls,
        batch: int,
        seed: int | Sequence[int] = 0,
        items: Sequence[int] | None = None,
        num_samples: int = 1,
    ) -> NoiseStreams:
        """Return streams for ``batch`` items with ``num_samples`` samples each.

        Args:
            batch: Number B of items.
            seed: Seed of all items, or one per item.
            items: Item ids, 0..B-1 by default. The noise depends on the id, not on the position in the batch.
            num_samples: Number of samples per item; rows are (item 0, sample 0), (item 0, sample 1), ...
        """
        if not isinstance(num_samples, int | np.integer) or num_samples < 1:
            raise ValueError(f"the number of samples must be an integer of at least 1, got {num_samples}")
        try:
            seeds = [integer(s) for s in seed] if isinstance(seed, Iterable) else [integer(seed)] * batch
            ids = list(range(batch)) if items is None else [integer(i) for i in items]
        except TypeError:
            raise TypeError(f"seeds and item ids are integers, got seed {seed!r}, items {items!r}") from None
        if len(seeds) != batch or len(ids) != batch:
            raise ValueError(
                f"{batch} items need as many seeds and item ids: got {len(seeds)} seeds, {len(ids)} ids"
            )
        rows = [(seed, item, n) for seed, item in zip(seeds, ids, strict=True) for n in range(num_samples)]
        return cls(*(tuple(row[column] for row in rows) for column in range(3)))

    def __len__(self) -> int:
        return len(self.seeds)

    def select(self, rows: Sequence[int]) -> NoiseStreams:
        """Return the streams of these rows."""
        columns = (self.seeds, self.items, self.samples)
        return NoiseStreams(*(tuple(column[r] for r in rows) for column in columns))

    @cached_property
    def _rows(self) -> tuple[Words, ...]:
        """Two keys (B,) from the hashes of (seed, item, sample)."""
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
        """Return the two keys (B,) of a draw."""
        draw = np.uint64(_hash(int(purpose), step, index))
        return [_mix((key ^ draw) + _GOLDEN) for key in self._rows]

    def _words(self, purpose: Purpose, step: int, index: int, start: int, end: int) -> Words:
        """Return the random 64-bit words (B, end - start) of these positions."""
        first, second = self._keys(purpose, step, index)
        counter = np.arange(start, end, dtype=np.uint64) * _GOLDEN
        return _mix(counter + first[:, None], second[:, None])

    def generators(self, purpose: Purpose, step: int = 0, index: int = 0) -> list[np.random.Generator]:
        """Return a NumPy generator per row, for draws of unknown length."""
        keys = np.stack(self._keys(purpose, step, index), axis=1)
        return [np.random.Generator(np.random.SFC64(np.random.SeedSequence(key.tolist()))) for key in keys]

    def normal(
        self, purpose: Purpose, shape: Sequence[int], like: Tensor, step: int = 0, index: int = 0
    ) -> Tensor:
        """Draw standard normals (B, *shape) with ``like``'s device and dtype (complex: E|z|^2 = 1)."""
        if like.is_complex():
            parts = self.normal(purpose, (*shape, 2), like.real, step, index)
            return torch.view_as_complex(parts) * math.sqrt(0.5)
        size = math.prod(shape)
        count = (size + 1) // 2
        noise = np.empty((len(self), 2, count), dtype=np.float32)
        for start in range(0, count, _BLOCK):  # large images part by part, which needs less memory
            end = min(start + _BLOCK, count)
            _normal_from_words(self._words(purpose, step, index, start, end), noise[:, :, start:end])
        normals = noise.reshape(len(self), 2 * count)[:, :size]
        return torch.from_numpy(normals).reshape(len(self), *shape).to(like)

    def uniform(self, purpose: Purpose, step: int = 0, index: int = 0) -> Tensor:
        """Draw one uniform number in [0, 1) per row, shape (B,), float64."""
        words = self._words(purpose, step, index, 0, 1)[:, 0]
        return torch.from_numpy((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)

    def poisson(self, purpose: Purpose, rate: Tensor, step: int = 0, index: int = 0) -> Tensor:
        """Draw Poisson counts with the given rates (B, *shape), as floats of the rate's dtype."""
        rates = rate.detach().double().cpu().numpy()
        counts = np.empty_like(rates)
        for row, generator in enumerate(self.generators(purpose, step, index)):
            counts[row] = generator.poisson(rates[row])
        return torch.from_numpy(counts).to(rate)
