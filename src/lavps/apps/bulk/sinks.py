"""Destinations of restored files: plain files, or one tar or Parquet shard per partition.

For shards, the outputs of every batch are first stored as a part beside the records. A complete partition is
packed into one shard, and its parts are removed. The bytes of a shard depend on its content only.
"""

from __future__ import annotations

__all__ = ["Sink"]

import errno
import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from ...extras import require
from .records import Record, RecordStore
from .sources import Kind, Partition
from .stores import THREADS, Store
from .worker import Finished

_INVALID_NAME = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EISDIR, errno.ENOTDIR)


@dataclass(frozen=True)
class Sink:
    """A destination, which can be pickled."""

    ledger: RecordStore  # Record store of the destination
    kind: Kind  # Format: plain files, or tar or Parquet shards

    @property
    def store(self) -> Store:
        """Store of the destination."""
        return self.ledger.store

    def shard(self, partition: Partition) -> str:
        """Return the name of a partition's shard."""
        name = partition.stem if self.kind == "tar" and partition.stem else partition.id
        return f"{name}.{self.kind}"

    def place(self, partition: Partition, output: str) -> str:
        """Return the path of a plain file; outputs of a shard go to a folder of the shard's name."""
        return f"{partition.stem}/{output}" if partition.stem else output

    def present(self, partition: Partition, records: Sequence[Record]) -> set[str]:
        """Return the names of the items whose outputs exist with their recorded sizes."""
        done = [record for record in records if record.status == "ok"]
        names = [name for record in done for name in record.outputs]
        if self.kind == "files":
            with ThreadPoolExecutor(THREADS) as pool:
                found = pool.map(lambda name: self.store.size(self.place(partition, name)), names)
                sizes = dict(zip(names, found, strict=True))
        else:
            sizes = {name: len(content) for name, content in self._packed(partition)}
        return {record.name for record in done if record.outputs.items() <= sizes.items()}

    def write(
        self, partition: Partition, batch: str, finished: Sequence[Finished], replacing: bool
    ) -> list[Record]:
        """Write the outputs of a batch, then its records, and return the records.

        An item whose name is no valid file name fails.

        Args:
            partition: Partition of the batch.
            batch: Number of the batch in the partition.
            finished: Items to write, without those whose results exist.
            replacing: Whether results of other settings are overwritten.
        """
        records = [one.record for one in finished]
        if replacing:
            started = [Record(record.name, record.partition, "begun") for record in records]
            self.ledger.append(partition.id, batch, started)
        outputs = {name: content for one in finished for name, content in one.outputs.items()}
        if self.kind == "files":
            with ThreadPoolExecutor(THREADS) as pool:
                records = list(pool.map(lambda one: self._stored(partition, one), finished))
        elif outputs:
            self.store.write(self.ledger.part(partition.id, batch), _tar(outputs))
        self.ledger.append(partition.id, batch, records)
        return records

    def _stored(self, partition: Partition, one: Finished) -> Record:
        """Write the outputs of an item as plain files, and return its record."""
        try:
            for name, content in one.outputs.items():
                self.store.write(self.place(partition, name), content)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno not in _INVALID_NAME:
                raise
            reason = f"a file of this name cannot be written: {getattr(error, 'strerror', error)}"
            return replace(one.record, status="failed", reason=reason, lasting=True, outputs={})
        return one.record

    def close(self, partition: Partition, records: Sequence[Record]) -> None:
        """Pack the outputs of a complete partition, unless they are plain files, and write its manifest."""
        if self.kind != "files":
            packed = dict(self._packed(partition))
            outputs = {name: packed[name] for record in records for name in record.outputs}
            content = _tar(outputs) if self.kind == "tar" else _parquet(outputs, records)
            self.store.write(self.shard(partition), content)
        self.ledger.close(partition.id, records)

    def find(self, partition: Partition, output: str) -> bytes | None:
        """Return the content of one output; None if it is missing."""
        if self.kind == "files":
            name = self.place(partition, output)
            return None if self.store.size(name) is None else self.store.read(name)
        return dict(self._packed(partition)).get(output)

    def _packed(self, partition: Partition) -> Iterator[tuple[str, bytes]]:
        """Yield the outputs of the shard and then of the parts; later ones override earlier ones."""
        shard = self.shard(partition)
        if self.store.size(shard) is not None:
            unpack = _untar if self.kind == "tar" else _unparquet
            yield from unpack(self.store.read(shard))
        for name in self.ledger.segments(partition.id):
            if name.endswith(".tar"):
                yield from _untar(self.store.read(name))


def _tar(outputs: Mapping[str, bytes]) -> bytes:
    """Return a tar archive whose bytes depend on names and contents only."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in outputs.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def _untar(content: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                yield member.name, file.read()


def _parquet(outputs: Mapping[str, bytes], records: Sequence[Record]) -> bytes:
    """Return a Parquet file with one row per output: item, file name, content, misfit and acceptance rate."""
    arrow, parquet = require("pyarrow", "bulk"), require("pyarrow.parquet", "bulk")
    rows = [(record, name) for record in records for name in record.outputs]
    table = arrow.table(
        {
            "name": arrow.array([record.name for record, _ in rows], arrow.string()),
            "file": arrow.array([name for _, name in rows], arrow.string()),
            "image": arrow.array([outputs[name] for _, name in rows], arrow.binary()),
            "chi_square": arrow.array([record.chi_square for record, _ in rows], arrow.float64()),
            "acceptance": arrow.array([record.acceptance for record, _ in rows], arrow.float64()),
        }
    )
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


def _unparquet(content: bytes) -> Iterator[tuple[str, bytes]]:
    parquet = require("pyarrow.parquet", "bulk")
    table = parquet.read_table(io.BytesIO(content), columns=["file", "image"])
    for row in table.to_pylist():
        yield row["file"], row["image"]
