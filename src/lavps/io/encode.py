"""Encoding of restored images as files like their sources.

The written file has the format, channels, bit depth, transparency and metadata of its source. PNG, TIFF
(deflated) and WebP are lossless, JPEG has quality 95 without subsampling. A format that cannot hold
transparency or 16 bits raises an error: drop them explicitly, with
``dataclasses.replace(image, alpha=None, dtype="uint8")``.
"""

from __future__ import annotations

__all__ = ["encode_image", "format_of", "write_image"]

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from ..image_formats import SUFFIXES, Format
from .atomic import write_atomically
from .image import ImageError, ImageFile
from .metadata import save_options
from .sixteen_bit import deflated_tiff, wide_png

_ENCODING: dict[Format, dict[str, Any]] = {
    "PNG": {},
    "JPEG": {"quality": 95, "subsampling": 0},
    "TIFF": {},  # with 1 bit or a palette; others are deflated
    # exact: colours under transparent pixels are part of the image.
    "WEBP": {"lossless": True, "exact": True},
}
_FAR_OUTSIDE = 10.0  # samples may exceed [-1, 1]; pixels in 0..255 are an error
Levels = npt.NDArray[Any]  # of uint8 or uint16


def format_of(path: str | Path) -> Format:
    """Return the format of a file's name."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ImageError(f"{path}: the name must end in one of {', '.join(SUFFIXES)}")
    return SUFFIXES[suffix]


def write_image(path: str | Path, pixels: Tensor, like: ImageFile | None = None) -> None:
    """Write pixels in the format of the file's name, atomically.

    Args:
        path: File.
        pixels: Pixels (C, H, W) or (1, C, H, W) in [-1, 1].
        like: Source of alpha, depth, palette and metadata; default none of them, with 8 bits.

    Raises:
        ImageError: The pixels are no image, or the format cannot hold it.

    Warns:
        UserWarning: Without a source, all pixels are in [0, 1].
    """
    format = format_of(path)
    pixels = pixels[0] if pixels.ndim == 4 and len(pixels) == 1 else pixels
    write_atomically(path, encode_image(pixels, _plain(pixels, format) if like is None else like, format))


def _plain(pixels: Tensor, format: Format) -> ImageFile:
    """Return a file without transparency and metadata, for pixels in [-1, 1]."""
    if not pixels.is_floating_point():
        raise ImageError(
            f"pixels must be floating point, got {pixels.dtype}: x / 127.5 - 1 maps [0, 255] to it"
        )
    low, high = (float(part) for part in pixels.aminmax()) if pixels.numel() else (0.0, 0.0)
    if max(-low, high) > _FAR_OUTSIDE:
        raise ImageError(
            f"pixels must be in [-1, 1], got {low:.4g} to {high:.4g}: for [0, 255], write x / 127.5 - 1"
        )
    if 0.0 <= low < high <= 1.0:
        warnings.warn("no pixel is below mid-grey: for images in [0, 1], write 2 * x - 1", stacklevel=3)
    if format == "NPY":
        return ImageFile(pixels, None, format, "CHW", "float32")
    return ImageFile(pixels, None, format, "L" if len(pixels) == 1 else "RGB", "uint8")


def encode_image(pixels: Tensor, like: ImageFile, format: Format | None = None) -> bytes:
    """Encode restored pixels as the content of a file like their source.

    Args:
        pixels: Pixels (C, H, W) in [-1, 1], clipped. Three channels of a grey image are averaged. If H and W
            are not those of ``like``, its alpha is resized.
        like: Source of alpha, depth, palette and metadata.
        format: Format; default that of ``like``.

    Raises:
        ImageError: The pixels are no image, or the format cannot hold it.

    Example:
        >>> like = ImageFile(torch.zeros(1, 2, 2), None, "PNG", "L", "uint8")
        >>> encode_image(torch.ones(1, 8, 8), like)[1:4]
        b'PNG'
    """
    format = format or like.format
    pixels = pixels.detach().cpu()
    pixels = _like_channels(pixels if pixels.dtype == torch.float64 else pixels.float(), like)
    _require_support(like, format)
    if format == "NPY":
        return _array(pixels, like)
    levels = _levels(pixels, like, format)
    try:
        return _encoded(levels, like, format)
    except (OSError, ValueError, OverflowError, RuntimeError) as error:
        height, width = pixels.shape[1:]
        raise ImageError(f"{height} x {width} pixels cannot be written as {format}: {error}") from error


def _like_channels(pixels: Tensor, like: ImageFile) -> Tensor:
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3) or 0 in pixels.shape:
        raise ImageError(
            f"an image is (1, H, W) or (3, H, W), got {tuple(pixels.shape)}: write one at a time"
        )
    if not bool(pixels.isfinite().all()):
        raise ImageError("the image holds NaN or infinite values")
    if len(pixels) == like.channels:
        return pixels
    if like.channels == 1:
        return pixels.mean(0, keepdim=True)
    raise ImageError("a colour image was restored to a grey one: restore all of its channels")


def _require_support(like: ImageFile, format: Format) -> None:
    remedy = "choose .png or .tif, or leave it out: dataclasses.replace(image, "
    if like.alpha is not None and format in ("JPEG", "NPY"):
        raise ImageError(f"{format} holds no transparency: {remedy}alpha=None)")
    if like.dtype == "uint16" and format in ("JPEG", "WEBP"):
        raise ImageError(f'{format} holds 8 bits, the image has 16: {remedy}dtype="uint8")')


def _array(pixels: Tensor, like: ImageFile) -> bytes:
    """Encode an array, of floats unless the source is one of integers."""
    file, array = io.BytesIO(), pixels.numpy()
    if like.format == "NPY" and like.dtype.startswith("uint"):
        most = np.iinfo(like.dtype).max
        array = np.rint((array.clip(-1, 1) + 1) / 2 * most)
    dtype = like.dtype if like.format == "NPY" else "float32"
    np.save(file, (array[0] if like.mode == "HW" else array).astype(dtype), allow_pickle=False)
    return file.getvalue()


def _levels(pixels: Tensor, like: ImageFile, format: Format) -> Levels:
    """Return integers (H, W, C) with alpha: 16 bits if the source has more than 8 and the format allows."""
    parts = [(pixels.clamp(-1, 1) + 1) / 2]
    if like.alpha is not None:
        alpha = like.alpha.to(pixels)
        if alpha.shape[1:] != pixels.shape[1:]:
            size = tuple(pixels.shape[1:])
            alpha = torch.nn.functional.interpolate(alpha[None], size, mode="bilinear", antialias=True)[0]
        parts.append(alpha.clamp(0, 1))
    fine = like.depth > 8 and format in ("PNG", "TIFF")
    dtype = np.uint16 if fine else np.uint8
    unit = torch.cat(parts).permute(1, 2, 0).numpy()
    levels: Levels = np.rint(unit * np.iinfo(dtype).max).astype(dtype)
    return np.ascontiguousarray(levels)


def _encoded(levels: Levels, like: ImageFile, format: Format) -> bytes:
    options = save_options(like.metadata, format)
    if format == "PNG" and levels.dtype == np.uint16:
        return wide_png(levels, **options)
    few = format == "PNG" or (format == "TIFF" and like.alpha is None)
    image = _with_few_colours(levels, like, options) if few else None
    if image is None and format == "TIFF":
        if levels.dtype == np.uint16 and levels.shape[-1] == 2:
            levels = levels[..., [0, 0, 0, 1]]  # Pillow could not read grey and alpha at 16 bits
        return deflated_tiff(levels, **options)
    if image is None:
        image = Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)
    file = io.BytesIO()
    image.save(file, format, **_ENCODING[format], **options)
    return file.getvalue()


def _with_few_colours(levels: Levels, like: ImageFile, options: dict[str, Any]) -> Image.Image | None:
    """Return an image of 1 bit or with the source's palette, if that still holds every colour."""
    if like.mode == "1" and like.alpha is None and bool(np.isin(levels, (0, 255)).all()):
        return Image.fromarray(levels[..., 0]).convert("1", dither=Image.Dither.NONE)
    if like.palette is None or levels.dtype != np.uint8:
        return None
    entries = np.frombuffer(like.palette, np.uint8).reshape(-1, 4)[:, : levels.shape[-1]]
    index_of = {bytes(entry): index for index, entry in reversed(list(enumerate(entries)))}
    colours, which = np.unique(levels.reshape(-1, levels.shape[-1]), axis=0, return_inverse=True)
    if not all(bytes(colour) in index_of for colour in colours):
        return None
    indices = np.array([index_of[bytes(colour)] for colour in colours], np.uint8)[which]
    image = Image.frombytes("P", (levels.shape[1], levels.shape[0]), indices.tobytes())
    image.putpalette(entries[:, :3].tobytes())
    if like.alpha is not None:
        options["transparency"] = entries[:, 3].tobytes()
    return image
