"""Sources of measurements: files, tar shards (WebDataset) or Parquet, divided into partitions.

One task reads one partition: about a thousand files, a tar shard, or a row group of Parquet. A list of files
is split at names selected by their hash (content-defined chunking), on average every :data:`PARTITION` names.
Adding or removing a file therefore changes its own partition only, and the records of the others stay valid.
"""

from __future__ import annotations

__all__ = ["PARTITION", "Item", "Kind", "Partition", "Source", "partitions_of_names"]

import hashlib
import re
import tarfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from ...extras import require
from ...image_formats import SUFFIXES, is_image
from ...restoration.degraded import DegradedRecord, degraded_records
from .stores import THREADS, Store, is_url, split_glob

Kind = Literal["files", "tar", "parquet"]
PARTITION = 1024
_TARS = (".tar", ".tar.gz", ".tgz")
_NAMES = ("name", "__key__", "key", "file_name", "filename", "path", "id")
_ROWS = 64  # rows of a Parquet file read at a time
_MOST_BYTES = 1 << 30  # of a member of a tar, which a compressed tar may only claim to have
_MOST_HEADER = 1 << 20  # bytes of a long name or of extended attributes in a tar
_HEADERS = b"LKxgX"  # types of such members


@dataclass(frozen=True)
class Item:
    """One measurement."""

    name: str  # Relative path with slashes, unique in its partition
    content: bytes | None  # Content of the file; None if it cannot be read
    problem: str = ""  # Reason if it cannot be read
    record: DegradedRecord | None = None  # Entry in the manifest of ``lavps degrade``


@dataclass(frozen=True)
class Partition:
    """A part of a source, read by one task."""

    id: str  # Identifier, unique in its source and safe as a file name
    shard: str = ""  # Name of the shard; empty for plain files
    names: tuple[str, ...] = ()  # Names of the files
    group: int = 0  # Row group of a Parquet file

    @property
    def stem(self) -> str:
        """Name of the shard without its suffix."""
        for suffix in (*_TARS, ".parquet"):
            if self.shard.endswith(suffix):
                return self.shard.removesuffix(suffix)
        return self.shard


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def partitions_of_names(names: Sequence[str], size: int = PARTITION) -> list[Partition]:
    """Split sorted names before every name whose hash is a multiple of ``size``."""
    groups: list[list[str]] = []
    for name in names:
        if not groups or int(_hash(name)[:8], 16) % size == 0:
            groups.append([])
        groups[-1].append(name)
    # The id of the first partition must not depend on its first file, before which others may be added.
    starts = ["", *(group[0] for group in groups[1:])]
    return [
        Partition(f"files-{_hash(start)[:12]}", names=tuple(group))
        for start, group in zip(starts, groups, strict=False)
    ]


@dataclass(frozen=True)
class Source:
    """A source of measurements, which can be pickled."""

    store: Store  # Folder of the source
    kind: Kind  # Format of its files
    names: tuple[str, ...]  # Names of its files or shards
    column: str = ""  # Column of the images in Parquet; default the first column of bytes

    @classmethod
    def open(cls, place: str, column: str = "") -> Source:
        """Open a folder, file or glob, local or at a URL; file suffixes determine the kind.

        Raises:
            FileNotFoundError: The location does not exist.
            ValueError: It holds neither images nor shards.
        """
        root, pattern = split_glob(place)
        store = Store(root)
        if pattern:
            names = store.names(pattern=pattern)
        elif store.is_file():
            folder, _, last = root.replace("\\", "/").rpartition("/")
            store, names = Store(folder or ("/" if root.startswith("/") else ".")), [last]
        elif store.exists():
            names = store.names()
        else:
            raise FileNotFoundError(f"there is no file or folder {root}")
        for kind, suffixes in (("tar", _TARS), ("parquet", (".parquet",))):
            if shards := tuple(name for name in names if name.endswith(suffixes)):
                return cls(store, kind, shards, column)  # type: ignore[arg-type]
        files = tuple(name for name in names if is_image(name))
        if not files:
            raise ValueError(
                f"{place} contains no images ({', '.join(sorted(SUFFIXES))}), tar shards or Parquet files"
            )
        return cls(store, "files", _without_renderings(store, files))

    @property
    def id(self) -> str:
        """Hash of the location, unique among the sources of a destination."""
        root = self.store.root
        return _hash(root if is_url(root) else str(Path(root).resolve()))[:8]

    def partitions(self) -> list[Partition]:
        """Return all partitions, without reading the contents of shards."""
        if self.kind == "files":
            return partitions_of_names(self.names)
        if self.kind == "tar":
            return [Partition(_safe(name), name) for name in self.names]
        return [
            Partition(f"{_safe(name)}-{group:05d}", name, group=group)
            for name in self.names
            for group in range(self._row_groups(name))
        ]

    def items(self, partition: Partition) -> Iterator[Item]:
        """Yield the measurements of a partition in order; unreadable ones have a problem."""
        seen: set[str] = set()
        reader = {"files": self._files, "tar": self._members, "parquet": self._rows}[self.kind]
        for item in reader(partition):
            if item.name in seen:
                item = Item(f"{item.name} ({len(seen)})", None, f"another item has the name {item.name}")
            seen.add(item.name)
            yield item

    def find(self, partition: Partition, name: str) -> bytes | None:
        """Search for a measurement and return its content; None if it is missing."""
        if self.kind == "files":
            return self.store.read(name)
        return next((item.content for item in self.items(partition) if item.name == name), None)

    def _files(self, partition: Partition) -> Iterator[Item]:
        records: dict[str, dict[str, DegradedRecord]] = {}
        waiting: deque[Future[Item]] = deque()
        with ThreadPoolExecutor(THREADS) as pool:
            for name in partition.names:
                folder, _, last = name.rpartition("/")
                if folder not in records:
                    records[folder] = _records(self.store, folder)[0]
                waiting.append(pool.submit(self._file, name, records[folder].get(last)))
                if len(waiting) > 2 * THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _file(self, name: str, record: DegradedRecord | None) -> Item:
        try:
            return Item(name, self.store.read(name), record=record)
        except (OSError, ValueError) as error:
            return Item(name, None, f"the file cannot be read: {getattr(error, 'strerror', None) or error}")

    def _members(self, partition: Partition) -> Iterator[Item]:
        try:
            with self.store.open(partition.shard) as file:
                tail: Any = _Tail(file)
                with tarfile.open(fileobj=tail, mode="r|*", tarinfo=_Member) as archive:
                    for member in archive:
                        yield from _member(archive, member)
                if partition.shard.endswith(".tar") and any(tail.last):
                    raise tarfile.ReadError("the end-of-archive marker is missing")
        except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError, RecursionError) as error:
            yield Item(f"({partition.shard})", None, f"the shard is damaged or cannot be read: {error}")

    def _row_groups(self, name: str) -> int:
        parquet = require("pyarrow.parquet", "bulk")
        try:
            with self.store.open(name) as file:
                return int(parquet.ParquetFile(file).metadata.num_row_groups)
        except (OSError, ValueError):  # base classes of pyarrow's errors
            return 1  # reading the partition reports the damage

    def _rows(self, partition: Partition) -> Iterator[Item]:
        parquet = require("pyarrow.parquet", "bulk")
        try:
            with self.store.open(partition.shard) as file:
                table = parquet.ParquetFile(file)
                image, name = _columns(table.schema_arrow, self.column)
                columns = [image] if name is None else [image, name]
                batches = table.iter_batches(_ROWS, row_groups=[partition.group], columns=columns)
                rows = (values for batch in batches for values in batch.to_pylist())
                for number, values in enumerate(rows):
                    yield _row(values[image], None if name is None else values[name], number)
        except (OSError, ValueError) as error:
            group = f"({partition.shard}, row group {partition.group})"
            yield Item(group, None, f"the shard is damaged or cannot be read: {error}")


class _Member(tarfile.TarInfo):
    """A member whose long name and extended attributes, which tarfile holds in memory, are bounded."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        """Return the member that a header describes."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in _HEADERS and member.size > _MOST_HEADER:
            raise tarfile.ReadError(f"a header has {member.size} bytes, more than {_MOST_HEADER}")
        return member

    def _proc_gnusparse_10(self, *_: Any) -> None:  # its map of any length precedes the content
        raise tarfile.ReadError("a member is sparse")


class _Tail:
    """A file that keeps the last block read, which is zero at the end of a complete tar."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.last = file, b""

    def read(self, size: int = -1) -> bytes:
        """Read from the file."""
        content = self.file.read(size)
        self.last = content[-512:] or self.last
        return content


def _safe(name: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('.-')[-80:]}-{_hash(name)[:8]}"


def _records(store: Store, folder: str) -> tuple[dict[str, DegradedRecord], dict[str, str]]:
    try:
        return degraded_records(store.read(f"{folder}/manifest.json" if folder else "manifest.json"))
    except (OSError, KeyError, ValueError):
        return {}, {}


def _without_renderings(store: Store, names: tuple[str, ...]) -> tuple[str, ...]:
    """Omit images that ``lavps degrade`` rendered of measurements which are themselves in the folder."""
    existing, renderings = set(names), set()
    for folder in {name.rpartition("/")[0] for name in names}:
        prefix = f"{folder}/" if folder else ""
        for rendering, measurement in _records(store, folder)[1].items():
            if prefix + measurement in existing:
                renderings.add(prefix + rendering)
    return tuple(name for name in names if name not in renderings)


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[Item]:
    """Yield the measurement in a member of a tar; folders and other files have none."""
    name = PurePosixPath(member.name)
    if member.isdir() or not is_image(member.name):
        return
    if name.is_absolute() or ".." in name.parts or not member.isfile():
        yield Item(member.name, None, "the member is a link or a device, or its path leaves the tar")
        return
    if member.issparse() or member.size > _MOST_BYTES:
        yield Item(member.name, None, f"the member is sparse, or has more than {_MOST_BYTES} bytes")
        return
    file: IO[bytes] | None = archive.extractfile(member)
    content = b"" if file is None else file.read()
    if len(content) < member.size:
        raise tarfile.ReadError(f"{member.name} is truncated")
    yield Item(str(name), content)


def _columns(schema: Any, wanted: str) -> tuple[str, str | None]:
    """Return the columns of images and of names; the latter may be None."""
    kinds = {field.name: str(field.type) for field in schema}
    images = [
        name
        for name, kind in kinds.items()
        if kind in ("binary", "large_binary") or (kind.startswith("struct<") and "bytes: binary" in kind)
    ]
    if wanted and wanted not in kinds:
        raise ValueError(f"there is no column {wanted!r}; the columns are {', '.join(kinds)}")
    if not wanted and not images:
        raise ValueError(f"no column holds encoded images; the columns are {', '.join(kinds)}")
    named = next((name for name in _NAMES if kinds.get(name) in ("string", "large_string")), None)
    return wanted or images[0], named


def _row(value: Any, name: Any, row: int) -> Item:
    path = None
    if isinstance(value, dict):  # format of the Hugging Face Hub
        value, path = value.get("bytes"), value.get("path")
    name = str(name or path or f"{row:09d}").lstrip("/")
    if ".." in PurePosixPath(name).parts:
        return Item(name.replace("..", "__"), None, "the name leaves the folder")
    if not isinstance(value, bytes):
        return Item(name, None, "the row holds no encoded image")
    return Item(name, value)
