r"""Wall time at batch 1, methods taking turns.

Clocks, caches and neighbours change from minute to minute; two methods timed one after the other meet
different machines. So every image goes through all methods before the next one does, A B C A B C ..., after a
round that is not counted, and what is compared are times of the same turn. With medians over turns,

.. math:: \text{speed-up} = \mathrm{med}_i \, a_i / \mathrm{med}_i \, b_i,

whose interval is a bootstrap over turns, in pairs and in logarithms.
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

from ...amortization.checkpoint import write_json
from ..statistics import paired_bootstrap
from .costs import timed
from .measurements import MeasurementSet
from .methods import Method
from .models import Models
from .records import append_rows, claim, read_json, read_rows

Row = dict[str, Any]


def machine() -> dict[str, Any]:
    """What times depend on besides the method."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


@dataclass(frozen=True)
class Timer:
    """Times methods on the first images of a set.

    Attributes:
        folder: of ``turns.jsonl`` and ``machine.json``.
        measurements: whose images.
        models: what methods are built from.
        seed: of the samplers.
        progress: show a bar with the time left.
    """

    folder: Path
    measurements: MeasurementSet
    models: Models
    seed: int = 0
    progress: bool = True

    def run(self, methods: Sequence[Method], turns: int) -> list[Row]:
        """All turns of these methods; an interrupted run continues at its first missing turn.

        Turn i is image i modulo their number. A turn is kept only with all methods in it, so methods that
        join later are timed with all the others anew.

        Args:
            methods: at least one.
            turns: how many, not counting the one that warms up.
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
                    self._turn(0, methods, lambda: None)  # warms up
                for turn in range(done, turns):
                    append_rows(file, self._turn(turn, methods, bar.update))
            return read_rows(file)

    def _prepare(self, keys: list[str]) -> None:
        """Begin anew where methods or machine are not those of the turns that are there."""
        setup = {"keys": keys, "machine": machine(), "precision": self.models.precision, "seed": self.seed}
        if read_json(self.folder / "machine.json") != setup:
            (self.folder / "turns.jsonl").unlink(missing_ok=True)
            write_json(self.folder / "machine.json", setup)

    def _turn(self, turn: int, methods: Sequence[Method], advance: Callable[[], object]) -> list[Row]:
        row = turn % len(self.measurements)
        half = self.models.precision == "bf16"
        rows = []
        for method in methods:
            problem = self.measurements.problem(slice(row, row + 1), self.models.device, half)
            item = self.measurements.items[row]
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
        median: seconds an image.
        lower: first quartile.
        upper: third quartile.
        turns: how many.
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
    """Median and quartiles of a method's times."""
    times = _times(rows, key)
    low, middle, high = (float(torch.quantile(times, q)) for q in (0.25, 0.5, 0.75))
    return TimingSummary(middle, low, high, len(times))


@dataclass(frozen=True)
class SpeedUp:
    """A ratio of median times, reference over candidate, and its confidence interval."""

    ratio: float
    lower: float
    upper: float


def speed_up(
    rows: Sequence[Mapping[str, Any]], reference: str, candidate: str, level: float = 0.95
) -> SpeedUp:
    """How many times faster the candidate is, by their keys; needs two turns."""
    ratio = paired_bootstrap(
        _times(rows, reference), _times(rows, candidate), _log_median, resamples=2000, level=level
    )
    return SpeedUp(math.exp(ratio.difference), math.exp(ratio.lower), math.exp(ratio.upper))


def _log_median(times: Tensor) -> Tensor:
    return torch.quantile(times, 0.5, dim=-1).log()
