"""Where bytes lie: a folder of this machine, or of any filesystem that fsspec knows.

What is written appears under its name when it is complete, and not at all before: on a filesystem by a
temporary name and a rename; on an object store a put is atomic by itself, and a rename would be a copy.
"""

from __future__ import annotations

__all__ = ["THREADS", "Store", "is_url", "split_glob"]

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..writing import write_atomically

THREADS = 8  # that read or write at once in a process: on an object store every file is a wait
# Whose put is atomic, and whose rename is a copy and a removal.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "r2", "hf", "memory"}


def is_url(place: str) -> bool:
    """Whether a place is not a path of this machine."""
    return "://" in place and not place.startswith("file://")


def split_glob(place: str) -> tuple[str, str]:
    """The part of a place before its first wildcard, a folder, and the rest."""
    parts = place.split("/")
    for index, part in enumerate(parts):
        if re.search(r"[*?\[]", part):
            return "/".join(parts[:index]) or ("/" if place.startswith("/") else "."), "/".join(parts[index:])
    return place, ""


@dataclass(frozen=True)
class Store:
    """A folder, here or elsewhere; names are relative to it, with slashes.

    Args:
        root: path, or URL such as ``s3://bucket/folder``.
    """

    root: str

    @property
    def _local(self) -> Path | None:
        return None if is_url(self.root) else Path(self.root.removeprefix("file://"))

    def _remote(self, name: str = "") -> tuple[Any, str]:
        """The filesystem, and a name's path on it."""
        import fsspec

        try:
            system, root = fsspec.core.url_to_fs(self.root)
        except (ImportError, ValueError) as error:
            raise ImportError(f"{self.root} needs a library of its own: {error}") from error
        return system, f"{root.rstrip('/')}/{name}" if name else root

    def read(self, name: str) -> bytes:
        """The content of a file."""
        if self._local is not None:
            return (self._local / name).read_bytes()
        system, path = self._remote(name)
        content: bytes = system.cat_file(path)
        return content

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """A file to read from, anywhere in it."""
        if self._local is not None:
            with (self._local / name).open("rb") as file:
                yield file
            return
        system, path = self._remote(name)
        with system.open(path, "rb") as file:
            yield file

    def write(self, name: str, content: bytes) -> None:
        """Write a file, all or nothing."""
        if self._local is not None:
            path = self._local / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
            return
        system, place = self._remote(name)
        protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
        if protocols & _OBJECT_STORES:
            system.pipe_file(place, content)
            return
        folder, _, last = place.rpartition("/")
        system.makedirs(folder, exist_ok=True)
        partial = f"{folder}/.{last}.{secrets.token_hex(4)}.partial"
        system.pipe_file(partial, content)
        system.mv(partial, place)

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        try:
            if self._local is not None:
                return (self._local / name).stat().st_size
            system, path = self._remote(name)
            return int(system.info(path)["size"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        if self._local is not None:
            (self._local / name).unlink(missing_ok=True)
            return
        system, path = self._remote(name)
        if system.exists(path):
            system.rm_file(path)

    def is_file(self) -> bool:
        """Whether the root itself is a file."""
        if self._local is not None:
            return self._local.is_file()
        system, path = self._remote()
        return bool(system.isfile(path))

    def names(self, folder: str = "", pattern: str = "**") -> list[str]:
        """Files at any depth of a folder (or that fit a pattern), sorted; hidden ones are left out."""
        if self._local is not None:
            top = self._local / folder
            found = top.rglob("*") if pattern == "**" else top.glob(pattern)
            names = [path.relative_to(self._local).as_posix() for path in found if path.is_file()]
        else:
            system, root = self._remote()
            place = f"{root.rstrip('/')}/{folder}".rstrip("/")
            files = system.find(place) if pattern == "**" else system.glob(f"{place}/{pattern}")
            names = [
                path[len(root.rstrip("/")) + 1 :] for path in files if pattern == "**" or system.isfile(path)
            ]
        return sorted(name for name in names if not any(part.startswith(".") for part in name.split("/")))
