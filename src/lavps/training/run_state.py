"""The state of a training run on disk, from which the run is resumed."""

from __future__ import annotations

__all__ = ["RunState", "load_run", "save_run"]

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..checkpoints.hashes import file_hash
from ..io.atomic import atomically, write_json

_WEIGHTS = "state.safetensors"


@dataclass(frozen=True)
class RunState:
    """State of a run after ``step`` steps: tensors by name, settings and counters (both JSON values)."""

    step: int
    tensors: dict[str, Tensor]
    setup: dict[str, Any]
    counters: list[Any]


def save_run(folder: Path, state: RunState) -> None:
    """Write the state to ``folder/step-...`` atomically, and delete all but the last two states."""
    target = folder / f"step-{state.step:09d}"
    partial = folder / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    # Cloned, because safetensors rejects tied weights that share memory.
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in state.tensors.items()}
    record = {k: v for k, v in vars(state).items() if k != "tensors"}
    try:
        atomically(partial / _WEIGHTS, lambda path: save_file(tensors, path))
        write_json(partial / "state.json", record | {"sha256": file_hash(partial / _WEIGHTS)})
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise OSError(f"the checkpoint {target} cannot be written: {error}") from error
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    for old in sorted(folder.glob("step-*"))[:-2]:
        shutil.rmtree(old)


def load_run(
    folder: Path,
    setup: Mapping[str, Any],
    may_end_elsewhere: Callable[[Mapping[str, Any], Mapping[str, Any], int], bool],
) -> RunState | None:
    """Return the last complete state in ``folder``, if any; raise if its settings differ from ``setup``.

    Args:
        folder: Folder of the states.
        setup: Settings, JSON values.
        may_end_elsewhere: Function of old settings, new settings and step that returns whether the number
            of steps may differ.
    """
    if not (steps := sorted(folder.glob("step-*"))):
        return None
    try:
        record = json.loads((steps[-1] / "state.json").read_text(encoding="utf-8"))
        if record.pop("sha256", None) not in (None, file_hash(steps[-1] / _WEIGHTS)):
            raise ValueError("the checksum differs")
        tensors = load_file(steps[-1] / _WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(
            f"{steps[-1]} is damaged ({error}); delete it to resume from the one before"
        ) from error
    differing = _differences(record["setup"], json.loads(json.dumps(setup)))
    if may_end_elsewhere(record["setup"], setup, record["step"]):
        differing = [difference for difference in differing if not difference.startswith("trainer.steps ")]
    if differing:
        raise ValueError(f"{folder} holds a run with other settings: {'; '.join(differing)}")
    return RunState(tensors=tensors, **record)


def _differences(old: Any, new: Any, name: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        return [d for k in keys for d in _differences(old.get(k), new.get(k), f"{name}.{k}".strip("."))]
    return [] if old == new else [f"{name} was {old!r}, is {new!r}"]
