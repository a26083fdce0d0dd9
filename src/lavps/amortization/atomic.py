"""Files that appear whole or not at all."""

from __future__ import annotations

__all__ = ["atomically", "write_atomically"]

import os
import secrets
from collections.abc import Callable
from pathlib import Path


def atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Write beside, then rename: no reader, crash or Ctrl-C ever meets half a file.

    Args:
        path: of the file; its folder is made if missing.
        write: called with the path of another file beside it, which takes its place once it is on the disk.
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


def write_atomically(path: str | Path, content: bytes) -> None:
    """The same for a file's whole content."""
    atomically(path, lambda partial: partial.write_bytes(content))
