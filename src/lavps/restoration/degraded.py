"""Records of the measurements that ``lavps degrade`` made."""

from __future__ import annotations

__all__ = ["DegradedRecord", "OperatorDraw", "degraded_record", "degraded_records", "script_of"]

import json
from dataclasses import dataclass
from pathlib import Path

from ..io.regular import read_file


def script_of(task: str | None) -> Path | None:
    """Return the Python file that a task "file.py:attribute" executes; None for a named task."""
    file = (task or "").rpartition(":")[0]
    return Path(file) if file.endswith(".py") else None


@dataclass(frozen=True)
class OperatorDraw:
    """Draw of an operator from a random family.

    Attributes:
        seed: Seed of the draw.
        item: Index of the draw.
        image_shape: Shape (C, *spatial) of the measured image.
    """

    seed: int
    item: int
    image_shape: tuple[int, ...]


@dataclass(frozen=True)
class DegradedRecord:
    """Entry of a file in the manifest of ``lavps degrade``.

    Attributes:
        task: Name of the operator.
        noise: Standard deviation of the noise.
        drawn: Draw of the operator.
    """

    task: str
    noise: float
    drawn: OperatorDraw


def degraded_record(file: Path) -> DegradedRecord | None:
    """Return the entry of a file in the manifest beside it, if there is one."""
    try:
        about = read_file(file.parent / "manifest.json")
    except (OSError, ValueError):
        return None
    return degraded_records(about)[0].get(file.name)


def degraded_records(about: bytes) -> tuple[dict[str, DegradedRecord], dict[str, str]]:
    """Return the entries of a manifest of ``lavps degrade``, and the measurement that each image file shows.

    Args:
        about: Content of ``manifest.json``; a damaged manifest, or one of another program, gives no entries.
    """
    records: dict[str, DegradedRecord] = {}
    sources: dict[str, str] = {}
    try:
        values = json.loads(about)
        for entry in values["measurements"]:
            shape = tuple(entry["image_shape"])
            if not all(isinstance(side, int) and side > 0 for side in shape):
                raise ValueError(f"image_shape is {shape}")
            drawn = OperatorDraw(int(values["seed"]), int(entry["item"]), shape)
            record = DegradedRecord(str(values["task"]), float(values["noise"]), drawn)
            records[entry["measurement"]] = record
            if (image := entry.get("picture")) not in (None, entry["measurement"]):
                records[image], sources[image] = record, entry["measurement"]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return {}, {}
    return records, sources
