"""Arrays, masks and blur kernels from files."""

from __future__ import annotations

__all__ = ["is_array", "read_array", "read_kernel", "read_mask"]

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .decode import MOST_PIXELS, array_header, is_array, load_array, read_image
from .image import ImageError

_MOST_VALUES = 3 * MOST_PIXELS


def read_array(encoded: bytes) -> Tensor:
    """Read a measurement that is not an image: finite real or complex numbers of any shape and range."""
    if not is_array(encoded):
        raise ImageError("it is neither an image nor an array (.npy)")
    shape, dtype, start = array_header(encoded)
    if dtype.kind not in "fc" or math.prod(shape) > _MOST_VALUES or len(shape) == 0:
        raise ImageError(f"an array {shape} of {dtype} is no measurement: floats and complex numbers are")
    array = load_array(encoded, math.prod(shape) * dtype.itemsize, start)
    if not np.isfinite(array).all():
        raise ImageError("the measurement holds NaN or infinite values")
    return torch.from_numpy(array.astype(np.complex64 if dtype.kind == "c" else np.float32))


def read_mask(file: Path) -> Tensor:
    """Read a mask (1, H, W), true where the image is known: brighter than mid-grey in the file."""
    known = read_image(file).pixels.mean(0, keepdim=True) > 0
    if not bool(known.any()):
        raise ImageError(f"{file} has no white pixel, and white marks known pixels: invert it")
    return known


def read_kernel(file: Path) -> Tensor:
    """Read a blur kernel (k, k) from an array or an image on black, and scale it to sum 1."""
    encoded = file.read_bytes()
    if is_array(encoded):
        levels = read_array(encoded).squeeze()
    else:
        levels = (read_image(encoded).pixels.mean(0) + 1) / 2
    if levels.ndim != 2 or levels.is_complex():
        raise ImageError(f"{file} has shape {tuple(levels.shape)}: a kernel is (k, k), real")
    total = float(levels.double().sum())
    if not total > 1e-6:
        raise ImageError(f"{file} sums to {total:g}: a kernel is bright where light falls, on black")
    return (levels.double() / total).float()
