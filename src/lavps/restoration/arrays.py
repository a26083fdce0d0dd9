"""What comes beside a measurement: masks, kernels, arrays of numbers, the manifest of ``lavps degrade``."""

from __future__ import annotations

__all__ = [
    "DegradedRecord",
    "Drawn",
    "degraded_record",
    "degraded_records",
    "is_array",
    "read_array",
    "read_kernel",
    "read_mask",
]

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .images import ImageError
from .reading import MOST_PIXELS, read_image

_MAGIC = b"\x93NUMPY"
_MOST_VALUES = 3 * MOST_PIXELS


@dataclass(frozen=True)
class Drawn:
    """Which member of a random family measured an image.

    Attributes:
        seed: of the family's draw.
        item: of the family's draw.
        image_shape: (C, *spatial) of the image that was measured.
    """

    seed: int
    item: int
    image_shape: tuple[int, ...]


@dataclass(frozen=True)
class DegradedRecord:
    """What the manifest of ``lavps degrade`` says of a file.

    Attributes:
        task: that measured it.
        noise: its standard deviation.
        drawn: which member of a random family.
    """

    task: str
    noise: float
    drawn: Drawn


def degraded_record(file: Path) -> DegradedRecord | None:
    """What the manifest beside a file says of it, if there is one and it does."""
    try:
        about = (file.parent / "manifest.json").read_bytes()
    except OSError:
        return None
    return degraded_records(about)[0].get(file.name)


def degraded_records(about: bytes) -> tuple[dict[str, DegradedRecord], dict[str, str]]:
    """What a manifest of ``lavps degrade`` says of the files beside it, and which one a picture shows.

    Args:
        about: content of ``manifest.json``; another program's says nothing.
    """
    records: dict[str, DegradedRecord] = {}
    pictures: dict[str, str] = {}
    try:
        values = json.loads(about)
        for entry in values["measurements"]:
            drawn = Drawn(int(values["seed"]), int(entry["item"]), tuple(entry["image_shape"]))
            record = DegradedRecord(str(values["task"]), float(values["noise"]), drawn)
            records[entry["measurement"]] = record
            if (picture := entry.get("picture")) not in (None, entry["measurement"]):
                records[picture] = record
                pictures[picture] = entry["measurement"]
    except (ValueError, KeyError, TypeError):
        return {}, {}
    return records, pictures


def is_array(encoded: bytes) -> bool:
    """Whether a file's content is an array (.npy)."""
    return encoded.startswith(_MAGIC)


def read_array(encoded: bytes) -> Tensor:
    """A measurement that is no picture: numbers of any shape and range, real or complex, all finite."""
    if not is_array(encoded):
        raise ImageError("it is neither an image nor an array (.npy)")
    file = io.BytesIO(encoded)
    version = np.lib.format.read_magic(file)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = reader(file)
    if dtype.kind not in "fc" or math.prod(shape) > _MOST_VALUES or len(shape) == 0:
        raise ImageError(f"an array {shape} of {dtype} is no measurement: floats and complex numbers are")
    if len(encoded) - file.tell() < math.prod(shape) * dtype.itemsize:
        raise ImageError("the array is incomplete")
    file.seek(0)
    array = np.load(file, allow_pickle=False)
    if not np.isfinite(array).all():
        raise ImageError("the measurement holds NaN or infinite values")
    return torch.from_numpy(array.astype(np.complex64 if dtype.kind == "c" else np.float32))


def read_mask(file: Path) -> Tensor:
    """Where a picture is known, (1, H, W): white in the mask, or above half of white."""
    known = read_image(file).pixels.mean(0, keepdim=True) > 0
    if not bool(known.any()):
        raise ImageError(f"{file} has no white pixel, and white is what is known: invert it")
    return known


def read_kernel(file: Path) -> Tensor:
    """A blur kernel (k, k) with sum 1, from a picture, black where there is no light, or an array."""
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
