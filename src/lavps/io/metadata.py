"""Metadata of image files, as Pillow reads and writes it."""

from __future__ import annotations

__all__ = ["read_metadata", "save_options"]

import math
import re
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ..image_formats import Format
from .directories import require_entries
from .image import Metadata

_ORIENTATION = 0x0112
# Tags of a TIFF that describe the image, not its layout: description, maker, model, software, date, artist,
# computer, copyright, and the directories of Exif and GPS.
_DESCRIPTIVE = (270, 271, 272, 305, 306, 315, 316, 33432, 0x8769, 0x8825)
_NESTED, _INTEROPERABILITY, _XMP = (0x8769, 0x8825), 0xA005, 700
_XMP_NAME = "XML:com.adobe.xmp"
_XMP_ORIENTATION = re.compile(rb'(tiff:Orientation(?:="|>))[0-9]')
_MOST_TEXT = 1 << 20  # characters; compressed text expands up to a thousand times
_NOT_TEXT = (_XMP_NAME, "Raw profile type exif", "Raw profile type icc")


def read_metadata(image: Image.Image, notes: list[str]) -> tuple[Metadata, int]:
    """Return the metadata and the orientation (1 to 8) of a loaded image; add a note for damaged EXIF."""
    exif, orientation = None, 1
    try:
        exif, orientation = _exif(image)
    except Exception as error:  # Pillow raises whatever a broken directory leads to
        notes.append(f"its EXIF is damaged and is left out ({error})")
    dpi = _dpi(image.info.get("dpi"))
    if dpi is not None and orientation >= 5:
        dpi = dpi[::-1]
    icc = None if image.mode == "CMYK" else image.info.get("icc_profile") or None
    text = _text(image)
    if sum(len(name) + len(value) for name, value in text) > _MOST_TEXT:
        text = ()
        notes.append(f"its text entries have more than {_MOST_TEXT} characters and are left out")
    return Metadata(icc, exif, _xmp(image), dpi, text), orientation


def _exif(image: Image.Image) -> tuple[bytes | None, int]:
    require_entries(_exif_block(image))
    found = image.getexif()
    orientation = found.get(_ORIENTATION, 1)
    kept = Image.Exif()
    for tag in _DESCRIPTIVE if image.format == "TIFF" else list(found):
        if tag in found and tag != _ORIENTATION:
            # A nested directory is kept without the one within it, which is an offset into the old file.
            nested = found.get_ifd(tag) if tag in _NESTED else {}
            inner = {name: value for name, value in nested.items() if name != _INTEROPERABILITY}
            kept[tag] = inner if tag in _NESTED else found[tag]
    return (kept.tobytes() if len(kept) else None), (int(orientation) if orientation in range(1, 9) else 1)


def _exif_block(image: Image.Image) -> bytes:
    """Return the EXIF of a PNG or WebP file as Pillow finds it; for others, it was checked."""
    text = image.info.get("Raw profile type exif", "")
    block = image.info.get("exif") or bytes.fromhex("".join(text.split("\n")[3:]))
    return bytes(block).removeprefix(b"Exif\0\0") if image.format in ("PNG", "WEBP") else b""


def _dpi(found: Any) -> tuple[float, float] | None:
    if found is None:
        return None
    across, down = (float(value) for value in found)
    return (across, down) if across > 0 and down > 0 and math.isfinite(across + down) else None


def _xmp(image: Image.Image) -> bytes | None:
    found = image.info.get("xmp") or image.info.get(_XMP_NAME)
    if not found:
        return None
    packet = found.encode() if isinstance(found, str) else bytes(found)
    return _XMP_ORIENTATION.sub(rb"\g<1>1", packet)


def _text(image: Image.Image) -> tuple[tuple[str, str], ...]:
    if image.format in ("JPEG", "MPO"):
        comment = image.info.get("comment")
        return (("comment", comment.decode("latin-1")),) if comment else ()
    entries = getattr(image, "text", {})
    return tuple((name, str(value)) for name, value in entries.items() if name not in _NOT_TEXT)


def save_options(metadata: Metadata, format: Format) -> dict[str, Any]:
    """Return the arguments of Pillow's ``save`` that write the metadata in this format."""
    options: dict[str, Any] = {"icc_profile": metadata.icc, "exif": metadata.exif, "dpi": metadata.dpi}
    if format == "PNG":
        entries = PngInfo()
        for name, value in metadata.text:
            entries.add_text(name, value)
        if metadata.xmp is not None:
            entries.add_itxt(_XMP_NAME, metadata.xmp.decode("utf-8", "replace"))
        options["pnginfo"] = entries
    elif format == "TIFF" and metadata.xmp is not None:  # a tag like the others
        tags = Image.Exif()
        if metadata.exif is not None:
            tags.load(metadata.exif)
        tags[_XMP] = metadata.xmp
        options["exif"] = tags.tobytes()
    else:
        options["xmp"] = metadata.xmp
    comment = dict(metadata.text).get("comment")
    if format == "JPEG" and comment is not None:
        options["comment"] = comment.encode("latin-1", "replace")
    return {name: value for name, value in options.items() if value is not None}
