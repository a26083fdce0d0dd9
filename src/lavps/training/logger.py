"""The log of a training run."""

from __future__ import annotations

__all__ = ["TrainingLogger"]

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class TrainingLogger:
    """``log.jsonl`` and TensorBoard files, truncated to the last checkpoint when a run resumes.

    Args:
        folder: Folder of the run.
        tensorboard: Writing of TensorBoard files, if it is installed.
        step: Step of the last checkpoint.
    """

    def __init__(self, folder: Path, tensorboard: bool, step: int) -> None:
        self._path = folder / "log.jsonl"
        text = self._path.read_text(encoding="utf-8", errors="replace") if self._path.exists() else ""
        complete = [line for line in text.splitlines(True) if _step(line) <= step]
        self._path.write_text("".join(complete), encoding="utf-8")
        self._board: Any = None
        if tensorboard and find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Write one line of numbers and lists of numbers."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        if self._board is not None:
            for name, value in values.items():
                for index, number in enumerate(value) if isinstance(value, list) else (("", value),):
                    tag = f"{name}/{index}".rstrip("/")
                    self._board.add_scalar(tag, math.nan if number is None else number, step)
            self._board.flush()


def _step(line: str) -> float:
    """Return the step of a line; infinity for a damaged one, or an incomplete one of a killed run."""
    try:
        return float(json.loads(line)["step"]) if line.endswith("\n") else math.inf
    except (ValueError, TypeError, KeyError):
        return math.inf
