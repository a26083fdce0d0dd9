"""Encoding restored images as the files they came from, all or nothing.

The written file has the format, channels, bit depth, transparency and metadata of the one that was read. PNG,
TIFF (deflated) and WebP are written without loss, JPEG at quality 95 without subsampling. Formats that cannot
hold what the image has (transparency or 16 bits in JPEG) are refused: leave it out in the open, with
``dataclasses.replace(image, alpha=None, dtype="uint8")``.
"""

from __future__ import annotations

__all__ = ["encode_image", "format_of", "write_atomically", "write_image"]

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from ..amortization.atomic import write_atomically
from .headers import save_options
from .images import Format, ImageError, ImageFile
from .wide import deflated_tiff, wide_png

_FORMATS: dict[str, Format] = {
    ".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF", ".webp": "WEBP",
    ".npy": "NPY",
}  # fmt: skip
_ENCODING: dict[Format, dict[str, Any]] = {
    "PNG": {},
    "JPEG": {"quality": 95, "subsampling": 0},
    "TIFF": {},  # of bits or with a palette; others are deflated
    # exact: colours under transparent pixels are part of the image.
    "WEBP": {"lossless": True, "exact": True},
}
Levels = npt.NDArray[Any]  # of uint8 or uint16


def format_of(path: str | Path) -> Format:
    """The format that a file's name stands for."""
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise ImageError(
            f"{path}: a name must end in one of {', '.join(_FORMATS)} to say what is to be written"
        )
    return _FORMATS[suffix]


def write_image(path: str | Path, pixels: Tensor, like: ImageFile) -> None:
    """Write restored pixels (C, H, W) as a file like the one they came from, in the format of its name.

    The file appears under its name when it is complete, and not at all if anything fails before.
    """
    write_atomically(path, encode_image(pixels, like, format_of(path)))


def encode_image(pixels: Tensor, like: ImageFile, format: Format | None = None) -> bytes:
    """Restored pixels as the content of a file like the one they came from.

    Args:
        pixels: (C, H, W) in [-1, 1], clipped. Three channels of a grey image are averaged; where H and W are
            not those of ``like``, its alpha is resized.
        like: where alpha, depth, palette and metadata come from.
        format: default that of ``like``.

    Raises:
        ImageError: the pixels are no image, or the format cannot hold it.
    """
    format = format or like.format
    pixels = pixels.detach().cpu()
    pixels = _like_channels(pixels if pixels.dtype == torch.float64 else pixels.float(), like)
    _require_room(like, format)
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


def _require_room(like: ImageFile, format: Format) -> None:
    remedy = "choose .png or .tif, or leave it out: dataclasses.replace(image, "
    if like.alpha is not None and format in ("JPEG", "NPY"):
        raise ImageError(f"{format} holds no transparency: {remedy}alpha=None)")
    if like.dtype == "uint16" and format in ("JPEG", "WEBP"):
        raise ImageError(f'{format} holds 8 bits, the image has 16: {remedy}dtype="uint8")')


def _array(pixels: Tensor, like: ImageFile) -> bytes:
    """Floats as they are, where the source is no array of integers."""
    file, array = io.BytesIO(), pixels.numpy()
    if like.format == "NPY" and like.dtype.startswith("uint"):
        most = np.iinfo(like.dtype).max
        array = np.rint((array.clip(-1, 1) + 1) / 2 * most)
    dtype = like.dtype if like.format == "NPY" else "float32"
    np.save(file, (array[0] if like.mode == "HW" else array).astype(dtype), allow_pickle=False)
    return file.getvalue()


def _levels(pixels: Tensor, like: ImageFile, format: Format) -> Levels:
    """Integers (H, W, C) with alpha: 16 bits where the source is finer than 8 and the format holds them."""
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
    """An image of 1 bit or with the source's palette, if it had one and holds every colour still."""
    if like.mode == "1" and like.alpha is None and bool(np.isin(levels, (0, 255)).all()):
        return Image.fromarray(levels[..., 0]).convert("1", dither=Image.Dither.NONE)
    if like.palette is None or levels.dtype != np.uint8:
        return None
    entries = np.frombuffer(like.palette, np.uint8).reshape(-1, 4)[:, : levels.shape[-1]]
    place = {bytes(entry): index for index, entry in reversed(list(enumerate(entries)))}
    colours, which = np.unique(levels.reshape(-1, levels.shape[-1]), axis=0, return_inverse=True)
    if not all(bytes(colour) in place for colour in colours):
        return None
    indices = np.array([place[bytes(colour)] for colour in colours], np.uint8)[which]
    image = Image.frombytes("P", (levels.shape[1], levels.shape[0]), indices.tobytes())
    image.putpalette(entries[:, :3].tobytes())
    if like.alpha is not None:
        options["transparency"] = entries[:, 3].tobytes()
    return image
