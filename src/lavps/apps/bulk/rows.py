"""Batches as rows of Arrow tables, as sent between processes: a JSON description and the files' contents."""

from __future__ import annotations

__all__ = ["Row", "pack", "read_rows", "row_table", "unpack"]

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...extras import require
from ...restoration.degraded import DegradedRecord, OperatorDraw
from .batches import Planned
from .records import Record
from .sources import Item, Partition
from .worker import Batch


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    partition: Partition  # Partition of the batch
    about: Mapping[str, Any]  # Description of the batch in JSON values
    contents: Sequence[bytes | None]  # Contents of the files


def row_table(partition: Partition, about: Mapping[str, Any], contents: Sequence[bytes | None] = ()) -> Any:
    """Return an Arrow table with one row."""
    arrow = require("pyarrow", "bulk")
    schema = arrow.schema({"about": arrow.string(), "contents": arrow.list_(arrow.large_binary())})
    text = json.dumps({**about, "partition": asdict(partition)})
    return arrow.Table.from_pylist([{"about": text, "contents": list(contents)}], schema=schema)


def read_rows(table: Any) -> Iterator[Row]:
    """Yield the rows of a table."""
    for row in table.to_pylist():
        about = json.loads(row["about"])
        names = tuple(about["partition"].pop("names"))
        yield Row(Partition(**about.pop("partition"), names=names), about, row["contents"])


def pack(partition: Partition, planned: Planned) -> Any:
    """Return a batch to be restored as a table of one row."""
    batch = planned.batch
    about = {
        "number": planned.number,
        "total": -1,
        "replacing": planned.replacing,
        "items": [(item.name, item.problem, item.record and asdict(item.record)) for item in batch.items],
        "keys": batch.keys,
        "digests": batch.digests,
        "settled": {index: record.encode() for index, record in planned.settled.items()},
    }
    return row_table(partition, about, [item.content for item in batch.items])


def unpack(row: Row) -> Planned:
    """Invert :func:`pack`."""
    about = row.about
    items = tuple(
        Item(name, content, problem, _degraded(record))
        for (name, problem, record), content in zip(about["items"], row.contents, strict=True)
    )
    batch = Batch(row.partition.id, items, tuple(about["keys"]), tuple(about["digests"]))
    settled = {int(index): Record.decode(line) for index, line in about["settled"].items()}
    return Planned(about["number"], batch, settled, about["replacing"])


def _degraded(values: Mapping[str, Any] | None) -> DegradedRecord | None:
    if values is None:
        return None
    drawn = values["drawn"]
    operator = OperatorDraw(drawn["seed"], drawn["item"], tuple(drawn["image_shape"]))
    return DegradedRecord(values["task"], values["noise"], operator)
