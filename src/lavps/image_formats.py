"""File formats of images and their suffixes."""

from __future__ import annotations

__all__ = ["DEFAULT_SUFFIX", "SUFFIXES", "Format", "is_image"]

from collections.abc import Container
from pathlib import PurePosixPath
from typing import Literal

Format = Literal["PNG", "JPEG", "TIFF", "WEBP", "NPY"]

SUFFIXES: dict[str, Format] = {
    ".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF", ".webp": "WEBP",
    ".npy": "NPY",
}  # fmt: skip
"""Format of every suffix, in lower case."""

DEFAULT_SUFFIX: dict[Format, str] = {format: suffix for suffix, format in reversed(SUFFIXES.items())}
"""First suffix of every format."""


def is_image(name: str, suffixes: Container[str] = SUFFIXES) -> bool:
    """Return whether a file name ends in one of the suffixes and is not hidden."""
    path = PurePosixPath(name)
    return path.suffix.lower() in suffixes and not path.name.startswith(".")
