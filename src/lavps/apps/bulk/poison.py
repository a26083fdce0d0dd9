"""Poison items: items that crash their worker are detected and recorded as failed, and the run continues.

A lost worker usually has another cause, so its batch is first sampled again unchanged. A restarted worker
sets a mark before each batch. If the mark is already set, the batch has ended two workers: its items are then
sampled one by one, each with its own mark, and an item whose mark is already set fails.
"""

from __future__ import annotations

__all__ = ["alone", "poisoned", "run_warily"]

from dataclasses import replace

from .records import Record, RecordStore
from .worker import Batch, BatchRestorer, Finished


def run_warily(restorer: BatchRestorer, batch: Batch, number: int, ledger: RecordStore) -> list[Finished]:
    """Restore a batch in a restarted worker."""
    whole = f"{number:06d}"
    if not ledger.marked(batch.partition, whole):
        ledger.mark(batch.partition, whole)
        finished = restorer.run(batch)
    else:
        parts = [alone(batch, index) for index in range(len(batch.items))]
        finished = [_one(restorer, part, whole, str(index), ledger) for index, part in enumerate(parts)]
    ledger.unmark(batch.partition, whole)
    return finished


def alone(batch: Batch, index: int) -> Batch:
    """Return the batch of one item."""
    part = slice(index, index + 1)
    return replace(batch, items=batch.items[part], keys=batch.keys[part], digests=batch.digests[part])


def poisoned(batch: Batch) -> Finished:
    """Return the outcome of an item, as a batch of its own, that ends the process that restores it."""
    reason = "the item ended the process that restored it, several times"
    record = Record(batch.items[0].name, batch.partition, "failed", batch.keys[0], reason)
    return Finished(replace(record, sha256=batch.digests[0]), {})


def _one(restorer: BatchRestorer, batch: Batch, whole: str, mark: str, ledger: RecordStore) -> Finished:
    mark = f"{whole}-{mark}"
    if ledger.marked(batch.partition, mark):
        return poisoned(batch)
    ledger.mark(batch.partition, mark)
    (finished,) = restorer.run(batch)
    ledger.unmark(batch.partition, mark)
    return finished
