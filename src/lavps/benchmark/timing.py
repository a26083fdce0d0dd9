r"""Wall time at batch size 1, methods in alternation.

The speed of a machine changes from minute to minute with its clock, caches and load. Every image therefore
goes through all methods before the next one does, A B C A B C ..., after a warm-up round. With medians over
these turns i,

.. math:: \text{speed-up} = \mathrm{med}_i \, a_i / \mathrm{med}_i \, b_i,

with the interval of a paired bootstrap over turns, of logarithms.
"""

from __future__ import annotations

__all__ = ["SpeedUp", "Timer", "TimingSummary", "speed_up", "summarize"]

import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..evaluation.statistics import paired_bootstrap
from ..evaluation.timing import timed
from ..io.atomic import write_json
from ..samplers import Settings
from .measurements import MeasurementSet
from .models import Models
from .records import append_rows, claim, read_json, read_rows

Row = dict[str, Any]


def machine() -> dict[str, Any]:
    """Return the properties of the machine that times depend on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


@dataclass(frozen=True)
class Timer:
    """Timer of methods on the first images of a set.

    Attributes:
        folder: Folder of ``turns.jsonl`` and ``machine.json``.
        measurements: Set of measurements.
        models: Networks that methods are built from.
        seed: Seed of the samplers.
        progress: Whether to show a progress bar.
    """

    folder: Path
    measurements: MeasurementSet
    models: Models
    seed: int = 0
    progress: bool = True

    def run(self, methods: Sequence[Settings], turns: int) -> list[Row]:
        """Return the rows of all turns; an interrupted run continues at its first missing turn.

        Turn i uses image i modulo their number. Rows are written once all methods of a turn are timed. If the
        methods change, all of them are timed again.

        Args:
            methods: Methods, at least one.
            turns: Number of turns, without the warm-up.
        """
        keys, file = [method.key for method in methods], self.folder / "turns.jsonl"
        with claim(self.folder / "turns.lock"):
            self._prepare(keys)
            rows = read_rows(file)
            done = len(rows) // len(keys)
            bar = tqdm(
                total=turns * len(keys),
                initial=done * len(keys),
                desc="timing",
                unit="run",
                disable=None if self.progress else True,
            )
            with bar:
                if done < turns:
                    self._turn(0, methods, lambda: None)  # warm-up
                for turn in range(done, turns):
                    append_rows(file, self._turn(turn, methods, bar.update))
            return read_rows(file)

    def _prepare(self, keys: list[str]) -> None:
        """Delete existing turns if they have other methods or were timed on another machine."""
        setup = {"keys": keys, "machine": machine(), "precision": self.models.precision, "seed": self.seed}
        if read_json(self.folder / "machine.json") != setup:
            (self.folder / "turns.jsonl").unlink(missing_ok=True)
            write_json(self.folder / "machine.json", setup)

    def _turn(self, turn: int, methods: Sequence[Settings], advance: Callable[[], object]) -> list[Row]:
        row = turn % len(self.measurements)
        half = self.models.precision == "bf16"
        item, rows = self.measurements.items[row], []
        for method in methods:
            problem = self.measurements.problem(slice(row, row + 1), self.models.device, half)
            work = partial(self.models.sample, method, problem, self.seed, [item])
            posterior, spent = timed(work, self.models.device)
            trace = posterior.trace
            rows.append(
                {
                    "key": method.key,
                    "turn": turn,
                    "item": item,
                    "seconds": spent,
                    "forwards": trace.forwards,
                    "backwards": trace.backwards,
                    "model_forwards": trace.model_forwards,
                }
            )
            advance()
        return rows


@dataclass(frozen=True)
class TimingSummary:
    """Times of one method.

    Attributes:
        median: Median time per image, in seconds.
        lower: First quartile.
        upper: Third quartile.
        turns: Number of turns.
    """

    median: float
    lower: float
    upper: float
    turns: int


def _times(rows: Sequence[Mapping[str, Any]], key: str) -> Tensor:
    found = [row["seconds"] for row in sorted(rows, key=lambda row: row["turn"]) if row["key"] == key]
    if not found:
        raise KeyError(f"method {key} was not timed")
    return torch.tensor(found, dtype=torch.float64)


def summarize(rows: Sequence[Mapping[str, Any]], key: str) -> TimingSummary:
    """Return median and quartiles of a method's times."""
    times = _times(rows, key)
    low, middle, high = (float(torch.quantile(times, q)) for q in (0.25, 0.5, 0.75))
    return TimingSummary(middle, low, high, len(times))


@dataclass(frozen=True)
class SpeedUp:
    """Ratio of median times, reference over candidate, and its confidence interval."""

    ratio: float
    lower: float
    upper: float


def speed_up(
    rows: Sequence[Mapping[str, Any]], reference: str, candidate: str, level: float = 0.95
) -> SpeedUp:
    """Return the speed-up of a candidate over a reference, given by their keys; at least two turns."""
    first, second = _times(rows, reference), _times(rows, candidate)
    ratio = paired_bootstrap(
        first, second, lambda times: times.quantile(0.5, dim=-1).log(), resamples=2000, level=level
    )
    return SpeedUp(math.exp(ratio.difference), math.exp(ratio.lower), math.exp(ratio.upper))
