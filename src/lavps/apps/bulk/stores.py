"""Storage: a folder of any filesystem supported by fsspec, local or remote.

A file appears under its name only once it is complete. On filesystems it is written to a temporary file and
renamed, on local ones also flushed to disk. On object stores a put is atomic, and a rename would be a copy.
"""

from __future__ import annotations

__all__ = ["THREADS", "Store", "absolute_place", "is_url", "split_glob"]

import os
import re
import secrets
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import IO, Any

from ...extras import require
from ...io.atomic import write_atomically
from ...io.regular import read_file

THREADS = 8  # concurrent reads or writes per process, since each file of an object store is a round trip
# Stores with atomic puts, whose renames are a copy and a removal.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "r2", "hf", "memory"}


def is_url(place: str) -> bool:
    """Return whether a location is not a path of this machine."""
    return "://" in place and not place.startswith("file://")


def absolute_place(place: str) -> str:
    """Return the absolute path; a URL is returned unchanged."""
    return place if is_url(place) else os.path.abspath(place.removeprefix("file://"))


def split_glob(place: str) -> tuple[str, str]:
    """Split a location into the folder before its first wildcard and the rest."""
    parts = place.split("/")
    for index, part in enumerate(parts):
        if re.search(r"[*?\[]", part):
            return "/".join(parts[:index]) or ("/" if place.startswith("/") else "."), "/".join(parts[index:])
    return place, ""


@dataclass(frozen=True)
class Store:
    """A folder; names are relative to it, with slashes.

    Args:
        root: Path, or URL such as ``s3://bucket/folder``.
    """

    root: str

    def _at(self, name: str = "") -> tuple[Any, str]:
        """Return the filesystem and the path of a name on it."""
        fsspec = require("fsspec", "bulk")
        try:
            if is_url(self.root):
                system, root = fsspec.core.url_to_fs(self.root)
            else:  # literal path: a "::" in it must not chain filesystems
                system, root = fsspec.filesystem("file"), absolute_place(self.root)
        except (ImportError, ValueError) as error:
            raise ImportError(f"{self.root} needs another library: {error}") from error
        return system, f"{root.rstrip('/')}/{name}" if name else root

    def read(self, name: str) -> bytes:
        """Return the content of a file; raises ValueError if a local one is a pipe, a device or too large."""
        system, path = self._at(name)
        content: bytes = system.cat_file(path) if is_url(self.root) else read_file(path)
        return content

    def open(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file for reading at any position."""
        system, path = self._at(name)
        file: AbstractContextManager[IO[bytes]] = system.open(path, "rb")
        return file

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically."""
        system, path = self._at(name)
        protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
        if "file" in protocols:
            try:
                write_atomically(path, content)  # transactions of fsspec do not flush to disk
            except OSError as error:  # a full disk gives no name
                raise OSError(error.errno, error.strerror or str(error), path) from error
        elif protocols & _OBJECT_STORES:
            system.pipe_file(path, content)
        else:
            folder, _, last = path.rpartition("/")
            partial = f"{folder}/.{last}.{secrets.token_hex(4)}.partial"
            system.makedirs(folder, exist_ok=True)
            system.pipe_file(partial, content)
            system.mv(partial, path)

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        system, path = self._at(name)
        try:
            return int(system.info(path)["size"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        system, path = self._at(name)
        with suppress(FileNotFoundError):
            system.rm_file(path)

    def exists(self) -> bool:
        """Return whether the root exists."""
        system, path = self._at()
        return bool(system.exists(path))

    def is_file(self) -> bool:
        """Return whether the root is a file."""
        system, path = self._at()
        return bool(system.isfile(path))

    def names(self, folder: str = "", pattern: str = "") -> list[str]:
        """Return the sorted names of all non-hidden files below a folder, or of those matching a pattern."""
        system, root = self._at()
        start = f"{root.rstrip('/')}/{folder}".rstrip("/")
        found = system.glob(f"{start}/{pattern}", detail=True) if pattern else system.find(start, detail=True)
        names = [
            path[len(root.rstrip("/")) + 1 :]
            for path, info in found.items()
            if info["type"] == "file" or (info.get("islink") and system.isfile(path))
        ]
        return sorted(name for name in names if not any(part.startswith(".") for part in name.split("/")))
