"""Crash-safe files of appended rows.

Rows are lines of JSON, appended in one write per batch. If the process is killed during a write, the
incomplete last line is ignored by readers and removed by the next writer.
"""

from __future__ import annotations

__all__ = ["append_rows", "claim", "finite", "read_json", "read_rows"]

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..io.atomic import claim


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the complete rows of a file; none if it does not exist."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows and wait until they are on disk; the caller holds the :func:`claim`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
    with path.open("a+b") as file:
        file.seek(0)
        if torn := len(file.read().rpartition(b"\n")[2]):
            file.truncate(file.seek(0, os.SEEK_END) - torn)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file; empty if it does not exist."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def finite(value: float) -> float | None:
    """Return the number, or None (null in JSON) for NaN and infinity."""
    return value if math.isfinite(value) else None
