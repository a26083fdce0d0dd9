"""Decoding image files, from anyone: allow-listed formats, bounded sizes, no silent conversion.

Read are PNG, JPEG, TIFF, WebP and NPY, whatever the file's name says. The number of pixels is checked before
any is decoded. What Pillow would quietly do (drop transparency, keep 8 bits of 16, ignore the orientation) is
done here in full or refused:

- Animations and files of several pages are refused: restoring the first would lose the others. Phones' JPEG
  files with previews inside (MPO) are read as their main picture, with a note.
- CMYK becomes RGB, through its profile if there is one, with a note; the profile no longer applies.
- A transparent colour (PNG without an alpha channel) becomes an alpha channel, with a note.
- NPY holds (H, W) or (C, H, W), bytes, 16-bit integers, or floats in [-1, 1]; floats may leave the range, as
  measurements do, but 8-bit values as floats are refused. Nothing is unpickled.
"""

from __future__ import annotations

__all__ = ["MOST_PIXELS", "read_image"]

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile as PillowFile
from torch import Tensor

from .headers import read_metadata
from .images import Format, ImageError, ImageFile, Metadata
from .wide import is_wide, rawmode_of, read_wide, tag_of

MOST_PIXELS = 100_000_000
_FORMATS = ("PNG", "JPEG", "TIFF", "WEBP")
_SUFFIXES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF", ".webp": "WEBP"}
_FOREIGN = {
    b"GIF8": "GIF", b"BM": "BMP", b"8BPS": "PSD", b"%PDF": "PDF", b"<svg": "SVG", b"<?xml": "SVG or XML",
    b"\x00\x00\x00\x0cjP": "JPEG 2000", b"PK\x03\x04": "a zip archive", b"P5": "PGM", b"P6": "PPM",
    b"#?RADIANCE": "Radiance HDR", b"v/1\x01": "OpenEXR", b"\x80": "a pickle",
}  # fmt: skip
_ARRAY = b"\x93NUMPY"
_LARGEST_FLOAT = 16.0  # beyond any measurement of an image in [-1, 1] by a mean; 8-bit values reach 255
Array = npt.NDArray[Any]


def read_image(source: str | Path | bytes, max_pixels: int = MOST_PIXELS) -> ImageFile:
    """Decode an image file.

    Args:
        source: its path, or its content.
        max_pixels: files of more are refused before they are decoded. Beyond twice PIL.Image.MAX_IMAGE_PIXELS
            Pillow refuses by itself.

    Raises:
        ImageError: it is no image, not of a known format, damaged, too large, animated; says which.
        FileNotFoundError: there is no such file.
    """
    name = "the image" if isinstance(source, bytes) else str(source)
    encoded = source if isinstance(source, bytes) else Path(source).read_bytes()
    with _refusing(name):
        if encoded.startswith(_ARRAY):
            return _from_array(encoded, max_pixels)
        with _opened(encoded) as image:
            _require_one_picture_of(image, max_pixels)
            decoded = _decoded(image, encoded)
    claimed = "" if isinstance(source, bytes) else Path(source).suffix.lower()
    if _SUFFIXES.get(claimed, decoded.format) != decoded.format:
        note = f"the name ends in {claimed}, the content is {decoded.format}"
        return replace(decoded, notes=(*decoded.notes, note))
    return decoded


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Whatever a damaged file makes a decoder raise, as one error that names the file."""
    try:
        yield
    except ImageError as error:
        raise ImageError(f"{name} is not read: {error}") from error.__cause__
    except MemoryError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ImageError(f"{name} is damaged or incomplete: {reason}") from error


def _opened(encoded: bytes) -> PillowFile:
    try:
        return Image.open(io.BytesIO(encoded), formats=_FORMATS)
    except UnidentifiedImageError as error:
        start = encoded[:512].lstrip()
        names = [name for magic, name in _FOREIGN.items() if start.startswith(magic)]
        if start[4:8] == b"ftyp":
            names = ["HEIC, AVIF or a video"]
        held = f"its content is {names[0]}" if names else "its content is no image that is known here"
        raise ImageError(
            f"{held if encoded else 'it is empty'}. Read are PNG, JPEG, TIFF, WebP and NPY, if their headers "
            "are intact: convert it to PNG"
        ) from error
    except Image.DecompressionBombError as error:
        raise ImageError(f"its header claims too many pixels ({error})") from error


def _require_one_picture_of(image: PillowFile, max_pixels: int) -> None:
    _require_size(image.size[1], image.size[0], max_pixels)
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":
        raise ImageError(
            f"it holds {frames} pictures (an animation or pages), and restoring one would lose the others: "
            "split it into files of one picture"
        )


def _require_size(height: int, width: int, max_pixels: int) -> None:
    if min(height, width) < 1:
        raise ImageError(f"it has {height} x {width} pixels")
    if height * width > max_pixels:
        raise ImageError(
            f"{height} x {width} are more than {max_pixels} pixels: raise max_pixels if you trust the file"
        )


def _decoded(image: PillowFile, encoded: bytes) -> ImageFile:
    """An opened file as an image; the samples are (H, W, C) integers until the very end."""
    notes = ["the main picture of several was read"] if image.format == "MPO" else []
    mode, palette = image.mode, None
    key = _transparent_colour(image)
    if is_wide(image) and mode != "CMYK":
        samples = read_wide(image, encoded)
        mode = {2: "LA", 3: "RGB", 4: "RGBA"}[samples.shape[-1]]
    else:
        image.load()
        samples, palette = _samples(image, notes)
    metadata, orientation = read_metadata(image, notes)
    if key is not None:
        samples = _with_key(samples, key)
        notes.append("its transparent colour became an alpha channel")
    samples = _upright(samples, orientation)
    dtype = "bool" if mode == "1" else samples.dtype.name
    colour, alpha = _apart(samples)
    return ImageFile(
        pixels=colour,
        alpha=alpha,
        format=cast(Format, "JPEG" if image.format == "MPO" else image.format),
        mode="L" if mode.startswith("I;16") else {"CMYK": "RGB", "PA": "P"}.get(mode, mode),
        dtype=dtype,
        metadata=metadata,
        palette=palette,
        notes=tuple(notes),
    )


def _samples(image: PillowFile, notes: list[str]) -> tuple[Array, bytes | None]:
    """Grey, colour or either with alpha, (H, W, C), and the palette where there is one."""
    mode, palette, samples = image.mode, None, np.asarray(image)
    if mode in ("P", "PA"):
        palette = _palette(image) if mode == "P" else None
        notes.append("written with its palette where that has all the colours, and without one elsewhere")
        samples = np.asarray(image.convert("RGBA" if image.has_transparency_data else "RGB"))
    elif mode == "1":
        samples = samples.astype(np.uint8) * 255
        notes.append("written at 1 bit where all pixels are black or white, and as 8-bit grey elsewhere")
    elif mode == "CMYK":
        samples = np.asarray(_rgb_of(image))
        notes.append("CMYK was converted to RGB at 8 bits, without a profile")
    elif not (mode in ("L", "LA", "RGB", "RGBA") or mode.startswith("I;16")):
        raise ImageError(f"pixels of mode {mode} are not restored: convert it to grey or RGB of 8 or 16 bits")
    if mode.startswith("I;16"):
        if tag_of(image, 258, (16,)) != (16,):
            raise ImageError("its depth is neither 8 nor 16 bits: save it as 16-bit grey")
        samples = samples.astype(np.uint16)
        samples = samples if tag_of(image, 262, 1) else 65535 - samples  # where 0 is white
    return samples.reshape(*samples.shape[:2], -1), palette


def _palette(image: Image.Image) -> bytes:
    """RGBA of every entry."""
    colours = np.array(image.getpalette("RGB"), np.uint8).reshape(-1, 3)
    alpha = np.full((len(colours), 1), 255, np.uint8)
    transparent = image.info.get("transparency", b"")
    if isinstance(transparent, int):
        alpha[transparent] = 0
    else:
        given = np.frombuffer(transparent, np.uint8)[: len(alpha), None]
        alpha[: len(given)] = given
    return np.concatenate([colours, alpha], axis=1).tobytes()


def _rgb_of(image: Image.Image) -> Image.Image:
    """CMYK inks as the colours they print, if the profile says so; else by Pillow's formula."""
    profile = image.info.get("icc_profile")
    if profile:
        from PIL import ImageCms

        try:
            own, screen = ImageCms.ImageCmsProfile(io.BytesIO(profile)), ImageCms.createProfile("sRGB")
            converted = ImageCms.profileToProfile(image, own, screen, outputMode="RGB")
            assert converted is not None
            return converted
        except (ImageCms.PyCMSError, OSError):
            pass  # a profile that cannot be read, or of another kind of ink
    return image.convert("RGB")


def _transparent_colour(image: PillowFile) -> Array | None:
    """The one colour that a file without alpha calls transparent, in its own levels."""
    key = image.info.get("transparency")
    if key is None or image.mode in ("P", "PA", "LA", "RGBA"):
        return None
    # Grey of 2 and 4 bits is read at 8 bits, and the colour is not.
    return np.asarray(key) * {"L;2": 85, "L;4": 17}.get(rawmode_of(image), 1)


def _with_key(samples: Array, key: Array) -> Array:
    """Opaque where a pixel differs from the transparent colour."""
    full = np.iinfo(samples.dtype).max
    opaque = (samples != key).any(-1, keepdims=True)
    return np.concatenate([samples, opaque.astype(samples.dtype) * full], axis=-1)


def _upright(samples: Array, orientation: int) -> Array:
    """Samples (H, W, C) as EXIF's orientation 1 to 8 wants them seen."""
    if orientation >= 5:
        samples = samples.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        samples = samples[::-1]
    if orientation in (2, 3, 6, 7):
        samples = samples[:, ::-1]
    return samples


def _apart(samples: Array) -> tuple[Tensor, Tensor | None]:
    """Colour in [-1, 1] and alpha in [0, 1], (C, H, W)."""
    unit = samples.astype(np.float32).transpose(2, 0, 1) / np.float32(np.iinfo(samples.dtype).max)
    values = torch.from_numpy(np.ascontiguousarray(unit))
    has_alpha = len(values) in (2, 4)
    return (values[:-1] if has_alpha else values) * 2 - 1, values[-1:] if has_alpha else None


def _from_array(encoded: bytes, max_pixels: int) -> ImageFile:
    """An NPY file; its header is read, and judged, first."""
    file = io.BytesIO(encoded)
    version = np.lib.format.read_magic(file)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = reader(file)
    if dtype.name not in ("uint8", "uint16", "float16", "float32", "float64"):
        raise ImageError(f"an array of {dtype} is no image: floats in [-1, 1], uint8 and uint16 are")
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] not in (1, 3)):
        raise ImageError(f"an array of shape {shape} is no image: (H, W), (1, H, W) and (3, H, W) are")
    _require_size(shape[-2], shape[-1], max_pixels)
    if len(encoded) - file.tell() < math.prod(shape) * dtype.itemsize:
        raise ImageError("the array is incomplete")
    file.seek(0)
    array = np.load(file, allow_pickle=False)
    array = array if array.ndim == 3 else array[None]
    if dtype.kind == "u":
        pixels = torch.from_numpy(array / np.iinfo(dtype).max * 2 - 1)
    elif not np.isfinite(array).all() or np.abs(array).max() > _LARGEST_FLOAT:
        raise ImageError(
            "floats must be finite and in [-1, 1], or near it: 8-bit values v as floats are v / 127.5 - 1"
        )
    else:
        pixels = torch.from_numpy(array.astype(np.float64))
    mode = "HW" if len(shape) == 2 else "CHW"
    return ImageFile(pixels.float(), None, "NPY", mode, dtype.name, Metadata())
