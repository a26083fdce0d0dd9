"""Export of a benchmark's results to ``fronts.json``, the settings that ``lavps restore`` chooses from.

The file of a prior or inference model contains the settings of MGDM, or of LAVPS with that model, that no
other dominates in cost and mean LPIPS. Scores are those on the test images, or on the validation images if
there are none. Settings without a safeguard are not exported, since the operator of a restoration may not be
one that the model was trained on. The format is that of :mod:`lavps.restoration.presets`, one entry per
setting:

.. code-block:: json

    {"settings": {"sampler": "MGDM", "num_steps": 50}, "score": 0.071,
     "forwards": 97, "backwards": 48, "model_forwards": 0, "task": "sr4"}
"""

from __future__ import annotations

__all__ = ["exported_fronts", "install_fronts"]

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..evaluation.pareto import pareto_front
from ..guidance import Amortized
from ..io.atomic import write_json
from ..samplers import MGDM, UNBOUND, Settings, Unbound
from .methods import model_name
from .records import read_json

_COUNTS = ("forwards", "backwards", "model_forwards")


def exported_fronts(results: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the entries of ``fronts.json`` by model folder: the prior's for MGDM, the model's for LAVPS.

    Args:
        results: Content of a benchmark's ``results.json``.
    """
    task = results["settings"]["task"]
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for split in ("validation", "test"):
        found: dict[str, list[Mapping[str, Any]]] = {}
        for point in results["points"].get(split, []):
            method = Settings.from_dict(point["method"])
            if (folder := _folder_of(method, results["settings"]["prior"])) is not None:
                found.setdefault(folder, []).append(point)
        by_model |= found
    fronts = {}
    for folder, candidates in by_model.items():
        chosen = pareto_front([p["cost"] for p in candidates], [p["lpips"] for p in candidates])
        # Equivalent settings tie exactly: one of them is exported.
        distinct = {(candidates[i]["cost"], candidates[i]["lpips"]): candidates[i] for i in reversed(chosen)}
        fronts[folder] = [_entry(point, task) for point in reversed(distinct.values())]
    return fronts


def _folder_of(method: Settings, prior: str) -> str | None:
    """Return the folder that a method's entry belongs to; None for methods that are not exported."""
    parts = method.guidance_by_step
    amortized = [part for part in parts if isinstance(part, Amortized) and isinstance(part.model, Unbound)]
    if not isinstance(method.template, MGDM) or any(part.safeguard_every is None for part in amortized):
        return None
    return model_name(method) or prior


def _entry(point: Mapping[str, Any], task: str) -> dict[str, Any]:
    counts = {name: point[name] for name in _COUNTS}
    method = Settings.from_dict(point["method"])
    # The folder of the file is that of the model: settings do not repeat it.
    nameless = Settings(method.sampler(UNBOUND, UNBOUND if method.models else None))
    return {"settings": nameless.to_dict(), "score": point["lpips"], **counts, "task": task}


def install_fronts(benchmark: Path, output: Path | None = None) -> dict[Path, int]:
    """Write the fronts of a benchmark's ``results.json``; a file's entries of other tasks are kept.

    Args:
        benchmark: Folder of a benchmark with results.
        output: Folder for a file NAME.json per model; default ``fronts.json`` in the model's own folder.

    Returns:
        Files written, and the number of settings of this task in each.
    """
    if not (results := read_json(benchmark / "results.json")):
        raise FileNotFoundError(f"{benchmark} has no results yet: lavps bench report {benchmark}")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    written = {}
    for model, entries in exported_fronts(results).items():
        file = Path(model) / "fronts.json" if output is None else output / f"{Path(model).name}.json"
        if not file.parent.is_dir():
            raise FileNotFoundError(f"{file.parent} is not a folder: choose one with --output")
        kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
        others = [entry for entry in kept if entry.get("task") != results["settings"]["task"]]
        write_json(file, [*others, *entries])
        written[file] = len(entries)
    return written
