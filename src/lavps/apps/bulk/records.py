"""Records of all items: finished with key, misfit and acceptance rate, or failed with a reason.

Every batch adds a segment, a small file of JSON lines, to its partition. The segments of a complete partition
are merged into one Parquet file of ``manifest/``. A killed run leaves segments, and the next run reads both.

Records and results agree even if a run is killed between the two writes: before a result of other settings is
replaced, a record marks the replacement as started. Records of later runs override earlier ones.
"""

from __future__ import annotations

__all__ = ["MANIFEST", "STATE", "Record", "RecordStore"]

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from ...extras import require
from .stores import Store

Status = Literal["ok", "failed", "begun"]
STATE = "_lavps"
MANIFEST = "manifest"


@dataclass(frozen=True)
class Record:
    """The outcome of one item."""

    name: str  # Name of the item in its partition
    partition: str  # Id of the partition
    status: Status  # Outcome; the last of the three marks a result that is being replaced
    key: str = ""  # Hash of all that determines the result
    reason: str = ""  # Reason of a failure
    lasting: bool = False  # Whether the failure is certain to recur with the same content
    outputs: Mapping[str, int] = field(default_factory=dict)  # Names and sizes of the written files
    sha256: str = ""  # SHA-256 of the input
    chi_square: float | None = None  # Mean misfit of the samples divided by the noise variance, ideally 1
    acceptance: float | None = None  # Acceptance rate of the safeguard; None without an inference model
    forwards: float | None = None  # Forward passes of the denoiser per sample
    backwards: float | None = None  # Backward passes through the denoiser per sample
    seconds: float | None = None  # Sampling time: the item's share of the batch
    batch: int = 0  # Number of files sampled together
    notes: Sequence[str] = ()  # Remarks for the user

    def settled(self, key: str) -> bool:
        """Return whether the item is finished for this key: restored, or certain to fail again."""
        return self.key == key and (self.status == "ok" or self.lasting)

    def encode(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, line: str) -> Record:
        """Invert :meth:`encode`."""
        values: Mapping[str, Any] = json.loads(line)
        return cls(**{part.name: values[part.name] for part in fields(cls) if part.name in values})


@dataclass(frozen=True)
class RecordStore:
    """Records of a destination."""

    store: Store  # Destination
    source: str  # Id of the source; several sources may share a destination
    run: int = 0  # Number of the run, increasing

    def _segments(self, partition: str) -> str:
        return f"{STATE}/{self.source}/{partition}"

    def _manifest(self, partition: str) -> str:
        return f"{MANIFEST}/{self.source}-{partition}.parquet"

    def append(self, partition: str, batch: str, records: Sequence[Record]) -> None:
        """Write the records of a batch durably."""
        lines = "\n".join(record.encode() for record in records) + "\n"
        stage = 0 if any(record.status == "begun" for record in records) else 1
        name = f"{self.run:06d}-{batch}-{stage}.jsonl"
        self.store.write(f"{self._segments(partition)}/{name}", lines.encode())

    def part(self, partition: str, batch: str) -> str:
        """Return the name of the file that holds a batch's outputs until its partition is packed."""
        return f"{self._segments(partition)}/{self.run:06d}-{batch}.tar"

    def _mark(self, partition: str, what: str) -> str:
        return f"{self._segments(partition)}/{self.run:06d}-{what}.mark"

    def mark(self, partition: str, what: str) -> None:
        """Set a mark: some work of this run has started."""
        self.store.write(self._mark(partition, what), b"")

    def marked(self, partition: str, what: str) -> bool:
        """Return whether a mark is set."""
        return self.store.size(self._mark(partition, what)) is not None

    def unmark(self, partition: str, what: str) -> None:
        """Remove a mark."""
        self.store.remove(self._mark(partition, what))

    def segments(self, partition: str) -> list[str]:
        """Return the names of a partition's segments, parts and marks."""
        return self.store.names(self._segments(partition))

    def read(self, partition: str) -> dict[str, Record]:
        """Return the latest records of a partition's items, by name."""
        records = self._table(self._manifest(partition)) if self.is_closed(partition) else []
        for name in self.segments(partition):
            if name.endswith(".jsonl"):
                records += map(Record.decode, self.store.read(name).decode().splitlines())
        return {record.name: record for record in records}

    def is_closed(self, partition: str) -> bool:
        """Return whether a partition has its file in the manifest."""
        return self.store.size(self._manifest(partition)) is not None

    def close(self, partition: str, records: Sequence[Record]) -> None:
        """Merge the records of a complete partition into one Parquet file and remove its segments."""
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
        """Remove the manifests of all other partitions of this source, which no longer exist."""
        kept = {self._manifest(partition) for partition in partitions}
        for name in self.store.names(MANIFEST):
            if name.startswith(f"{MANIFEST}/{self.source}-") and name not in kept:
                self.store.remove(name)

    def _table(self, name: str) -> list[Record]:
        parquet = require("pyarrow.parquet", "bulk")
        rows = parquet.read_table(io.BytesIO(self.store.read(name))).to_pylist()
        names = {part.name for part in fields(Record)}
        return [
            Record(
                **{name: value for name, value in row.items() if name in names}
                | {"outputs": json.loads(row["outputs"]), "notes": tuple(filter(None, [row["notes"]]))}
            )
            for row in rows
        ]


def _schema(arrow: Any) -> Any:
    kinds = dict.fromkeys(("chi_square", "acceptance", "forwards", "backwards", "seconds"), arrow.float64())
    kinds |= {"lasting": arrow.bool_(), "batch": arrow.int64()}
    return arrow.schema([(part.name, kinds.get(part.name, arrow.string())) for part in fields(Record)])
