"""Rows of the benchmarks against exact posteriors."""

from __future__ import annotations

from typing import Any, Literal

Row = dict[str, Any]
Task = Literal["sr4", "inpainting"]
TASKS: tuple[Task, Task] = ("sr4", "inpainting")


def standard_error(row: Row) -> float:
    """Return the standard error of SW2 over the observations."""
    values = row["sw2_by_item"]
    mean = sum(values) / len(values)
    return float((sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1) / len(values)) ** 0.5)
