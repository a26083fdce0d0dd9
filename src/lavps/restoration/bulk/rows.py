"""Batches as rows of Arrow tables, as they travel between the processes of a cluster: a row is a batch."""

from __future__ import annotations

__all__ = ["done_schema", "pack", "planned_schema", "result_schema", "unpack"]

import json
from dataclasses import asdict
from typing import Any

from ..arrays import DegradedRecord, Drawn
from ..extras import require
from .batches import Planned
from .records import Record
from .sources import Item, Partition
from .worker import Batch


def planned_schema() -> Any:
    """A batch to be worked on; the last row of a partition has no items, and says how many there were."""
    arrow = require("pyarrow", "bulk")
    texts = arrow.list_(arrow.string())
    return arrow.schema(
        {
            "partition": arrow.string(),
            "number": arrow.int64(),
            "total": arrow.int64(),
            "replacing": arrow.bool_(),
            "names": texts,
            "contents": arrow.list_(arrow.large_binary()),
            "problems": texts,
            "degraded": texts,
            "keys": texts,
            "digests": texts,
            "settled": texts,
        }
    )


def done_schema() -> Any:
    """A batch that was worked on, with the content of what is to be written."""
    arrow = require("pyarrow", "bulk")
    return arrow.schema(
        {
            "partition": arrow.string(),
            "number": arrow.int64(),
            "total": arrow.int64(),
            "replacing": arrow.bool_(),
            "records": arrow.list_(arrow.string()),
            "fresh": arrow.list_(arrow.bool_()),
            "outputs": arrow.list_(arrow.list_(arrow.large_binary())),
        }
    )


def result_schema() -> Any:
    """A batch that is written: its records alone."""
    return done_schema().remove(6)


def pack(partition: Partition, planned: Planned | None, total: int = -1) -> dict[str, Any]:
    """A row; without a batch the last one of a partition."""
    batch = Batch(partition.id, (), (), ()) if planned is None else planned.batch
    settled = {} if planned is None else planned.settled
    return {
        "partition": json.dumps(asdict(partition)),
        "number": -1 if planned is None else planned.number,
        "total": total,
        "replacing": planned is not None and planned.replacing,
        "names": [item.name for item in batch.items],
        "contents": [item.content for item in batch.items],
        "problems": [item.problem for item in batch.items],
        "degraded": ["" if item.record is None else json.dumps(asdict(item.record)) for item in batch.items],
        "keys": list(batch.keys),
        "digests": list(batch.digests),
        "settled": [settled[i].encode() if i in settled else "" for i in range(len(batch.items))],
    }


def unpack(row: dict[str, Any]) -> tuple[Partition, Planned]:
    """The inverse of :func:`pack`."""
    values = json.loads(row["partition"])
    partition = Partition(**values | {"names": tuple(values["names"])})
    parts = zip(row["names"], row["contents"], row["problems"], row["degraded"], strict=True)
    items = tuple(Item(name, content, problem, _degraded(text)) for name, content, problem, text in parts)
    batch = Batch(partition.id, items, tuple(row["keys"]), tuple(row["digests"]))
    settled = {place: Record.decode(line) for place, line in enumerate(row["settled"]) if line}
    return partition, Planned(row["number"], batch, settled, row["replacing"])


def _degraded(text: str) -> DegradedRecord | None:
    if not text:
        return None
    values = json.loads(text)
    drawn = values["drawn"]
    shape = tuple(drawn["image_shape"])
    return DegradedRecord(values["task"], values["noise"], Drawn(drawn["seed"], drawn["item"], shape))
