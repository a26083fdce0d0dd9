"""Colour with 16 bits per channel, which Pillow has no mode for.

Reading: tifffile decodes TIFF, imagecodecs decodes PNG.

Writing: PNG and TIFF are deflated rows between headers that Pillow writes. The other libraries do not keep
metadata: imagecodecs writes none to PNG, tifffile no EXIF or GPS directory to TIFF. (TIFF with 8 bits is
written here too: Pillow compresses it, or gives it EXIF, but not both.)
"""

from __future__ import annotations

__all__ = ["deflated_tiff", "is_wide", "rawmode_of", "read_wide", "tag_of", "wide_png"]

import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, TiffImagePlugin
from PIL.ImageFile import ImageFile as PillowFile

from ..extras import require
from .image import ImageError

Levels = npt.NDArray[np.uint16]
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # PNG's, by the number of channels
_DEPTHS, _PLANES = 258, 284
_RGB, _STRAIGHT_ALPHA = 2, 2  # TIFF's photometric interpretation, and kind of extra channel


def rawmode_of(image: PillowFile) -> str:
    """Return the raw mode with which Pillow unpacks an opened file."""
    args = image.tile[0].args if image.tile else None
    return str(args[0] if isinstance(args, tuple) and args else args)


def tag_of(image: PillowFile, tag: int, default: Any) -> Any:
    """Return a tag of a TIFF; for other files, the default."""
    return getattr(image, "tag_v2", {}).get(tag, default)


def is_wide(image: PillowFile) -> bool:
    """Return whether an opened file has several channels of 16 bits."""
    in_colour = image.mode[0] not in "IF"
    return in_colour and (";16" in rawmode_of(image) or 16 in tag_of(image, _DEPTHS, ()))


def read_wide(image: PillowFile, encoded: bytes) -> Levels:
    """Decode all 16 bits of an opened file, (H, W, C) with C = 2, 3 or 4.

    Args:
        image: Opened file.
        encoded: Content of the file.

    Raises:
        ImageError: The layout is not supported, or the library that decodes it is not installed.
    """
    if image.format == "PNG":
        image.load()  # for metadata behind the pixels
        levels: Levels = _library("imagecodecs").png_decode(encoded)
        return levels
    with _library("tifffile").TiffFile(io.BytesIO(encoded)) as file:
        page = file.pages[0]
        unit = "pixels" if page.planarconfig == 1 else "planes"
        straight = page.extrasamples in ((), (_STRAIGHT_ALPHA,))
        if unit == "planes" or not straight or page.photometric != _RGB or page.dtype != np.uint16:
            raise ImageError(
                f"16 bits per channel, laid out as {rawmode_of(image)} in {unit}, cannot be read without "
                "loss: save it as 16-bit RGB or RGBA, pixel by pixel, without premultiplied alpha"
            )
        if page.shape[:2] != image.size[::-1]:
            raise ImageError(f"its size is read as {image.size[::-1]} and as {page.shape}: save it again")
        levels = page.asarray(maxworkers=1)
        return levels


def _library(name: str) -> Any:
    try:
        return require(name, "tiff")
    except ImportError as error:
        raise ImageError(f"colour with 16 bits per channel needs another library: {error}") from error


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and content of a PNG's chunks."""
    start = len(_SIGNATURE)
    while start + 12 <= len(png):
        (length,) = struct.unpack_from(">I", png, start)
        yield png[start + 4 : start + 8], png[start + 8 : start + 8 + length]
        start += 12 + length


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def wide_png(levels: Levels, **options: Any) -> bytes:
    """Encode a PNG with 16 bits per channel.

    Args:
        levels: Levels (H, W, C), C = 1 to 4: grey, grey and alpha, RGB, RGBA.
        options: Metadata as arguments of Pillow's ``save`` (icc_profile, exif, dpi, pnginfo).
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
    """Encode a TIFF of 8 or 16 bits per channel from (H, W, C): grey, grey and alpha, RGB or RGBA."""
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
        273: 0,  # start of the strip, counted from the directory's end
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
