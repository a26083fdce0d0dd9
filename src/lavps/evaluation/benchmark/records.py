"""Files that survive: rows appended whole, claims that a dead process gives back.

Rows are lines of JSON, appended many at a time in one write. A process killed in the middle of it leaves a
torn last line, which readers do not see and the next writer cuts off. A claim is a lock of the operating
system on a file, which is released when its process ends, however it ends.
"""

from __future__ import annotations

__all__ = ["append_rows", "claim", "finite", "read_json", "read_rows"]

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a file; none where it is missing."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows and wait until they are on the disk. The caller holds the :func:`claim`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
    with path.open("a+b") as file:
        file.seek(0)
        torn = len(file.read().rpartition(b"\n")[2])
        if torn:
            file.truncate(file.seek(0, os.SEEK_END) - torn)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_json(path: Path) -> dict[str, Any]:
    """A file of JSON; empty where it is missing."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def finite(value: float) -> float | None:
    """The number, or None (JSON's null) for NaN and infinity."""
    return value if math.isfinite(value) else None


@contextmanager
def claim(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold ``path`` as a lock among the processes of a machine.

    Args:
        path: of the lock's file, made if missing.
        wait: for whoever holds it; else give up at once.

    Yields:
        Whether it is held.
    """
    try:
        import fcntl
    except ImportError:  # Windows: one process at a time is the user's care
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
