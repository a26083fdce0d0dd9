"""What is known of every item: finished with which key, misfit, acceptance; or failed, and why.

While a partition is worked on, every batch adds a segment, a small JSON file; once it is complete they become
one Parquet file of ``manifest/``, which any tool reads as one table. A killed run leaves segments: the next
one reads both.

What lies in the destination must be what the records say, also where a run is killed between the two: before
a result of other settings is replaced, a record that it is *begun* takes the place of the old one. Later runs
have higher numbers, and their records the last word.
"""

from __future__ import annotations

__all__ = ["MANIFEST", "STATE", "Ledger", "Record"]

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from ..extras import require
from .stores import Store

Status = Literal["ok", "failed", "begun"]
STATE = "_lavps"
MANIFEST = "manifest"


@dataclass(frozen=True)
class Record:
    """One item.

    Attributes:
        name: in its partition.
        partition: the partition's id.
        status: "ok", "failed", or "begun" where a result of other settings is being replaced.
        key: what the result is a function of.
        reason: why it failed.
        lasting: whether it would fail again, its content being what it is.
        outputs: name and size of what was written.
        sha256: of the input.
        chi_square: mean misfit of the samples in units of the noise's variance, 1 being ideal.
        acceptance: share of warm starts that the safeguard kept; None without an inference model.
        forwards: of the denoiser, a sample.
        backwards: through the denoiser, a sample.
        seconds: of sampling, its share of the batch.
        batch: files that were sampled together.
        notes: what a user should know.
    """

    name: str
    partition: str
    status: Status
    key: str = ""
    reason: str = ""
    lasting: bool = False
    outputs: Mapping[str, int] = field(default_factory=dict)
    sha256: str = ""
    chi_square: float | None = None
    acceptance: float | None = None
    forwards: float | None = None
    backwards: float | None = None
    seconds: float | None = None
    batch: int = 0
    notes: Sequence[str] = ()

    def settled(self, key: str) -> bool:
        """Whether there is nothing left to do for this key: done, or certain to fail again."""
        return self.key == key and (self.status == "ok" or self.lasting)

    def encode(self) -> str:
        """A line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, line: str) -> Record:
        """The inverse of :meth:`encode`."""
        values: Mapping[str, Any] = json.loads(line)
        return cls(**{name: values[name] for name in (part.name for part in fields(cls)) if name in values})


@dataclass(frozen=True)
class Ledger:
    """The records of a destination.

    Args:
        store: the destination.
        source: id of the source, so that several may share a destination.
        run: number of the run, higher than those before.
    """

    store: Store
    source: str
    run: int = 0

    def _segments(self, partition: str) -> str:
        return f"{STATE}/{self.source}/{partition}"

    def _manifest(self, partition: str) -> str:
        return f"{MANIFEST}/{self.source}-{partition}.parquet"

    def append(self, partition: str, batch: str, records: Sequence[Record]) -> None:
        """Add the records of a batch, durably."""
        lines = "\n".join(record.encode() for record in records) + "\n"
        stage = 0 if any(record.status == "begun" for record in records) else 1
        name = f"{self.run:06d}-{batch}-{stage}.jsonl"
        self.store.write(f"{self._segments(partition)}/{name}", lines.encode())

    def part(self, partition: str, batch: str) -> str:
        """The file that keeps the outputs of a batch until its partition is packed."""
        return f"{self._segments(partition)}/{self.run:06d}-{batch}.tar"

    def _mark(self, partition: str, what: str) -> str:
        return f"{self._segments(partition)}/{self.run:06d}-{what}.mark"

    def mark(self, partition: str, what: str) -> None:
        """Leave a mark that something of this run has begun."""
        self.store.write(self._mark(partition, what), b"")

    def marked(self, partition: str, what: str) -> bool:
        """Whether it has."""
        return self.store.size(self._mark(partition, what)) is not None

    def unmark(self, partition: str, what: str) -> None:
        """It is over."""
        self.store.remove(self._mark(partition, what))

    def segments(self, partition: str) -> list[str]:
        """Files of the state of a partition."""
        return self.store.names(self._segments(partition))

    def read(self, partition: str) -> dict[str, Record]:
        """What is known of a partition's items, by name; later words replace earlier ones."""
        known: dict[str, Record] = {}
        if self.is_closed(partition):
            known = {record.name: record for record in self._table(self._manifest(partition))}
        for name in self.segments(partition):
            if name.endswith(".jsonl"):
                for line in self.store.read(name).decode().splitlines():
                    record = Record.decode(line)
                    known[record.name] = record
        return known

    def is_closed(self, partition: str) -> bool:
        """Whether a partition has its file in the manifest."""
        return self.store.size(self._manifest(partition)) is not None

    def close(self, partition: str, records: Sequence[Record]) -> None:
        """A complete partition: one Parquet file, and its segments go."""
        arrow, parquet = require("pyarrow", "bulk"), require("pyarrow.parquet", "bulk")
        rows = [
            asdict(record) | {"outputs": json.dumps(dict(record.outputs)), "notes": "; ".join(record.notes)}
            for record in records
        ]
        file = io.BytesIO()
        parquet.write_table(arrow.Table.from_pylist(rows, schema=_schema(arrow)), file)
        self.store.write(self._manifest(partition), file.getvalue())
        for name in self.segments(partition):
            self.store.remove(name)

    def forget(self, partitions: Sequence[str]) -> None:
        """Remove the manifests of this source's partitions other than these: they are no more."""
        kept = {self._manifest(partition) for partition in partitions}
        for name in self.store.names(MANIFEST):
            if name.startswith(f"{MANIFEST}/{self.source}-") and name not in kept:
                self.store.remove(name)

    def _table(self, name: str) -> list[Record]:
        parquet = require("pyarrow.parquet", "bulk")
        rows = parquet.read_table(io.BytesIO(self.store.read(name))).to_pylist()
        known = {part.name for part in fields(Record)}
        return [
            Record(
                **{key: value for key, value in row.items() if key in known}
                | {"outputs": json.loads(row["outputs"]), "notes": tuple(filter(None, [row["notes"]]))}
            )
            for row in rows
        ]


def _schema(arrow: Any) -> Any:
    kinds = {
        "lasting": arrow.bool_(),
        "chi_square": arrow.float64(),
        "acceptance": arrow.float64(),
        "forwards": arrow.float64(),
        "backwards": arrow.float64(),
        "seconds": arrow.float64(),
        "batch": arrow.int64(),
    }
    return arrow.schema([(part.name, kinds.get(part.name, arrow.string())) for part in fields(Record)])
