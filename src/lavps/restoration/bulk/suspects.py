"""Items that end the process that works on them: found, and failed, so that the run goes on.

A lost worker is nobody's fault as a rule, and its batch is sampled again as it was. A worker that was started
again leaves a mark before a batch; one that finds such a mark has met the batch that ended two workers, and
takes its items one by one, with a mark before each; an item whose own mark is found fails.
"""

from __future__ import annotations

__all__ = ["run_warily"]

from dataclasses import replace

from .records import Ledger, Record
from .worker import Batch, BatchRestorer, Finished


def run_warily(restorer: BatchRestorer, batch: Batch, number: int, ledger: Ledger) -> list[Finished]:
    """Restore a batch in a worker that took another's place."""
    whole = f"{number:06d}"
    if not ledger.marked(batch.partition, whole):
        ledger.mark(batch.partition, whole)
        finished = restorer.run(batch)
    else:
        finished = [_one(restorer, batch, place, whole, ledger) for place in range(len(batch.items))]
    ledger.unmark(batch.partition, whole)
    return finished


def _one(restorer: BatchRestorer, batch: Batch, place: int, whole: str, ledger: Ledger) -> Finished:
    mark = f"{whole}-{place}"
    if ledger.marked(batch.partition, mark):
        reason = "it ended the process that worked on it, several times"
        item, key, digest = batch.items[place], batch.keys[place], batch.digests[place]
        return Finished(Record(item.name, batch.partition, "failed", key, reason, sha256=digest), {})
    ledger.mark(batch.partition, mark)
    part = slice(place, place + 1)
    alone = replace(batch, items=batch.items[part], keys=batch.keys[part], digests=batch.digests[part])
    (finished,) = restorer.run(alone)
    ledger.unmark(batch.partition, mark)
    return finished
