"""Atomic writing of files, and locks that are released when their process ends."""

from __future__ import annotations

__all__ = ["atomically", "claim", "discard", "write_atomically", "write_json"]

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Write a temporary file and rename it, so that no reader ever sees a partial file.

    Args:
        path: Path of the file; its folder is created if missing.
        write: Function that writes the temporary file at the path it is called with.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        write(partial)
        with partial.open("r+b") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def discard(path: Path) -> None:
    """Remove a file that is written atomically, and what a killed process left of it."""
    for file in (path, *path.parent.glob(f".{path.name}.*.partial")):
        with suppress(OSError):
            file.unlink(missing_ok=True)


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write the content of a file atomically."""
    atomically(path, lambda partial: partial.write_bytes(content))


def write_json(path: Path, values: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write a JSON file atomically."""
    text = json.dumps(values, indent=2, default=str) + "\n"
    atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"))


@contextmanager
def claim(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold ``path`` as a lock among the processes of a machine.

    Args:
        path: Lock file, created if missing.
        wait: Whether to wait for a process that holds the lock, or to give up at once.

    Yields:
        Whether the lock is held.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no such locks: run one process at a time
        yield True
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
