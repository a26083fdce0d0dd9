"""The bulk engine: a streaming pipeline of Ray Data, the same on a laptop and on a cluster.

.. code-block:: text

    partitions -> read, hash, skip (tasks) -> restore (actors, one model each) -> write (tasks) -> records

A row is a batch. Ray schedules, retries what a lost worker or node had, and holds reading back while the
actors are busy; the driver sees records only. All that makes a result is in the other modules of this room.
"""

from __future__ import annotations

__all__ = ["Closing", "Cluster", "Result", "readers_for", "results", "writers_for"]

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..extras import require, require_ray
from .batches import plan
from .recipe import Recipe
from .records import Ledger, Record
from .rows import done_schema, pack, planned_schema, result_schema, unpack
from .sinks import Sink
from .sources import Partition, Source
from .suspects import run_warily
from .worker import BatchRestorer, Finished

_SPARE = 2  # processors beside the workers'
_CLOSING = 16  # partitions that are being closed at once
_READERS, _WORKERS_A_READER, _WORKERS_A_WRITER = 4, 16, 8
_OBJECT_STORE = 1 << 30  # bytes for batches on their way, on a machine of our own


def readers_for(workers: int) -> int:
    """Tasks that read at once, at most."""
    return max(min(workers, _READERS), -(-workers // _WORKERS_A_READER))


def writers_for(workers: int) -> int:
    """Tasks that write at once, at most."""
    return -(-workers // _WORKERS_A_WRITER)


@dataclass(frozen=True)
class Cluster:
    """What the work runs on.

    Attributes:
        workers: processes with a model each; default one a GPU (or share of one), or a processor. With 0 all
            is done in this process, without Ray.
        cpus: processors a worker; as many threads compute.
        gpus: GPUs a worker, 0.25 for four on one; default 1 where the device is cuda.
        address: of a Ray cluster; default one of this machine's own, or that of RAY_ADDRESS.
    """

    workers: int | None = None
    cpus: int = 1
    gpus: float | None = None
    address: str | None = None

    @contextmanager
    def connected(self, device: str) -> Iterator[tuple[int, float]]:
        """The number of workers and the GPUs of each, while Ray runs."""
        ray = require_ray("bulk")
        gpus = self.gpus if self.gpus is not None else float(device.startswith("cuda"))
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        ours = not ray.is_initialized()
        if ours and (self.address or os.environ.get("RAY_ADDRESS")):
            ray.init(address=self.address, **quiet)
        elif ours:
            workers = self.workers or self._suitable(os.cpu_count() or 1, torch.cuda.device_count(), gpus)
            ray.init(
                num_cpus=workers * self.cpus + _SPARE,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE,
                **quiet,
            )
        try:
            there = ray.cluster_resources()
            suitable = self._suitable(int(there.get("CPU", 1)) - _SPARE, there.get("GPU", 0), gpus)
            yield self.workers or suitable, gpus
        finally:
            if ours:
                ray.shutdown()

    def _suitable(self, cpus: int, gpus: float, share: float) -> int:
        return max(int(gpus / share) if share else cpus // self.cpus, 1)


def _quieten() -> None:
    """Ray's own words go to its log files; they set their loggers up when they are imported."""
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)


@dataclass(frozen=True)
class Result:
    """A batch that is written, or the end of a partition.

    Attributes:
        partition: whose.
        number: of the batch in it.
        records: of its items.
        fresh: which of them are of this run.
        total: items of the partition, at its end; else -1.
    """

    partition: Partition
    number: int
    records: list[Record]
    fresh: list[bool]
    total: int


class _Reader:
    def __init__(self, source: Source, recipe: Recipe, sink: Sink, size: int) -> None:
        self.source, self.recipe, self.sink, self.size = source, recipe, sink, size

    def __call__(self, table: Any) -> Iterator[Any]:
        arrow = require("pyarrow", "bulk")
        for row in table.to_pylist():
            partition, _ = unpack(row)
            total = 0
            for planned in plan(self.source, partition, self.recipe, self.sink, self.size):
                total += len(planned.batch.items)
                yield arrow.Table.from_pylist([pack(partition, planned)], schema=planned_schema())
            yield arrow.Table.from_pylist([pack(partition, None, total)], schema=planned_schema())


class _Restorer:
    """The actor: made once a worker, with models that are loaded when the first batch comes."""

    def __init__(self, recipe: Recipe, ledger: Ledger, threads: int) -> None:
        torch.set_num_threads(threads)
        self.restorer, self.ledger, self.restarted = BatchRestorer(recipe), ledger, _is_restarted()

    def __call__(self, table: Any) -> Any:
        arrow = require("pyarrow", "bulk")
        return arrow.Table.from_pylist([self._row(row) for row in table.to_pylist()], schema=done_schema())

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        _, planned = unpack(row)
        finished = [Finished(planned.settled[i], {}) for i in sorted(planned.settled)]
        fresh = [False] * len(planned.batch.items)
        if not planned.is_settled:
            batch = planned.batch
            if self.restarted:
                finished = run_warily(self.restorer, batch, planned.number, self.ledger)
            else:
                finished = self.restorer.run(batch)
            for place in range(len(finished)):
                fresh[place] = place not in planned.settled
                if not fresh[place]:
                    finished[place] = Finished(planned.settled[place], {})
        return {name: row[name] for name in ("partition", "number", "total", "replacing")} | {
            "records": [one.record.encode() for one in finished],
            "fresh": fresh,
            "outputs": [list(one.outputs.values()) for one in finished],
        }


def _is_restarted() -> bool:
    """Whether this actor takes the place of one that was lost."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return bool(ray.get_runtime_context().was_current_actor_reconstructed)


class _Writer:
    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def __call__(self, table: Any) -> Any:
        arrow = require("pyarrow", "bulk")
        rows = table.to_pylist()
        for row in rows:
            records = [Record.decode(line) for line in row["records"]]
            fresh = [
                Finished(record, dict(zip(record.outputs, outputs, strict=True)))
                for record, outputs, new in zip(records, row.pop("outputs"), row["fresh"], strict=True)
                if new
            ]
            if fresh:
                partition = unpack_partition(row)
                self.sink.write(partition, f"{row['number']:06d}", fresh, row["replacing"])
        return arrow.Table.from_pylist(rows, schema=result_schema())


def unpack_partition(row: dict[str, Any]) -> Partition:
    """The partition of a row that has no items any more."""
    nothing: dict[str, Any] = {name: [] for name in planned_schema().names if name not in row}
    return unpack(row | nothing)[0]


class Closing:
    """Closes complete partitions: on the cluster while Ray runs, for shards are copied; else here.

    Args:
        sink: of the partitions.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._pending: list[Any] = []

    def close(self, partition: Partition, records: list[Record]) -> None:
        """Close a partition, now or soon."""
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            self.sink.close(partition, records)
            return
        self._pending.append(ray.remote(_close).options(num_cpus=0).remote(self.sink, partition, records))
        if len(self._pending) >= _CLOSING:
            self.wait(len(self._pending) - _CLOSING + 1)

    def wait(self, count: int | None = None) -> None:
        """Until so many, or all, are closed."""
        if self._pending:
            ray = sys.modules["ray"]
            done, self._pending = ray.wait(self._pending, num_returns=count or len(self._pending))
            ray.get(done)


def _close(sink: Sink, partition: Partition, records: list[Record]) -> None:
    sink.close(partition, records)


def _results(table: Any) -> Iterator[Result]:
    for row in table.to_pylist():
        records = [Record.decode(line) for line in row["records"]]
        yield Result(unpack_partition(row), row["number"], records, row["fresh"], row["total"])


def results(
    source: Source,
    recipe: Recipe,
    closing: Closing,
    partitions: list[Partition],
    size: int,
    cluster: Cluster,
) -> Iterator[Result]:
    """Restore everything; a result for every batch as it is written, in no particular order.

    Args:
        source: what.
        recipe: how.
        closing: whereto, what is there is not made again; it closes partitions in the meantime.
        partitions: of the source.
        size: files a batch.
        cluster: where; with no workers in this process, one batch after another, without Ray.
    """
    arrow = require("pyarrow", "bulk")
    tables = [
        arrow.Table.from_pylist([pack(partition, None)], schema=planned_schema()) for partition in partitions
    ]
    reader, writer = _Reader(source, recipe, closing.sink, size), _Writer(closing.sink)
    if cluster.workers == 0:
        restorer = _Restorer(recipe, writer.sink.ledger, cluster.cpus)
        for table in tables:
            for batch in reader(table):
                yield from _results(writer(restorer(batch)))
        return
    with cluster.connected(recipe.job.device) as (workers, gpus):
        for batch in _pipeline(tables, reader, writer, recipe, cluster, workers, gpus):
            yield from _results(batch)
        closing.wait()


def _pipeline(
    tables: list[Any],
    reader: _Reader,
    writer: _Writer,
    recipe: Recipe,
    cluster: Cluster,
    workers: int,
    gpus: float,
) -> Iterator[Any]:
    data = require("ray.data", "bulk")
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = 1  # a row a block: a batch goes to whichever worker is free
    plain: dict[str, Any] = {"batch_size": 1, "batch_format": "pyarrow"}
    pool = data.ActorPoolStrategy(
        min_size=1, max_size=workers, initial_size=workers, max_tasks_in_flight_per_actor=2
    )
    readers, writers = min(len(tables), readers_for(workers)), writers_for(workers)
    # Reading is no part of an actor as long as their processors differ: Ray would fuse the two.
    pipeline = (
        data.from_arrow(tables)
        .map_batches(reader, num_cpus=0.5, compute=data.TaskPoolStrategy(size=readers), **plain)
        .map_batches(
            _Restorer,
            fn_constructor_args=(recipe, writer.sink.ledger, cluster.cpus),
            compute=pool,
            num_cpus=cluster.cpus,
            num_gpus=gpus or None,
            **plain,
        )
        .map_batches(writer, num_cpus=0.5, compute=data.TaskPoolStrategy(size=writers), **plain)
    )
    _quieten()
    yield from pipeline.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
