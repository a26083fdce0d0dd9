"""Schedules for any task (:meth:`lavps.TunedPIR.universal`), by their number of denoiser evaluations.

``universal.json`` holds the fields of :class:`~lavps.TunedPIR`, as ``lavps tune`` learned them over many
tasks and noise levels; ``recipes/few_steps/universal.py`` writes it.
"""

from __future__ import annotations

__all__ = ["universal_evaluations", "universal_fields"]

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

from . import Stationary
from .schedule_numbers import Trend


@lru_cache(maxsize=1)
def _table() -> dict[int, dict[str, Any]]:
    text = files(__package__).joinpath("universal.json").read_text(encoding="utf-8")
    return {len(entry["levels"]): entry for entry in json.loads(text)}


def universal_evaluations() -> tuple[int, ...]:
    """Return the numbers of denoiser evaluations that there are schedules for."""
    return tuple(sorted(_table()))


def universal_fields(evaluations: int) -> dict[str, Any]:
    """Return the fields of the schedule with this number of denoiser evaluations.

    Raises:
        ValueError: There is none.
    """
    if evaluations not in _table():
        known = ", ".join(map(str, universal_evaluations()))
        raise ValueError(f"there are schedules for {known} denoiser evaluations, not for {evaluations}")
    return {name: _value(value) for name, value in _table()[evaluations].items()}


def _value(value: Any) -> Any:
    """Return a field: a number, a tuple, a trend or a covariance."""
    if isinstance(value, dict):
        kind = {"Trend": Trend, "Stationary": Stationary}[value["kind"]]
        return kind(**{name: _value(part) for name, part in value.items() if name != "kind"})
    return tuple(value) if isinstance(value, list) else value
