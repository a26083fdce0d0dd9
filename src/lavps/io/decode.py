"""Decoding of untrusted image files: allow-listed formats, bounded sizes, no silent conversion.

PNG, JPEG, TIFF, WebP and NPY are read, by content, not by name. The number of pixels is checked before
decoding. Losses that Pillow does not report (transparency, 8 of 16 bits, orientation) are avoided or raise an
error:

- Animations and files of several pages raise an error: restoring the first would lose the others. Phones'
  JPEG files with previews inside (MPO) are read as their main image, with a note.
- CMYK becomes RGB, through its profile if there is one, with a note; the profile no longer applies.
- A transparent colour (PNG without an alpha channel) becomes an alpha channel, with a note.
- Colour with 16 bits per channel needs the extra ``tiff``.
- NPY holds (H, W) or (C, H, W), bytes, 16-bit integers, or floats in [-1, 1]; floats may exceed the range, as
  measurements do, but 8-bit values as floats raise an error. Nothing is unpickled.
"""

from __future__ import annotations

__all__ = ["MOST_PIXELS", "array_header", "is_array", "load_array", "read_image"]

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile as PillowFile
from torch import Tensor

from ..image_formats import SUFFIXES, Format
from .directories import require_directories
from .image import ImageError, ImageFile, JPEGCoding, Metadata
from .metadata import read_metadata
from .regular import read_file
from .sixteen_bit import is_wide, rawmode_of, read_wide, tag_of

MOST_PIXELS = 100_000_000
_FORMATS = tuple(format for format in get_args(Format) if format != "NPY")
_FOREIGN = {
    b"GIF8": "GIF", b"BM": "BMP", b"8BPS": "PSD", b"%PDF": "PDF", b"<svg": "SVG", b"<?xml": "SVG or XML",
    b"\x00\x00\x00\x0cjP": "JPEG 2000", b"PK\x03\x04": "a zip archive", b"P5": "PGM", b"P6": "PPM",
    b"#?RADIANCE": "Radiance HDR", b"v/1\x01": "OpenEXR", b"\x80": "a pickle",
}  # fmt: skip
_ARRAY = b"\x93NUMPY"
_LARGE_TILE = 1 << 22  # pixels of a tile that any image may have
_LARGEST_FLOAT = 16.0  # above any average of an image in [-1, 1]; 8-bit values reach 255
Array = npt.NDArray[Any]


def read_image(source: str | Path | bytes, max_pixels: int = MOST_PIXELS) -> ImageFile:
    """Decode an image file.

    Args:
        source: Path of the file, or its content.
        max_pixels: Maximum number of pixels, checked before decoding. Pillow's own limit is twice
            PIL.Image.MAX_IMAGE_PIXELS.

    Raises:
        ImageError: The content is no image, of an unknown format, damaged, too large or animated.
        FileNotFoundError: There is no such file.

    Example:
        >>> import io
        >>> Image.new("RGB", (4, 2), "white").save(content := io.BytesIO(), "PNG")
        >>> read_image(content.getvalue()).size
        (2, 4)
    """
    name = "the image" if isinstance(source, bytes) else str(source)
    encoded = source if isinstance(source, bytes) else read_file(source)
    with _refusing(name):
        if is_array(encoded):
            return _from_array(encoded, max_pixels)
        require_directories(encoded)
        with _opened(encoded) as image:
            _require_size(image.size[1], image.size[0], max_pixels)
            _require_tiles(image)
            frames = getattr(image, "n_frames", 1)
            if frames > 1 and image.format != "MPO":
                raise ImageError(
                    f"it holds {frames} images (an animation or pages), and restoring one would lose the "
                    "others: split it into files of one image"
                )
            decoded = _decoded(image, encoded)
    claimed = "" if isinstance(source, bytes) else Path(source).suffix.lower()
    if SUFFIXES.get(claimed, decoded.format) != decoded.format:
        note = f"the name ends in {claimed}, the content is {decoded.format}"
        return replace(decoded, notes=(*decoded.notes, note))
    return decoded


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Turn any error of a decoder into an ImageError that names the file."""
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


def _require_size(height: int, width: int, max_pixels: int) -> None:
    if min(height, width) < 1:
        raise ImageError(f"it has {width} x {height} pixels")
    if height * width > max_pixels:
        raise ImageError(
            f"{width} x {height} are more than {max_pixels} pixels: crop it, or raise max_pixels in Python"
        )


def _require_tiles(image: PillowFile) -> None:
    """Raise an error if a TIFF has tiles far larger than the image, which decoders allocate."""
    sides = [int(tag_of(image, tag, 0)) for tag in (322, 323)]
    if math.prod(sides) > max(4 * math.prod(image.size), _LARGE_TILE):
        raise ImageError(f"its tiles of {sides[1]} x {sides[0]} pixels are much larger than the image")


def _decoded(image: PillowFile, encoded: bytes) -> ImageFile:
    """Decode an opened file; the samples are (H, W, C) integers until the end."""
    notes = ["the main image of several was read"] if image.format == "MPO" else []
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
        if samples.shape[-1] in (1, 3):  # else the decoder has applied it
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
        coding=_coding(image) if orientation == 1 else None,
    )


def _coding(image: PillowFile) -> JPEGCoding | None:
    """Return the compression of a JPEG file with grey or YCbCr planes; None for others."""
    tables, layers = getattr(image, "quantization", None), getattr(image, "layer", None)
    if not tables or not layers or image.mode not in ("L", "RGB") or image.info.get("adobe_transform") == 0:
        return None
    (_, across, down, _), *chroma = layers
    if len(layers) == 1:
        across = down = 1
    if {across, down} - {1, 2} or any(layer[1:3] != (1, 1) for layer in chroma):
        return None
    found = tuple(tuple(map(int, tables[layer[3]])) for layer in layers[:2])
    return JPEGCoding(found, (down, across))


def _samples(image: PillowFile, notes: list[str]) -> tuple[Array, bytes | None]:
    """Return grey or colour, with or without alpha, (H, W, C), and the palette if there is one."""
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
    """Return RGBA of every entry."""
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
    """Convert CMYK to RGB, through the profile if there is one, else by Pillow's formula."""
    profile = image.info.get("icc_profile")
    if profile:
        from PIL import ImageCms

        try:
            own, screen = ImageCms.ImageCmsProfile(io.BytesIO(profile)), ImageCms.createProfile("sRGB")
            converted = ImageCms.profileToProfile(image, own, screen, outputMode="RGB")
            assert converted is not None
            return converted
        except (ImageCms.PyCMSError, OSError):
            pass  # an unreadable profile, or one of another kind of ink
    return image.convert("RGB")


def _transparent_colour(image: PillowFile) -> Array | None:
    """Return the transparent colour of a file without alpha, in its own levels."""
    key = image.info.get("transparency")
    if key is None or image.mode in ("P", "PA", "LA", "RGBA"):
        return None
    # Grey of 2 and 4 bits is read as 8 bits, but the colour is not.
    return np.asarray(key) * {"L;2": 85, "L;4": 17}.get(rawmode_of(image), 1)


def _with_key(samples: Array, key: Array) -> Array:
    """Add alpha: opaque where a pixel differs from the transparent colour."""
    full = np.iinfo(samples.dtype).max
    opaque = (samples != key).any(-1, keepdims=True)
    return np.concatenate([samples, opaque.astype(samples.dtype) * full], axis=-1)


def _upright(samples: Array, orientation: int) -> Array:
    """Turn samples (H, W, C) upright, from EXIF orientation 1 to 8."""
    if orientation >= 5:
        samples = samples.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        samples = samples[::-1]
    if orientation in (2, 3, 6, 7):
        samples = samples[:, ::-1]
    return samples


def _apart(samples: Array) -> tuple[Tensor, Tensor | None]:
    """Return colour in [-1, 1] and alpha in [0, 1], (C, H, W)."""
    unit = samples.astype(np.float32).transpose(2, 0, 1) / np.float32(np.iinfo(samples.dtype).max)
    values = torch.from_numpy(np.ascontiguousarray(unit))
    has_alpha = len(values) in (2, 4)
    return (values[:-1] if has_alpha else values) * 2 - 1, values[-1:] if has_alpha else None


def is_array(encoded: bytes) -> bool:
    """Return whether a file's content is an array (.npy)."""
    return encoded.startswith(_ARRAY)


def array_header(encoded: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return the shape and type of an NPY file, and the position of its first value."""
    file = io.BytesIO(encoded)
    version = np.lib.format.read_magic(file)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = reader(file)
    return shape, dtype, file.tell()


def load_array(encoded: bytes, size: int, start: int) -> Array:
    """Load the values of an NPY file, ``size`` bytes from ``start`` on; nothing is unpickled."""
    if len(encoded) - start < size:
        raise ImageError("the array is incomplete")
    array: Array = np.load(io.BytesIO(encoded), allow_pickle=False)
    return array


def _from_array(encoded: bytes, max_pixels: int) -> ImageFile:
    """Decode an NPY file, after a check of its header."""
    shape, dtype, start = array_header(encoded)
    if dtype.name not in ("uint8", "uint16", "float16", "float32", "float64"):
        raise ImageError(f"an array of {dtype} is no image: floats in [-1, 1], uint8 and uint16 are")
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] not in (1, 3)):
        raise ImageError(f"an array of shape {shape} is no image: (H, W), (1, H, W) and (3, H, W) are")
    _require_size(shape[-2], shape[-1], max_pixels)
    array = load_array(encoded, math.prod(shape) * dtype.itemsize, start)
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
