"""What a run has come to so far, in the memory of a few numbers: counts, histograms, the worst, a few."""

from __future__ import annotations

__all__ = ["Histogram", "Tally"]

import heapq
import math
import time
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field

from ..manifest import distrusted
from .engine import Result
from .records import Record
from .sources import Partition

_Ranked = tuple[float, str, Partition, Record]
_SHOWN, _LISTED = 24, 200


@dataclass
class Histogram:
    """Counts between edges; what lies beyond is in the first or the last bin.

    Attributes:
        edges: of the bins.
        marked: edges to be labelled.
        counts: values between two edges.
    """

    edges: tuple[float, ...]
    marked: tuple[int, ...] = ()
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.edges) - 1)

    def add(self, value: float) -> None:
        """Count a value."""
        place = bisect_right(self.edges, value) - 1
        self.counts[min(max(place, 0), len(self.counts) - 1)] += 1


def _misfits() -> Histogram:
    return Histogram(tuple(10 ** (place / 8) for place in range(-12, 21)), (4, 12, 20, 28))  # 0.03 to 316


def _shares() -> Histogram:
    return Histogram(tuple(place / 20 for place in range(21)), (0, 5, 10, 15, 20))


@dataclass
class Tally:
    """Counts of a run; ``total`` is what is known of the items to come.

    Attributes:
        partitions: how many there are.
        expected: items, where their number is known from the start.
        fresh: restored in this run.
        skipped: done before.
        failed: items that failed, in this run or before.
        failures: records of the failed, the first of them.
        worst: records of the largest misfits, as (misfit, name, ...).
        shown: a few items that stand for all: those of the smallest keys.
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
    misfits: Histogram = field(default_factory=_misfits)
    shares: Histogram = field(default_factory=_shares)
    shares_sum: float = 0.0
    shares_count: int = 0
    worst: list[_Ranked] = field(default_factory=list)
    shown: list[_Ranked] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
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
        """Items seen so far."""
        return self.fresh + self.skipped + self.failed

    @property
    def acceptance(self) -> float | None:
        """Mean share of warm starts kept; None without an inference model."""
        return self.shares_sum / self.shares_count if self.shares_count else None

    @property
    def failure_rate(self) -> float:
        """Failed items of those seen."""
        return self.failed / max(self.items, 1)

    @property
    def rate(self) -> float:
        """Images a second of this run, from its first batch on: models are loaded by then."""
        if self.first is None or self.fresh == self.first[1]:
            return 0.0
        began, before = self.first
        return (self.fresh - before) / max(self.last - began, 1e-9)

    @property
    def total(self) -> int | None:
        """Items there will be: known, or as many a partition as in the complete ones."""
        if self.expected is not None:
            return self.expected
        if self.closed:
            return max(round(self.closed_items / self.closed * self.partitions), self.items)
        return None

    def line(self) -> str:
        """The state of the run, for a terminal."""
        total = self.total
        parts = [f"{self.items}/{total if total is not None else '?'} images"]
        if self.rate > 0:
            parts.append(f"{self.rate:.3g} images/s")
            if total is not None:
                parts.append(f"ETA {_clock((total - self.items) / self.rate)}")
        if self.skipped:
            parts.append(f"{self.skipped} done before")
        parts.append(f"{self.failed} failed")
        if self.distrusted:
            parts.append(f"{self.distrusted} not to be trusted")
        if self.acceptance is not None:
            parts.append(f"acceptance {self.acceptance:.0%}")
        return ", ".join(parts)


def _push(heap: list[_Ranked], entry: _Ranked, most: int) -> None:
    """Keep the largest; two of one rank are told apart by name, never by what follows."""
    ranked = (entry[0], entry[1] + entry[2].id, entry[2], entry[3])
    if any(ranked[:2] == other[:2] for other in heap):
        return
    heapq.heappush(heap, ranked)
    if len(heap) > most:
        heapq.heappop(heap)


def _clock(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "unknown"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours}:{minutes:02d}:{rest:02d}"
