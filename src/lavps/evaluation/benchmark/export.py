"""From a benchmark's results to ``fronts.json``: the settings that ``lavps restore`` chooses between.

For every prior and inference model of the benchmark, the settings of MGDM (with or without likelihood steps
at the end), or of LAVPS with that model, that no other dominates in cost and mean LPIPS; scored on the test
images where any were tested, else on the validation images. Settings without a safeguard stay in the
benchmark: who restores files of their own is not asked whether the model knows the operator. The format is
that of :mod:`lavps.restoration.presets`, an entry a setting:

.. code-block:: json

    {"settings": {"num_steps": 50, "minimizer": "whitened"}, "score": 0.071,
     "forwards": 97, "backwards": 48, "model_forwards": 0, "task": "sr4"}
"""

from __future__ import annotations

__all__ = ["exported_fronts", "install_fronts"]

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...amortization.checkpoint import write_json
from ..pareto import pareto_front
from .methods import GENTLE_STEP, UNTRAINED
from .records import read_json

_SAMPLERS = ("mgdm", "lavps")
_COUNTS = ("forwards", "backwards", "model_forwards")


def exported_fronts(results: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Entries of ``fronts.json`` by model folder: the prior's for MGDM, the inference model's for LAVPS.

    Args:
        results: what ``results.json`` of a benchmark holds.
    """
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for split in ("validation", "test"):
        found: dict[str, list[Mapping[str, Any]]] = {}
        for point in results["points"].get(split, []):
            if (folder := _asked(point["method"], results["settings"]["prior"])) is not None:
                found.setdefault(folder, []).append(point)
        by_model |= found
    fronts = {}
    for folder, candidates in by_model.items():
        chosen = pareto_front([p["cost"] for p in candidates], [p["lpips"] for p in candidates])
        # Settings that change nothing tie exactly: one of them will do.
        distinct = {(candidates[i]["cost"], candidates[i]["lpips"]): candidates[i] for i in reversed(chosen)}
        fronts[folder] = [_entry(point, results["settings"]["task"]) for point in reversed(distinct.values())]
    return fronts


def _asked(method: Mapping[str, Any], prior: str) -> str | None:
    """The folder of the model that a method asks, the prior's for none; None for what is not exported."""
    model = method.get("model")
    if model in UNTRAINED:  # without a model: likelihood steps at last, after gentle ones or MGDM's
        return prior if model == GENTLE_STEP or method["r_model"] == 1.0 else None
    if method["sampler"] not in _SAMPLERS or not method.get("safeguard", True):
        return None
    return model or prior


def _entry(point: Mapping[str, Any], task: str) -> dict[str, Any]:
    settings = {name: value for name, value in point["method"].items() if name not in ("sampler", "model")}
    return {
        "settings": settings,
        "score": point["lpips"],
        **{name: point[name] for name in _COUNTS},
        "task": task,
    }


def install_fronts(benchmark: Path, output: Path | None = None) -> dict[Path, int]:
    """Write the fronts of a benchmark's ``results.json``; of other tasks a file keeps its entries.

    Args:
        benchmark: its folder, with results.
        output: a folder for NAME.json of every model; default ``fronts.json`` in the model's own folder.

    Returns:
        The files written, and how many settings of this task each now has.
    """
    if not (results := read_json(benchmark / "results.json")):
        raise FileNotFoundError(f"{benchmark} has no results yet: lavps bench report {benchmark}")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    written = {}
    for model, entries in exported_fronts(results).items():
        file = Path(model) / "fronts.json" if output is None else output / f"{Path(model).name}.json"
        if not file.parent.is_dir():
            raise FileNotFoundError(f"{file.parent} is no folder here: write the fronts to one with --output")
        kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
        others = [entry for entry in kept if entry.get("task") != results["settings"]["task"]]
        write_json(file, [*others, *entries])
        written[file] = len(entries)
    return written
