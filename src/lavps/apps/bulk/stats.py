"""Statistics of a run, in constant memory: counts, histograms, largest misfits and examples."""

from __future__ import annotations

__all__ = ["Histogram", "RunStats"]

import heapq
import time
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

from ...restoration.manifest import distrusted
from .engine import Result
from .records import Record
from .sources import Partition

_Ranked = tuple[float, str, Partition, Record]
_MISFITS = tuple(10 ** (exponent / 8) for exponent in range(-12, 21))  # 0.03 to 316
_SHARES = tuple(index / 20 for index in range(21))
_SHOWN, _LISTED = 24, 200  # maximum numbers of examples, and of records per list


@dataclass
class Histogram:
    """Counts per bin; values beyond the edges count in the first or the last bin."""

    edges: tuple[float, ...]  # Edges of the bins
    marked: tuple[int, ...] = ()  # Indices of the labelled edges
    counts: list[int] = field(default_factory=list)  # Number of values per bin

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.edges) - 1)

    def add(self, value: float) -> None:
        """Count a value."""
        index = bisect_right(self.edges, value) - 1
        self.counts[min(max(index, 0), len(self.counts) - 1)] += 1


@dataclass
class RunStats:
    """Statistics of a run.

    Attributes:
        partitions: Number of partitions.
        expected: Number of items if known from the start.
        fresh: Number of items restored in this run.
        skipped: Number of items restored by earlier runs.
        failed: Number of items that failed, in this run or earlier.
        tried: Number of items processed in this run.
        failures: First failed items.
        worst: Largest misfits, as (misfit, name, partition, record).
        shown: Examples, a pseudo-random choice: the items of the smallest keys.

    Example:
        >>> RunStats(partitions=1, expected=10, fresh=2, failed=1).line()
        '3/10 images, 1 failed'
    """

    partitions: int
    expected: int | None = None
    fresh: int = 0
    skipped: int = 0
    failed: int = 0
    tried: int = 0
    distrusted: int = 0
    seconds: float = 0.0
    closed: int = 0
    closed_items: int = 0
    failures: list[tuple[Partition, Record]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    misfits: Histogram = field(default_factory=lambda: Histogram(_MISFITS, (4, 12, 20, 28)))
    shares: Histogram = field(default_factory=lambda: Histogram(_SHARES, (0, 5, 10, 15, 20)))
    shares_sum: float = 0.0
    shares_count: int = 0
    worst: list[_Ranked] = field(default_factory=list)
    shown: list[_Ranked] = field(default_factory=list)
    first: tuple[float, int] | None = None
    last: float = 0.0

    def add(self, result: Result) -> None:
        """Count the items of a batch."""
        if result.total >= 0:
            self.closed += 1
            self.closed_items += result.total
        for record, fresh in zip(result.records, result.fresh, strict=True):
            self.tried += fresh
            if record.status == "ok":
                self.fresh += fresh
                self.skipped += not fresh
                self.seconds += (record.seconds or 0.0) if fresh else 0.0
                self._judge(result.partition, record)
            else:
                self.failed += 1
                self.reasons[record.reason] += 1
                if len(self.failures) < _LISTED:
                    self.failures.append((result.partition, record))
        if any(result.fresh):
            self.last = time.monotonic()
            self.first = self.first or (self.last, self.fresh)

    def _judge(self, partition: Partition, record: Record) -> None:
        if record.chi_square is not None:
            self.misfits.add(record.chi_square)
            if distrusted(record.chi_square):
                self.distrusted += 1
                _push(self.worst, (record.chi_square, record.name, partition, record), _LISTED)
        if record.acceptance is not None:
            self.shares.add(record.acceptance)
            self.shares_sum += record.acceptance
            self.shares_count += 1
        _push(self.shown, (-int(record.key[:15] or "0", 16), record.name, partition, record), _SHOWN)

    @property
    def items(self) -> int:
        """Number of items so far."""
        return self.fresh + self.skipped + self.failed

    @property
    def acceptance(self) -> float | None:
        """Mean acceptance rate of the safeguard; None without an inference model."""
        return self.shares_sum / self.shares_count if self.shares_count else None

    @property
    def failure_rate(self) -> float:
        """Fraction of failed items."""
        return self.failed / max(self.items, 1)

    @property
    def rate(self) -> float:
        """Images per second of this run after its first batch, so that loading of the models is excluded."""
        if self.first is None or self.fresh == self.first[1]:
            return 0.0
        start, before = self.first
        return (self.fresh - before) / max(self.last - start, 1e-9)

    @property
    def total(self) -> int | None:
        """Number of items, known or extrapolated from complete partitions; None before the first of them."""
        if self.expected is not None:
            return self.expected
        if self.closed:
            return max(round(self.closed_items / self.closed * self.partitions), self.items)
        return None

    def line(self) -> str:
        """Return the state of the run as one line of text."""
        total = self.total
        parts = [f"{self.items}/{total if total is not None else '?'} images"]
        if self.rate > 0:
            parts.append(f"{self.rate:.3g} images/s")
            if total is not None:
                parts.append(f"ETA {timedelta(seconds=round((total - self.items) / self.rate))}")
        if self.skipped:
            parts.append(f"{self.skipped} restored earlier")
        parts.append(f"{self.failed} failed")
        if self.distrusted:
            parts.append(f"{self.distrusted} with a large misfit")
        if self.acceptance is not None:
            parts.append(f"acceptance {self.acceptance:.0%}")
        return ", ".join(parts)


def _push(heap: list[_Ranked], entry: _Ranked, most: int) -> None:
    """Keep the largest entries; name and partition break ties, so that records are never compared."""
    ranked = (entry[0], entry[1] + entry[2].id, entry[2], entry[3])
    if any(ranked[:2] == other[:2] for other in heap):
        return
    heapq.heappush(heap, ranked)
    if len(heap) > most:
        heapq.heappop(heap)
