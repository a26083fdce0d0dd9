"""A bulk run from source to destination."""

from __future__ import annotations

__all__ = ["Bulk", "TooManyFailures"]

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...restoration.manifest import versions
from .engine import Cluster, PartitionFinalizer, Result, results
from .recipe import Recipe
from .records import STATE, Record, RecordStore
from .sinks import Sink
from .sources import Kind, Partition, Source
from .stats import RunStats
from .stores import Store, is_url

_COMPARED = ("task", "noise", "settings", "samples", "seed", "label", "own_noise", "hashes")
_MIN_ITEMS = 20  # minimum number of items for a meaningful failure rate


class TooManyFailures(RuntimeError):  # noqa: N818 - public name
    """The failure rate of a run exceeded its limit."""


@dataclass(frozen=True)
class Bulk:
    """A bulk restoration.

    Args:
        source: Folder, file, glob or URL of image files, tar shards or Parquet files.
        destination: Folder or URL of the results.
        recipe: Models, settings and seed.
        kind: Format of the results: files, tar or parquet; default that of the source.
        batch: Number of files sampled together by a worker.
        most_failures: Failure rate above which the run stops.
        cluster: Processes and devices.
        column: Column of the images in Parquet files.
        overwrite: Whether results of other settings in the destination are replaced.
    """

    source: str
    destination: str
    recipe: Recipe
    kind: Kind | None = None
    batch: int = 16
    most_failures: float = 1.0
    cluster: Cluster = field(default_factory=Cluster)
    column: str = ""
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"the batch size must be at least 1, got {self.batch}")
        if not 0 <= self.most_failures <= 1:
            raise ValueError(f"the failure rate must lie between 0 and 1, got {self.most_failures}")
        if not is_url(self.source) and not is_url(self.destination):
            destination, source = Path(self.destination).resolve(), Path(self.source).resolve()
            if source in (destination, *destination.parents):
                raise ValueError(
                    f"{self.destination} lies in {self.source}, so results would be read as measurements: "
                    "choose a folder beside it"
                )

    def run(self, progress: Callable[[RunStats], None] = lambda tally: None) -> RunStats:
        """Restore all items without a result.

        Raises:
            ValueError: The destination holds results of other settings, which are not to be overwritten.
            TooManyFailures: The failure rate exceeds its limit; results so far are kept and not repeated.
        """
        source = Source.open(self.source, self.column)
        partitions = source.partitions()
        store = Store(self.destination)
        ledger = RecordStore(store, source.id, self._start(store, source.id))
        sink = Sink(ledger, self.kind or source.kind)
        _require_distinct_shards(sink, partitions)
        tally = RunStats(len(partitions), len(source.names) if source.kind == "files" else None)
        closing, unfinished = PartitionFinalizer(sink), dict[str, _Unfinished]()
        for result in results(source, self.recipe, closing, partitions, self.batch, self.cluster):
            tally.add(result)
            _close_if_complete(closing, unfinished, result)
            progress(tally)
            if tally.items >= _MIN_ITEMS and tally.failure_rate > self.most_failures:
                raise TooManyFailures(
                    f"{tally.failed} of {tally.items} images failed, more than {self.most_failures:.0%}; the "
                    f"most frequent reason: {tally.reasons.most_common(1)[0][0]}"
                )
        ledger.forget([partition.id for partition in partitions])
        return tally

    def _start(self, store: Store, source: str) -> int:
        """Return the number of this run, and write its description to the destination."""
        name, number = f"{STATE}/run.json", 0
        settings: dict[str, Any] = {}  # last settings of each source of the destination
        if store.size(name) is not None:
            last = json.loads(store.read(name))
            number, settings = int(last["run"]) + 1, last.get("settings of sources", {})
        described = self.describe()
        ours = {entry: described[entry] for entry in _COMPARED} | {"lavps": described["versions"]["lavps"]}
        theirs = settings.get(source, ours)
        different = [entry for entry in ours if theirs.get(entry) != ours[entry]]
        if different and not self.overwrite:
            raise ValueError(
                f"{self.destination} holds results of other settings ({', '.join(different)}): choose "
                "another folder, or give --overwrite to replace them"
            )
        described |= {"run": number, "settings of sources": settings | {source: ours}}
        store.write(name, (json.dumps(described, indent=2) + "\n").encode())
        return number

    def describe(self) -> dict[str, Any]:
        """Return the run in JSON values."""
        job = self.recipe.job
        spec = job.measuring
        return {
            "source": self.source,
            "destination": self.destination,
            "kind": self.kind,
            "batch": self.batch,
            "cluster": asdict(self.cluster),
            "task": spec.task,
            "noise": spec.noise,
            "prior": job.prior,
            "model": job.model,
            "settings": None if spec.task is None else self.recipe.settings(spec.task).to_dict(),
            "samples": job.samples,
            "seed": job.seed,
            "label": job.label,
            "own_noise": self.recipe.own_noise,
            "hashes": dict(self.recipe.hashes),
            "versions": versions(),
        }


@dataclass
class _Unfinished:
    """Batches of an incomplete partition, by number."""

    batches: dict[int, list[Record]] = field(default_factory=dict)
    total: int | None = None
    fresh: bool = False


def _close_if_complete(
    closing: PartitionFinalizer, unfinished: dict[str, _Unfinished], result: Result
) -> None:
    partition, ledger = result.partition, closing.sink.ledger
    state = unfinished.setdefault(partition.id, _Unfinished())
    state.batches[result.number] = result.records
    state.fresh |= any(result.fresh)
    if result.total >= 0:
        state.total = result.total
    if sum(map(len, state.batches.values())) == state.total:
        records = [record for number in sorted(state.batches) for record in state.batches[number]]
        if state.fresh or ledger.segments(partition.id) or not ledger.is_closed(partition.id):
            closing.close(partition, records)
        del unfinished[partition.id]


def _require_distinct_shards(sink: Sink, partitions: list[Partition]) -> None:
    if sink.kind != "files":
        counts = Counter(sink.shard(partition) for partition in partitions)
        if repeated := [shard for shard, count in counts.items() if count > 1]:
            raise ValueError(f"two shards would both be written to {repeated[0]}: rename one")
