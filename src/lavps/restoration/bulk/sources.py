"""What is to be restored: files, tar shards (WebDataset) or Parquet, cut into partitions.

A partition is what one task reads: some thousand files, a shard, a row group. Shards are partitions by
themselves. A list of files is cut where a name's hash says so (content-defined chunks), about every
:data:`PARTITION` names: a file that is added or removed changes its own partition and no other, so that what
is known of the others stays valid.
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

from ..arrays import DegradedRecord, degraded_records
from ..extras import require
from .stores import THREADS, Store, is_url, split_glob

Kind = Literal["files", "tar", "parquet"]
PARTITION = 1024
_IMAGES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".npy"}
_TARS = (".tar", ".tar.gz", ".tgz")
_NAMES = ("name", "__key__", "key", "file_name", "filename", "path", "id")
_ROWS = 64  # of a Parquet file at a time


@dataclass(frozen=True)
class Item:
    """One measurement.

    Attributes:
        name: unique in its partition; relative, with slashes.
        content: of the file; None where it cannot be read.
        problem: why not.
        record: what a manifest of ``lavps degrade`` beside it says.
    """

    name: str
    content: bytes | None
    problem: str = ""
    record: DegradedRecord | None = None


@dataclass(frozen=True)
class Partition:
    """A part of a source that one task reads.

    Attributes:
        id: unique in its source; safe as a file name.
        shard: name of the shard; empty for plain files.
        names: of the files.
        group: row group of a Parquet file.
    """

    id: str
    shard: str = ""
    names: tuple[str, ...] = ()
    group: int = 0

    @property
    def stem(self) -> str:
        """The shard's name without its suffix, where it has one."""
        for suffix in (*_TARS, ".parquet"):
            if self.shard.endswith(suffix):
                return self.shard.removesuffix(suffix)
        return self.shard


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_image(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix.lower() in _IMAGES and not path.name.startswith(".")


def partitions_of_names(names: Sequence[str], size: int = PARTITION) -> list[Partition]:
    """Sorted names, cut before every name whose hash is a multiple of ``size``."""
    groups: list[list[str]] = []
    for name in names:
        if not groups or int(_hash(name)[:8], 16) % size == 0:
            groups.append([])
        groups[-1].append(name)
    # The first begins wherever the list does: its name must not depend on a file that comes before.
    starts = ["", *(group[0] for group in groups[1:])]
    return [
        Partition(f"files-{_hash(start)[:12]}", names=tuple(group))
        for start, group in zip(starts, groups, strict=False)
    ]


@dataclass(frozen=True)
class Source:
    """Where measurements come from; pickles.

    Attributes:
        store: its folder.
        kind: of its files.
        names: files or shards in it.
        column: of the images in Parquet; empty takes the first one that holds bytes.
    """

    store: Store
    kind: Kind
    names: tuple[str, ...]
    column: str = ""

    @classmethod
    def open(cls, place: str, column: str = "") -> Source:
        """A folder, file or glob, here or at a URL; what its names end in says what it is.

        Raises:
            ValueError: nothing of the kind is there.
        """
        root, pattern = split_glob(place)
        store = Store(root)
        if pattern:
            names = store.names(pattern=pattern)
        elif store.is_file():
            folder, _, last = root.replace("\\", "/").rpartition("/")
            store, names = Store(folder or ("/" if root.startswith("/") else ".")), [last]
        else:
            if not is_url(root) and not Path(root).is_dir():
                raise FileNotFoundError(f"there is no file or folder {root}")
            names = store.names()
        for kind, suffixes in (("tar", _TARS), ("parquet", (".parquet",))):
            if shards := tuple(name for name in names if name.endswith(suffixes)):
                return cls(store, kind, shards, column)  # type: ignore[arg-type]
        files = tuple(name for name in names if _is_image(name))
        if not files:
            raise ValueError(
                f"{place} holds no images ({', '.join(sorted(_IMAGES))}), tar shards or Parquet files"
            )
        return cls(store, "files", _without_pictures(store, files))

    @property
    def id(self) -> str:
        """What tells it from other sources of the same destination."""
        root = self.store.root
        return _hash(root if is_url(root) else str(Path(root).resolve()))[:8]

    def partitions(self) -> list[Partition]:
        """All of them; names of shards only, their content is read by the tasks."""
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
        """The measurements of a partition, in its own order; what cannot be read has a problem."""
        seen: set[str] = set()
        reader = {"files": self._files, "tar": self._members, "parquet": self._rows}[self.kind]
        for item in reader(partition):
            if item.name in seen:
                item = Item(f"{item.name} ({len(seen)})", None, f"another one is called {item.name} too")
            seen.add(item.name)
            yield item

    def find(self, partition: Partition, name: str) -> bytes | None:
        """The content of one measurement, by a search."""
        if self.kind == "files":
            return self.store.read(name)
        return next((item.content for item in self.items(partition) if item.name == name), None)

    def _files(self, partition: Partition) -> Iterator[Item]:
        known: dict[str, dict[str, DegradedRecord]] = {}
        waiting: deque[Future[Item]] = deque()
        with ThreadPoolExecutor(THREADS) as pool:
            for name in partition.names:
                folder, _, last = name.rpartition("/")
                if folder not in known:
                    known[folder] = _records(self.store, folder)[0]
                waiting.append(pool.submit(self._file, name, known[folder].get(last)))
                if len(waiting) > 2 * THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _file(self, name: str, record: DegradedRecord | None) -> Item:
        try:
            return Item(name, self.store.read(name), record=record)
        except OSError as error:
            return Item(name, None, f"it cannot be read: {error.strerror or error}")

    def _members(self, partition: Partition) -> Iterator[Item]:
        try:
            with self.store.open(partition.shard) as file:
                tail: Any = _Tail(file)
                with tarfile.open(fileobj=tail, mode="r|*") as archive:
                    for member in archive:
                        yield from _member(archive, member)
                if partition.shard.endswith(".tar") and any(tail.last):
                    raise tarfile.ReadError("it ends before its end mark")
        except (tarfile.TarError, EOFError, OSError) as error:
            yield Item(f"({partition.shard})", None, f"the shard is damaged or cannot be read: {error}")

    def _row_groups(self, name: str) -> int:
        parquet = require("pyarrow.parquet", "bulk")
        try:
            with self.store.open(name) as file:
                return int(parquet.ParquetFile(file).metadata.num_row_groups)
        except (OSError, ValueError):  # of which pyarrow's errors are
            return 1  # that it is damaged is said when it is read

    def _rows(self, partition: Partition) -> Iterator[Item]:
        parquet = require("pyarrow.parquet", "bulk")
        try:
            with self.store.open(partition.shard) as file:
                table = parquet.ParquetFile(file)
                image, named = _columns(table.schema_arrow, self.column)
                columns = [image] if named is None else [image, named]
                row = 0
                for batch in table.iter_batches(_ROWS, row_groups=[partition.group], columns=columns):
                    for values in batch.to_pylist():
                        yield _row(values[image], None if named is None else values[named], row)
                        row += 1
        except (OSError, ValueError) as error:
            place = f"({partition.shard}, row group {partition.group})"
            yield Item(place, None, f"the shard is damaged or cannot be read: {error}")


class _Tail:
    """A file that remembers the last block read: zeros, at the end of a tar that is complete."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.last = file, b""

    def read(self, size: int = -1) -> bytes:
        """As the file itself."""
        content = self.file.read(size)
        self.last = content[-512:] or self.last
        return content


def _safe(name: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('.-')[-80:]}-{_hash(name)[:8]}"


def _records(store: Store, folder: str) -> tuple[dict[str, DegradedRecord], dict[str, str]]:
    try:
        return degraded_records(store.read(f"{folder}/manifest.json" if folder else "manifest.json"))
    except (OSError, KeyError):
        return {}, {}


def _without_pictures(store: Store, names: tuple[str, ...]) -> tuple[str, ...]:
    """In a folder of ``lavps degrade`` the measurements are taken, not the pictures of them."""
    there, shown = set(names), set()
    for folder in {name.rpartition("/")[0] for name in names}:
        prefix = f"{folder}/" if folder else ""
        for picture, measurement in _records(store, folder)[1].items():
            if prefix + measurement in there:
                shown.add(prefix + picture)
    return tuple(name for name in names if name not in shown)


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[Item]:
    """The measurement in a member of a tar; none in folders and other files."""
    name = PurePosixPath(member.name)
    if member.isdir() or not _is_image(member.name):
        return
    if name.is_absolute() or ".." in name.parts or not member.isfile():
        yield Item(member.name, None, "the member is a link, a device or leaves the tar")
        return
    file: IO[bytes] | None = archive.extractfile(member)
    content = b"" if file is None else file.read()
    if len(content) < member.size:
        raise tarfile.ReadError(f"{member.name} is cut short")
    yield Item(str(name), content)


def _columns(schema: Any, wanted: str) -> tuple[str, str | None]:
    """The columns of images and of names."""
    kinds = {field.name: str(field.type) for field in schema}
    images = [
        name
        for name, kind in kinds.items()
        if kind in ("binary", "large_binary") or (kind.startswith("struct<") and "bytes: binary" in kind)
    ]
    if wanted and wanted not in kinds:
        raise ValueError(f"there is no column {wanted!r}: there are {', '.join(kinds)}")
    if not wanted and not images:
        raise ValueError(f"no column holds bytes of images: there are {', '.join(kinds)}")
    named = next((name for name in _NAMES if kinds.get(name) in ("string", "large_string")), None)
    return wanted or images[0], named


def _row(value: Any, name: Any, row: int) -> Item:
    path = None
    if isinstance(value, dict):  # as datasets of the Hugging Face Hub have them
        value, path = value.get("bytes"), value.get("path")
    name = str(name or path or f"{row:09d}").lstrip("/")
    if ".." in PurePosixPath(name).parts:
        return Item(name.replace("..", "__"), None, "its name leaves the folder")
    if not isinstance(value, bytes):
        return Item(name, None, "the row holds no bytes of an image")
    return Item(name, value)
