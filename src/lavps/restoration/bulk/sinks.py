"""Where restored files go: as files, or packed in a tar or Parquet file per partition.

Packed, every batch is first kept as a part beside its records; a complete partition becomes one shard, and
the parts go. Shards depend on their content alone, so that two runs give the same bytes.
"""

from __future__ import annotations

__all__ = ["Sink"]

import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..extras import require
from .records import Ledger, Record
from .sources import Kind, Partition
from .stores import THREADS, Store
from .worker import Finished


@dataclass(frozen=True)
class Sink:
    """A destination; pickles.

    Attributes:
        ledger: its records.
        kind: files, or shards of tar or Parquet.
    """

    ledger: Ledger
    kind: Kind

    @property
    def store(self) -> Store:
        """Of the destination."""
        return self.ledger.store

    def shard(self, partition: Partition) -> str:
        """The file that a partition becomes, where it is packed."""
        name = partition.stem if self.kind == "tar" and partition.stem else partition.id
        return f"{name}.{self.kind}"

    def place(self, partition: Partition, output: str) -> str:
        """Where a plain file goes: what comes from a shard, to a folder of the shard's name."""
        return f"{partition.stem}/{output}" if partition.stem else output

    def sizes(self, partition: Partition, record: Record) -> dict[str, int | None]:
        """Bytes of a record's outputs as they lie there; None where one is missing. Plain files only."""
        return {name: self.store.size(self.place(partition, name)) for name in record.outputs}

    def present(self, partition: Partition, records: Sequence[Record]) -> set[str]:
        """Names of the items whose outputs are there, as long as they were written."""
        done = [record for record in records if record.status == "ok"]
        if self.kind == "files":
            with ThreadPoolExecutor(THREADS) as pool:
                found = pool.map(lambda record: self.sizes(partition, record), done)
                return {
                    record.name for record, sizes in zip(done, found, strict=True) if sizes == record.outputs
                }
        packed = {name: len(content) for name, content in self._packed(partition)}
        return {
            record.name
            for record in done
            if all(packed.get(name) == size for name, size in record.outputs.items())
        }

    def write(self, partition: Partition, batch: str, finished: Sequence[Finished], replacing: bool) -> None:
        """Write what became of a batch, its records last.

        Args:
            partition: whose batch it is.
            batch: its number in the partition.
            finished: items to write; others of the batch are there already.
            replacing: whether results of other settings are there.
        """
        records = [one.record for one in finished]
        if replacing:
            begun = [Record(record.name, record.partition, "begun") for record in records]
            self.ledger.append(partition.id, batch, begun)
        outputs = {name: content for one in finished for name, content in one.outputs.items()}
        if self.kind == "files":
            with ThreadPoolExecutor(THREADS) as pool:
                for _ in pool.map(
                    lambda name: self.store.write(self.place(partition, name), outputs[name]), outputs
                ):
                    pass
        elif outputs:
            self.store.write(self.ledger.part(partition.id, batch), _tar(outputs))
        self.ledger.append(partition.id, batch, records)

    def close(self, partition: Partition, records: Sequence[Record]) -> None:
        """A complete partition: pack what is to be packed, and write its manifest."""
        if self.kind != "files":
            packed = dict(self._packed(partition))
            outputs = {name: packed[name] for record in records for name in record.outputs}
            content = _tar(outputs) if self.kind == "tar" else _parquet(outputs, records)
            self.store.write(self.shard(partition), content)
        self.ledger.close(partition.id, records)

    def find(self, partition: Partition, output: str) -> bytes | None:
        """The content of one output."""
        if self.kind == "files":
            name = self.place(partition, output)
            return None if self.store.size(name) is None else self.store.read(name)
        return dict(self._packed(partition)).get(output)

    def _packed(self, partition: Partition) -> Iterator[tuple[str, bytes]]:
        """Outputs in the shard and then in the parts, later ones replacing earlier ones."""
        shard = self.shard(partition)
        if self.store.size(shard) is not None:
            unpack = _untar if self.kind == "tar" else _unparquet
            yield from unpack(self.store.read(shard))
        for name in self.ledger.segments(partition.id):
            if name.endswith(".tar"):
                yield from _untar(self.store.read(name))


def _tar(outputs: Mapping[str, bytes]) -> bytes:
    """A tar whose bytes depend on names and contents alone."""
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
    """A row an output: the item's name, the file's name, its content, and what is known of it."""
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
