"""From a partition to batches: equal shapes together, the same ones in every run.

Which files share a batch is a function of the partition and the batch size, never of what is done already. A
batch of which something is missing is sampled again as a whole, and what is missing is written: so a run that
was killed gives, bit for bit, what it would have given.
"""

from __future__ import annotations

__all__ = ["Planned", "plan"]

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .recipe import Recipe
from .records import Record
from .sinks import Sink
from .sources import Item, Partition, Source
from .worker import Batch, shape_of

_MOST = 16  # batches that wait for more files of their shape


@dataclass(frozen=True)
class Planned:
    """A batch, and what of it is to be done.

    Attributes:
        number: in its partition.
        batch: the items; without content where nothing is to be done.
        settled: records of the items that are done, by place in the batch.
        replacing: whether results of other settings are there.
    """

    number: int
    batch: Batch
    settled: Mapping[int, Record]
    replacing: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be done."""
        return len(self.settled) == len(self.batch.items)


@dataclass(frozen=True)
class _Seen:
    item: Item
    key: str
    digest: str
    reason: str = ""


def plan(source: Source, partition: Partition, recipe: Recipe, sink: Sink, size: int) -> Iterator[Planned]:
    """The batches of a partition, at most ``size`` files each."""
    known = sink.ledger.read(partition.id)
    present = sink.present(partition, list(known.values()))
    waiting: dict[str, list[_Seen]] = {}
    number = 0
    for item in source.items(partition):
        seen = _look(item, recipe)
        shape = "unreadable" if item.content is None or seen.reason else shape_of(item.content)
        group = waiting.setdefault(shape, [])
        group.append(seen)
        if len(group) == size:
            del waiting[shape]
        elif sum(map(len, waiting.values())) > _MOST * size:
            group = waiting.pop(max(waiting, key=lambda name: len(waiting[name])))
        else:
            continue
        yield _planned(number, partition, group, known, present)
        number += 1
    for group in waiting.values():
        yield _planned(number, partition, group, known, present)
        number += 1


def _look(item: Item, recipe: Recipe) -> _Seen:
    """An item with its key; one that cannot have any has a reason."""
    if item.content is None:
        return _Seen(item, "", "")
    digest = hashlib.sha256(item.content).hexdigest()
    try:
        return _Seen(item, recipe.key(digest, item.record), digest)
    except ValueError as error:
        return _Seen(Item(item.name, None, str(error)), "", digest, str(error))


def _planned(
    number: int, partition: Partition, group: list[_Seen], known: Mapping[str, Record], present: set[str]
) -> Planned:
    settled, replacing = {}, False
    for place, seen in enumerate(group):
        record = known.get(seen.item.name)
        if record is None:
            continue
        there = seen.item.name in present
        if seen.key and record.settled(seen.key) and (there or record.status == "failed"):
            settled[place] = record
        replacing |= record.status == "ok" and record.key != seen.key
    items = tuple(seen.item for seen in group)
    if len(settled) == len(items):
        items = tuple(Item(item.name, None) for item in items)
    keys, digests = tuple(seen.key for seen in group), tuple(seen.digest for seen in group)
    return Planned(number, Batch(partition.id, items, keys, digests), settled, replacing)
