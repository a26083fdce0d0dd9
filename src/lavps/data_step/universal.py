"""Schedules for any task (:meth:`lavps.TunedPIR.universal`), by their number of denoiser evaluations.

``universal.json`` holds the fields of :class:`~lavps.TunedPIR`, as ``lavps tune`` learned them over many
tasks and noise levels with a prior of faces; ``recipes/few_steps/universal.py`` writes it. The folder of a
prior may have such a file of its own, whose schedules replace those of the package with as many evaluations.
"""

from __future__ import annotations

__all__ = ["UNIVERSAL", "universal_fields", "universal_table"]

import json
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from . import Stationary
from .schedule_numbers import Trend

UNIVERSAL = "universal.json"


@lru_cache
def _read(file: Path | None) -> dict[int, dict[str, Any]]:
    found = files(__package__).joinpath(UNIVERSAL) if file is None else file
    try:
        entries = json.loads(found.read_text(encoding="utf-8"))
        return {len(one["levels"]): {name: _value(part) for name, part in one.items()} for one in entries}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{found} is no list of schedules, as lavps tune learns them: {error!r}") from error


def universal_table(folder: Path | None = None) -> dict[int, dict[str, Any]]:
    """Return the fields of all schedules by their number of denoiser evaluations, in ascending order.

    Args:
        folder: Folder of the prior, whose own schedules are used if it has some.
    """
    file = None if folder is None else folder / UNIVERSAL
    own = _read(file) if file is not None and file.is_file() else {}
    return dict(sorted((_read(None) | own).items()))


def universal_fields(evaluations: int, folder: Path | None = None) -> dict[str, Any]:
    """Return the fields of the schedule with this number of denoiser evaluations.

    Raises:
        ValueError: There is none.
    """
    table = universal_table(folder)
    if evaluations not in table:
        known = ", ".join(map(str, table))
        raise ValueError(f"there are schedules for {known} denoiser evaluations, not for {evaluations}")
    return table[evaluations]


def _value(value: Any) -> Any:
    """Return a field: a number, a tuple, a trend or a covariance."""
    if isinstance(value, dict):
        kind = {"Trend": Trend, "Stationary": Stationary}[value["kind"]]
        return kind(**{name: _value(part) for name, part in value.items() if name != "kind"})
    return tuple(value) if isinstance(value, list) else value
