"""Sixteen bits a channel in colour, which Pillow has no mode for.

Reading: Pillow decodes such files, of any compression, filter or interlacing, and keeps one byte of every
two. Told that the bytes come in the other order, it keeps the other byte: two decodings are the whole.

Writing: PNG and TIFF are deflated rows between headers, and Pillow writes the headers. (TIFF at 8 bits too:
Pillow compresses it, or gives it EXIF, but not both.)
"""

from __future__ import annotations

__all__ = ["deflated_tiff", "is_wide", "rawmode_of", "read_wide", "tag_of", "wide_png"]

import io
import struct
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, TiffImagePlugin
from PIL.ImageFile import ImageFile as PillowFile

from .images import ImageError

Levels = npt.NDArray[np.uint16]
_OTHER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # PNG's, by the number of channels
_DEPTHS, _PLANES, _GREY_ALPHA = 258, 284, "LA;16B"


def rawmode_of(image: PillowFile) -> str:
    """How Pillow will unpack an opened file."""
    args = image.tile[0].args if image.tile else None
    return str(args[0] if isinstance(args, tuple) and args else args)


def tag_of(image: PillowFile, tag: int, default: Any) -> Any:
    """A tag of a TIFF; of other files, the default."""
    return getattr(image, "tag_v2", {}).get(tag, default)


def is_wide(image: PillowFile) -> bool:
    """Whether an opened file has several channels of 16 bits."""
    in_colour = image.mode[0] not in "IF"
    return in_colour and (";16" in rawmode_of(image) or 16 in tag_of(image, _DEPTHS, ()))


def read_wide(image: PillowFile, encoded: bytes) -> Levels:
    """All 16 bits of an opened file's pixels, (H, W, C) with C = 2, 3 or 4.

    Args:
        image: opened, and not loaded.
        encoded: the file itself.
    """
    rawmode = rawmode_of(image)
    if rawmode == _GREY_ALPHA:
        # Two channels of 16 bits lie as four of 8 bits do.
        with Image.open(io.BytesIO(_as_four_bytes(encoded)), formats=["PNG"]) as four:
            return np.asarray(four).view(">u2").astype(np.uint16)
    planes = tag_of(image, _PLANES, 1)
    if rawmode[:-1] not in ("RGB;16", "RGBA;16") or planes != 1:
        raise ImageError(
            f"16 bits a channel, laid out as {rawmode} in {'planes' if planes != 1 else 'pixels'}, cannot be "
            "read without loss: save it as 16-bit RGB or RGBA, pixel by pixel, without premultiplied alpha"
        )
    most = np.asarray(image).astype(np.uint16)
    with Image.open(io.BytesIO(encoded), formats=[str(image.format)]) as other:
        assert isinstance(other, PillowFile)
        other.tile = [tile._replace(args=_swapped(tile.args)) for tile in other.tile]
        least = np.asarray(other).astype(np.uint16)
    levels: Levels = np.bitwise_or(most << np.uint16(8), least)
    return levels


def _swapped(args: Any) -> Any:
    """Decoder arguments with the bytes in the other order."""
    if isinstance(args, tuple):
        return (_swapped(args[0]), *args[1:])
    return args[:-1] + _OTHER[args[-1]]


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names and contents of a PNG's chunks."""
    place = len(_SIGNATURE)
    while place + 12 <= len(png):
        (length,) = struct.unpack_from(">I", png, place)
        yield png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        place += 12 + length


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _as_four_bytes(png: bytes) -> bytes:
    """A PNG of grey and alpha at 16 bits, said to be RGBA at 8 bits."""
    header = next(content for name, content in _chunks(png) if name == b"IHDR")
    start = len(_SIGNATURE)
    claimed = header[:8] + bytes([8, _COLOUR_TYPES[4]]) + header[10:]
    return png[:start] + _chunk(b"IHDR", claimed) + png[start + 12 + len(header) :]


def wide_png(levels: Levels, **options: Any) -> bytes:
    """A PNG of 16 bits a channel.

    Args:
        levels: (H, W, C), C = 1 to 4: grey, grey and alpha, RGB, RGBA.
        options: what Pillow is to write beside the pixels (icc_profile, exif, dpi, pnginfo).
    """
    height, width, channels = levels.shape
    frame = io.BytesIO()
    Image.new("L" if channels < 3 else "RGB", (1, 1)).save(frame, "PNG", **options)
    rows = levels.astype(">u2").view(np.uint8).reshape(height, -1)
    filtered = np.full((height, 1 + rows.shape[1]), 2, np.uint8)  # filter 2: the difference to the row above
    filtered[:, 1:] = np.diff(rows, axis=0, prepend=np.zeros_like(rows[:1]))
    ours = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 16, _COLOUR_TYPES[channels], 0, 0, 0),
        b"IDAT": zlib.compress(filtered.tobytes()),
    }
    return _SIGNATURE + b"".join(
        _chunk(name, ours.get(name, content)) for name, content in _chunks(frame.getvalue())
    )


def deflated_tiff(
    levels: npt.NDArray[Any],
    icc_profile: bytes | None = None,
    exif: bytes | None = None,
    dpi: tuple[float, float] | None = None,
) -> bytes:
    """A TIFF of 8 or 16 bits a channel: (H, W, C), C = 1 to 4: grey, grey and alpha, RGB, RGBA."""
    height, width, channels = levels.shape
    strip = zlib.compress(levels.astype(levels.dtype.newbyteorder("<")).tobytes())
    directory = TiffImagePlugin.ImageFileDirectory_v2(prefix=b"II")
    if exif is not None:
        described = Image.Exif()
        described.load(exif)
        for tag in described:
            nested = tag in (0x8769, 0x8825)  # directories of their own: Exif, GPS
            directory[tag] = described.get_ifd(tag) if nested else described[tag]
    structure: dict[int, Any] = {
        256: width,
        257: height,
        _DEPTHS: (8 * levels.itemsize,) * channels,
        259: 8,  # deflate
        262: 1 if channels < 3 else 2,  # black is zero, or RGB
        273: 0,  # where the strip begins, counted from the directory's end
        277: channels,
        278: height,
        279: len(strip),
        _PLANES: 1,
    }
    if channels in (2, 4):
        structure[338] = 2  # alpha, not premultiplied
    if icc_profile is not None:
        structure[34675] = icc_profile
    if dpi is not None:
        structure |= {282: dpi[0], 283: dpi[1], 296: 2}
    for tag, value in structure.items():
        directory[tag] = value
    file = io.BytesIO()
    directory.save(file)
    file.write(strip)
    return file.getvalue()
