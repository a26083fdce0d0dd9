"""A bulk run from end to end: source to destination, partitions closed as they become complete, a report."""

from __future__ import annotations

__all__ = ["Bulk", "TooManyFailures"]

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..manifest import versions
from .engine import Closing, Cluster, Result, results
from .recipe import Recipe
from .records import STATE, Ledger, Record
from .sinks import Sink
from .sources import Kind, Partition, Source
from .stores import Store, is_url
from .tally import Tally

_FEWEST = 20  # items before a rate of failures means anything


class TooManyFailures(RuntimeError):  # noqa: N818 - what happened, in plain words
    """More items failed than the run may lose."""


@dataclass(frozen=True)
class Bulk:
    """A bulk restoration.

    Args:
        source: folder, file, glob or URL of files, tar shards or Parquet.
        destination: folder or URL.
        recipe: how.
        kind: files, tar or parquet; default that of the source.
        batch: files at a time on a worker.
        most_failures: share of failed items at which the run stops.
        cluster: where.
        column: of images in Parquet.
    """

    source: str
    destination: str
    recipe: Recipe
    kind: Kind | None = None
    batch: int = 16
    most_failures: float = 1.0
    cluster: Cluster = field(default_factory=Cluster)
    column: str = ""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"a batch has at least 1 file, got {self.batch}")
        if not 0 <= self.most_failures <= 1:
            raise ValueError(f"a failure rate lies between 0 and 1, got {self.most_failures}")
        if not is_url(self.source) and not is_url(self.destination):
            inside = Path(self.destination).resolve()
            source = Path(self.source).resolve()
            if inside == source or source in inside.parents:
                raise ValueError(
                    f"{self.destination} lies in {self.source}, and what is written would be read: "
                    "choose a folder beside it"
                )

    def run(self, progress: Callable[[Tally], None] = lambda tally: None) -> Tally:
        """Restore what is not there yet.

        Raises:
            TooManyFailures: what was done stays, and is not done again.
        """
        source = Source.open(self.source, self.column)
        partitions = source.partitions()
        store = Store(self.destination)
        ledger = Ledger(store, source.id, self._begin(store, source))
        sink = Sink(ledger, self.kind or source.kind)
        self._require_shards(sink, partitions)
        tally = Tally(len(partitions), len(source.names) if source.kind == "files" else None)
        open_partitions: dict[str, _Open] = {}
        closing = Closing(sink)
        for result in results(source, self.recipe, closing, partitions, self.batch, self.cluster):
            tally.add(result)
            self._close(closing, open_partitions, result)
            progress(tally)
            if tally.items >= _FEWEST and tally.failure_rate > self.most_failures:
                raise TooManyFailures(
                    f"{tally.failed} of {tally.items} images failed, more than {self.most_failures:.0%}; the "
                    f"most frequent reason: {tally.reasons.most_common(1)[0][0]}"
                )
        ledger.forget([partition.id for partition in partitions])
        return tally

    @staticmethod
    def _close(closing: Closing, open_partitions: dict[str, _Open], result: Result) -> None:
        """A partition of which every item is known becomes one file of the manifest."""
        partition = result.partition
        state = open_partitions.setdefault(partition.id, _Open())
        state.batches[result.number] = result.records
        state.fresh |= any(result.fresh)
        if result.total >= 0:
            state.total = result.total
        if state.complete:
            records = [record for number in sorted(state.batches) for record in state.batches[number]]
            ledger = closing.sink.ledger
            if state.fresh or ledger.segments(partition.id) or not ledger.is_closed(partition.id):
                closing.close(partition, records)
            del open_partitions[partition.id]

    @staticmethod
    def _require_shards(sink: Sink, partitions: list[Partition]) -> None:
        if sink.kind != "files":
            shards = [sink.shard(partition) for partition in partitions]
            twice = {shard for shard in shards if shards.count(shard) > 1} if len(shards) < 10_000 else set()
            if twice:
                raise ValueError(f"two shards would both be written to {twice.pop()}: rename one")

    def _begin(self, store: Store, source: Source) -> int:
        """The number of this run; what it does is written beside the records."""
        name, number = f"{STATE}/run.json", 0
        if store.size(name) is not None:
            number = int(json.loads(store.read(name))["run"]) + 1
        store.write(name, (json.dumps(self.describe() | {"run": number}, indent=2) + "\n").encode())
        return number

    def describe(self) -> dict[str, Any]:
        """The run in plain JSON values."""
        job = self.recipe.job
        how = job.measuring
        return {
            "source": self.source,
            "destination": self.destination,
            "kind": self.kind,
            "batch": self.batch,
            "cluster": asdict(self.cluster),
            "task": how.task,
            "noise": how.noise,
            "prior": job.prior,
            "model": job.model,
            "settings": None if how.task is None else self.recipe.settings(how.task).to_dict(),
            "samples": job.samples,
            "seed": job.seed,
            "own_noise": self.recipe.own_noise,
            "hashes": dict(self.recipe.hashes),
            "versions": versions(),
        }


@dataclass
class _Open:
    """A partition that is not complete yet."""

    batches: dict[int, list[Record]] = field(default_factory=dict)
    total: int | None = None
    fresh: bool = False

    @property
    def complete(self) -> bool:
        return self.total is not None and sum(map(len, self.batches.values())) == self.total
