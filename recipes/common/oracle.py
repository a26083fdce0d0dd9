"""Rows of the benchmarks against exact posteriors."""

from __future__ import annotations

from typing import Any, Literal

from .cells import standard_error

Row = dict[str, Any]
Task = Literal["sr4", "inpainting"]
TASKS: tuple[Task, Task] = ("sr4", "inpainting")


def sw2_error(row: Row) -> float:
    """Return the standard error of SW2 over the observations."""
    return standard_error(row["sw2_by_item"])
