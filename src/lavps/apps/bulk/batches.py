"""Division of a partition into batches of equal image shape, identical in every run.

The batches depend on the partition and the batch size, not on existing results. A batch with missing
results is sampled again as a whole, and only the missing results are written. A resumed run therefore gives,
bit for bit, the results of an uninterrupted one.
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

_MAX_WAITING = 16  # maximum number of incomplete batches held in memory


@dataclass(frozen=True)
class Planned:
    """A batch and the items of it that are already finished."""

    number: int  # Index of the batch in its partition
    batch: Batch  # Items of the batch, without content if all of them are finished
    settled: Mapping[int, Record]  # Records of the finished items, by index in the batch
    replacing: bool = False  # Whether results of other settings are overwritten

    @property
    def is_settled(self) -> bool:
        """Whether all items are finished."""
        return len(self.settled) == len(self.batch.items)


@dataclass(frozen=True)
class _Keyed:
    item: Item
    key: str
    digest: str


def plan(source: Source, partition: Partition, recipe: Recipe, sink: Sink, size: int) -> Iterator[Planned]:
    """Yield the batches of a partition, with at most ``size`` files each."""
    known = sink.ledger.read(partition.id)
    present = sink.present(partition, list(known.values()))
    waiting: dict[str, list[_Keyed]] = {}
    number = 0
    for item in source.items(partition):
        keyed = _with_key(item, recipe)
        content = keyed.item.content
        shape = "unreadable" if content is None else shape_of(content)
        group = waiting.setdefault(shape, [])
        group.append(keyed)
        if len(group) == size:
            del waiting[shape]
        elif sum(map(len, waiting.values())) > _MAX_WAITING * size:
            group = waiting.pop(max(waiting, key=lambda name: len(waiting[name])))
        else:
            continue
        yield _planned(number, partition, group, known, present)
        number += 1
    for last, group in enumerate(waiting.values(), start=number):
        yield _planned(last, partition, group, known, present)


def _with_key(item: Item, recipe: Recipe) -> _Keyed:
    """Return an item with its key; if the key cannot be computed, the item gets the reason as its problem."""
    if item.content is None:
        return _Keyed(item, "", "")
    digest = hashlib.sha256(item.content).hexdigest()
    try:
        return _Keyed(item, recipe.key(digest, item.record), digest)
    except (ValueError, OSError) as error:
        return _Keyed(Item(item.name, None, str(error)), "", digest)


def _planned(
    number: int, partition: Partition, group: list[_Keyed], known: Mapping[str, Record], present: set[str]
) -> Planned:
    settled, replacing = {}, False
    for index, keyed in enumerate(group):
        record = known.get(keyed.item.name)
        if record is None:
            continue
        complete = record.status == "failed" or keyed.item.name in present
        if keyed.key and record.settled(keyed.key) and complete:
            settled[index] = record
        replacing |= record.status == "ok" and record.key != keyed.key
    items = tuple(keyed.item for keyed in group)
    if len(settled) == len(items):
        items = tuple(Item(item.name, None) for item in items)
    keys, digests = tuple(keyed.key for keyed in group), tuple(keyed.digest for keyed in group)
    return Planned(number, Batch(partition.id, items, keys, digests), settled, replacing)
