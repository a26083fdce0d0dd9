"""Directories of TIFF files and of EXIF, checked before Pillow reads them.

Every entry of a directory states the position and the size of its data, and Pillow copies the data of all
entries. If entries overlap, a file of a megabyte describes gigabytes. The entries of a sound file do not
overlap.
"""

from __future__ import annotations

__all__ = ["require_directories", "require_entries"]

import struct
from collections.abc import Iterator

from PIL.JpegImagePlugin import MARKER

from .image import ImageError

_SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8)  # bytes of a value, by its type
_MOST_ENTRIES = 100_000  # of all directories of a file
_POINTERS = (0x8769, 0x8825, 0xA005)  # entries that hold the position of another directory


def require_directories(encoded: bytes) -> None:
    """Raise an error if Pillow would expand the directories of a TIFF or JPEG file when it opens them.

    Raises:
        ImageError: Entries overlap, or there are too many of them.
    """
    if encoded[:2] in (b"II", b"MM"):
        require_entries(encoded)
    elif encoded[:2] == b"\xff\xd8":
        segments = list(_segments(encoded))
        exif = [one[6:] for one in segments if one.startswith(b"Exif\0\0")]
        require_entries(b"".join(exif))  # Pillow joins them
        for one in segments:
            if one.startswith(b"MPF\0"):
                require_entries(one[4:])


def require_entries(block: bytes) -> None:
    """Raise an error if the directories of a TIFF file or an EXIF block describe more data than it has.

    Raises:
        ImageError: Entries overlap, or there are too many of them.
    """
    for large in {43 in block[2:4], block[2:3] == b"+"}:  # 64-bit positions; Pillow reads the third byte only
        entries = claimed = 0
        for size in _sizes(block, large):
            entries, claimed = entries + 1, claimed + size
            if entries > _MOST_ENTRIES or claimed > 2 * len(block):
                raise ImageError("the entries of its metadata overlap, or are too many")


def _sizes(block: bytes, large: bool) -> Iterator[int]:
    """Yield the size of the data of every entry, in all directories; 0 if the data are not in the file."""
    order = "<" if block[:2] == b"II" else ">"
    number, head, position = (
        f"{order}{code}" for code in (("Q", "HHQ", "Q") if large else ("H", "HHI", "I"))
    )
    width, seen = struct.calcsize(position), set[int]()
    first = block[width : 2 * width]  # position of the first directory
    waiting = [int.from_bytes(first, "little" if order == "<" else "big")]
    while waiting:
        start = waiting.pop()
        if start in seen or start == 0:
            continue
        seen.add(start)
        try:
            (count,) = struct.unpack_from(number, block, start)
            start += struct.calcsize(number)
            for _ in range(count):
                tag, form, values = struct.unpack_from(head, block, start)
                (where,) = struct.unpack_from(position, block, start + 4 + width)
                start += 4 + 2 * width
                size = values * (_SIZES[form] if form < len(_SIZES) else 0)
                yield size if width < size <= len(block) - where else 0
                waiting += [where] if tag in _POINTERS else []
            waiting += struct.unpack_from(position, block, start)
        except struct.error:  # the file ends here
            continue


def _segments(encoded: bytes) -> Iterator[bytes]:
    """Yield the contents of the segments of a JPEG file before its pixels, found as Pillow finds them."""
    start = 2
    while start + 4 <= len(encoded):
        marker = int.from_bytes(encoded[start : start + 2], "big")
        if marker == 0xFFDA:
            return
        if marker not in MARKER:  # Pillow skips other bytes
            start = encoded.find(b"\xff", start + 1)
            if start < 0:
                return
            continue
        start += 2
        if MARKER[marker][2] is not None:
            length = int.from_bytes(encoded[start : start + 2], "big")
            yield encoded[start + 2 : start + length]
            start += max(length, 2)
