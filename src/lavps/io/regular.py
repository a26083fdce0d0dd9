"""Files from elsewhere, read only if they are regular and of bounded size."""

from __future__ import annotations

__all__ = ["MOST_BYTES", "read_file", "require_file"]

import stat
from pathlib import Path

MOST_BYTES = 3 * 16 * 100_000_000  # largest measurement: 3 channels of complex numbers


def require_file(path: Path, max_bytes: int | None = None) -> Path:
    """Return a path; raise an error if it is no regular file (a pipe, a device), or too large.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no regular file, or has more than ``max_bytes`` bytes.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path} is no regular file")
    if max_bytes is not None and found.st_size > max_bytes:
        raise ValueError(f"{path} has {found.st_size} bytes, more than {max_bytes}")
    return path


def read_file(path: str | Path, max_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of bounded size; errors are those of :func:`require_file`."""
    return require_file(Path(path), max_bytes).read_bytes()
