"""The bulk engine: a streaming pipeline of Ray Data, identical on a laptop and on a cluster.

.. code-block:: text

    partitions -> read, hash, skip (tasks) -> restore (actors, one model each) -> write (tasks) -> records

Each row is a batch. Ray schedules the stages, retries the work of lost workers and nodes, and throttles
reading while the actors are busy. The driver receives records only.
"""

from __future__ import annotations

__all__ = ["Cluster", "PartitionFinalizer", "Result", "readers_for", "results", "writers_for"]

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import tyro

from ...extras import require, require_ray, start_ray
from .batches import plan
from .isolation import IsolatedRestorer
from .poison import run_warily
from .recipe import Recipe
from .records import Record, RecordStore
from .rows import Row, pack, read_rows, row_table, unpack
from .sinks import Sink
from .sources import Partition, Source
from .worker import BatchRestorer, Finished

_SPARE = 2  # processors in addition to those of the workers
_MAX_CLOSING = 16  # maximum number of partitions closed concurrently
_READERS, _WORKERS_PER_READER, _WORKERS_PER_WRITER = 4, 16, 8
_OBJECT_STORE = 1 << 30  # bytes of memory for batches in transit, if Ray is started here


def readers_for(workers: int) -> int:
    """Return the maximum number of concurrent reading tasks."""
    return max(min(workers, _READERS), -(-workers // _WORKERS_PER_READER))


def writers_for(workers: int) -> int:
    """Return the maximum number of concurrent writing tasks."""
    return -(-workers // _WORKERS_PER_WRITER)


@dataclass(frozen=True)
class Cluster:
    """Processes and devices of a bulk run.

    Example:
        >>> Cluster(workers=4, gpus=0.25)  # four workers share one GPU
        Cluster(workers=4, cpus=1, gpus=0.25, address=None)
    """

    # Number of processes, each with its own models; default one per GPU (or share of one), else one per
    # processor; 0 runs without Ray, in this process and one that restores
    workers: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    cpus: int = 1  # Number of processors, and of computing threads, per worker
    # Number of GPUs per worker, 0.25 for four workers on one; default 1 on cuda
    gpus: Annotated[float | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    # Address of a Ray cluster ("auto" on one of its nodes); default this machine
    address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS", help_behavior_hint="")] = None

    @contextmanager
    def connected(self, device: str) -> Iterator[tuple[int, float]]:
        """Connect to Ray; yield the number of workers and the GPUs per worker."""
        here = not (self.address or os.environ.get("RAY_ADDRESS"))
        gpus = self.gpus if self.gpus is not None else float(device.startswith("cuda"))
        ours, handler = _running_ray() is None, signal.getsignal(signal.SIGTERM)
        if ours and here:
            workers = self.workers or self._suitable(os.cpu_count() or 1, torch.cuda.device_count(), gpus)
            options = {"log_to_driver": False, "object_store_memory": _OBJECT_STORE}
            ray = start_ray("bulk", num_cpus=workers * self.cpus + _SPARE, **options)
        else:
            ray = require_ray("bulk")
            if ours:
                ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray replaces it
        try:
            total = ray.cluster_resources()
            suitable = self._suitable(int(total.get("CPU", 1)) - _SPARE, total.get("GPU", 0), gpus)
            yield self.workers or suitable, gpus
        finally:
            if ours:
                ray.shutdown()

    def _suitable(self, cpus: int, gpus: float, share: float) -> int:
        return max(int(gpus / share) if share else cpus // self.cpus, 1)


@dataclass(frozen=True)
class Result:
    """A written batch, or the end of a partition."""

    partition: Partition  # Partition of the batch
    number: int  # Index of the batch in its partition
    records: list[Record]  # Records of its items
    fresh: list[bool]  # Whether each item was processed in this run
    total: int  # Number of items of the partition at its end, otherwise -1


class _PartitionReader:
    def __init__(self, source: Source, recipe: Recipe, sink: Sink, size: int) -> None:
        self.source, self.recipe, self.sink, self.size = source, recipe, sink, size

    def __call__(self, table: Any) -> Iterator[Any]:
        for row in read_rows(table):
            total = 0
            for planned in plan(self.source, row.partition, self.recipe, self.sink, self.size):
                total += len(planned.batch.items)
                yield pack(row.partition, planned)
            yield row_table(row.partition, {"number": -1, "total": total})


class _Restorer:
    """The actor of a worker; the models are loaded with the first batch."""

    def __init__(self, recipe: Recipe, ledger: RecordStore, threads: int, isolated: bool = False) -> None:
        torch.set_num_threads(threads)
        ray = _running_ray()
        self.restorer = IsolatedRestorer(recipe, threads) if isolated else BatchRestorer(recipe)
        self.ledger = ledger
        self.restarted = ray is not None and ray.get_runtime_context().was_current_actor_reconstructed

    def __call__(self, table: Any) -> Iterator[Any]:
        for row in read_rows(table):
            yield self._restored(row) if "items" in row.about else _finished(row, [], [])

    def _restored(self, row: Row) -> Any:
        planned = unpack(row)
        batch, settled = planned.batch, planned.settled
        if planned.is_settled:
            finished = [Finished(settled[index], {}) for index in sorted(settled)]
        elif self.restarted and isinstance(self.restorer, BatchRestorer):
            finished = run_warily(self.restorer, batch, planned.number, self.ledger)
        else:
            finished = self.restorer.run(batch)
        for index, record in settled.items():
            finished[index] = Finished(record, {})
        return _finished(row, finished, [index not in settled for index in range(len(finished))])


def _finished(row: Row, finished: list[Finished], fresh: list[bool]) -> Any:
    """Return a restored batch as a table of one row, with the contents to write."""
    about = {name: row.about.get(name) for name in ("number", "total", "replacing")}
    about |= {"records": [one.record.encode() for one in finished], "fresh": fresh}
    contents = [content for one in finished for content in one.outputs.values()]
    return row_table(row.partition, about, contents)


def _running_ray() -> Any:
    """Return the module ``ray`` if Ray runs, otherwise None."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


class _Writer:
    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def __call__(self, table: Any) -> Iterator[Any]:
        for row in read_rows(table):
            contents = iter(row.contents)
            fresh = [
                Finished(record, {name: next(contents) or b"" for name in record.outputs})
                for record, new in zip(_records(row), row.about["fresh"], strict=True)
                if new
            ]
            records = _records(row)
            if fresh:
                number, replacing = f"{row.about['number']:06d}", row.about["replacing"]
                written = iter(self.sink.write(row.partition, number, fresh, replacing))
                flags = row.about["fresh"]
                records = [next(written) if new else old for old, new in zip(records, flags, strict=True)]
            about = {**row.about, "records": [record.encode() for record in records]}
            yield row_table(row.partition, about)


def _records(row: Row) -> list[Record]:
    return [Record.decode(line) for line in row.about["records"]]


class PartitionFinalizer:
    """Closes complete partitions: in Ray tasks if Ray runs, since shards are copied; otherwise here.

    Args:
        sink: Destination of the partitions.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._pending: list[Any] = []

    def close(self, partition: Partition, records: list[Record]) -> None:
        """Close a partition, possibly in the background."""
        if (ray := _running_ray()) is None:
            self.sink.close(partition, records)
            return
        self._pending.append(ray.remote(_close).options(num_cpus=0).remote(self.sink, partition, records))
        if len(self._pending) >= _MAX_CLOSING:
            self.wait(len(self._pending) - _MAX_CLOSING + 1)

    def wait(self, count: int | None = None) -> None:
        """Wait until ``count`` pending partitions, by default all, are closed."""
        if self._pending:
            ray = sys.modules["ray"]
            done, self._pending = ray.wait(self._pending, num_returns=count or len(self._pending))
            ray.get(done)


def _close(sink: Sink, partition: Partition, records: list[Record]) -> None:
    sink.close(partition, records)


def results(
    source: Source,
    recipe: Recipe,
    closing: PartitionFinalizer,
    partitions: list[Partition],
    size: int,
    cluster: Cluster,
) -> Iterator[Result]:
    """Restore all partitions; yield a result per written batch, in no particular order.

    Args:
        source: Source of the measurements.
        recipe: Models, settings and seed.
        closing: Destination, whose existing results are kept; it closes partitions concurrently.
        partitions: Partitions of the source.
        size: Number of files per batch.
        cluster: Workers; with 0 workers, batches are restored in sequence in one process, without Ray.
    """
    tables = [row_table(partition, {}) for partition in partitions]
    reader, writer = _PartitionReader(source, recipe, closing.sink, size), _Writer(closing.sink)
    if cluster.workers == 0:
        restorer = _Restorer(recipe, writer.sink.ledger, cluster.cpus, isolated=True)
        batches = (batch for table in tables for batch in reader(table))
        restored = (batch for table in batches for batch in restorer(table))
        try:
            for table in restored:
                for written in writer(table):
                    yield from _results(written)
        finally:
            if isinstance(restorer.restorer, IsolatedRestorer):
                restorer.restorer.close()
        return
    with cluster.connected(recipe.job.device) as (workers, gpus):
        try:
            for written in _pipeline(tables, reader, writer, cluster, workers, gpus):
                yield from _results(written)
            closing.wait()
        except Exception as error:
            raise storage_error(error) or error from None


def storage_error(error: BaseException | None) -> OSError | None:
    """Return the error of a file within an error that Ray wrapped around it; None if there is none."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return OSError(error.errno, error.strerror, error.filename)
        error = getattr(error, "cause", None) or error.__cause__
    return None


def _results(table: Any) -> Iterator[Result]:
    for row in read_rows(table):
        about = row.about
        yield Result(row.partition, about["number"], _records(row), about["fresh"], about["total"])


def _pipeline(
    tables: list[Any], reader: _PartitionReader, writer: _Writer, cluster: Cluster, workers: int, gpus: float
) -> Iterator[Any]:
    data = require("ray.data", "bulk")
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = 1  # one row per block: each batch goes to the next free worker
    plain: dict[str, Any] = {"batch_size": 1, "batch_format": "pyarrow"}
    sizes = {"min_size": 1, "max_size": workers, "initial_size": workers}
    actors = data.ActorPoolStrategy(**sizes, max_tasks_in_flight_per_actor=2)
    readers = data.TaskPoolStrategy(size=min(len(tables), readers_for(workers)))
    writers = data.TaskPoolStrategy(size=writers_for(workers))
    # Different num_cpus keep Ray from fusing reading with the actors.
    pipeline = (
        data.from_arrow(tables)
        .map_batches(reader, num_cpus=0.5, compute=readers, **plain)
        .map_batches(
            _Restorer,
            fn_constructor_args=(reader.recipe, writer.sink.ledger, cluster.cpus),
            compute=actors,
            num_cpus=cluster.cpus,
            num_gpus=gpus or None,
            **plain,
        )
        .map_batches(writer, num_cpus=0.5, compute=writers, **plain)
    )
    for name in ("ray", "ray.data"):  # loggers configured when Ray is imported
        logging.getLogger(name).setLevel(logging.ERROR)
    yield from pipeline.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
