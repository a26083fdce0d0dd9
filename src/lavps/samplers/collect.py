"""From the steps of a run to its trace and its posterior."""

from __future__ import annotations

__all__ = ["Collector", "Progress", "StepRecord"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..streaming import RunningStatistics
from .posterior import Posterior, Trace


@dataclass(frozen=True)
class Progress:
    """What a sampler reports of one step of its own.

    Attributes:
        t: Time of the step.
        x_0: Current estimate of the clean images, one per row.
        loss: Objective per row, if there is one.
        accepted: Safeguard decision per row, if there was one.
        model_forwards: Forward passes of the inference model.
        state: Tensors that the next step needs, in a sampler that can resume; they are kept unchanged.
    """

    t: Tensor
    x_0: Tensor
    loss: Tensor | None = None
    accepted: Tensor | None = None
    model_forwards: int = 0
    state: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class StepRecord:
    """A step without its image."""

    t: float
    loss: Tensor
    accepted: Tensor
    model_forwards: int
    forwards: float
    backwards: float
    seconds: float

    @staticmethod
    def from_progress(report: Progress, forwards: float, backwards: float, seconds: float) -> StepRecord:
        """The record of a step that cost this much per row."""
        blank = torch.full((len(report.x_0),), float("nan"), dtype=torch.float64)
        return StepRecord(
            float(report.t.max()),
            blank if report.loss is None else report.loss.double().cpu(),
            blank if report.accepted is None else report.accepted.double().cpu(),
            report.model_forwards,
            forwards,
            backwards,
            seconds,
        )


def _trace(records: Sequence[StepRecord]) -> Trace:
    def column(name: str) -> Tensor:
        return torch.tensor([getattr(record, name) for record in records], dtype=torch.float64)

    return Trace(
        column("t"),
        torch.stack([record.loss for record in records]),
        torch.stack([record.accepted for record in records]),
        column("forwards"),
        column("backwards"),
        column("model_forwards"),
        column("seconds"),
    )


class Collector:
    """Gathers the chunks of a run into a posterior."""

    def __init__(self, batch: int, keep_samples: bool, quantiles: Sequence[float], sampler: str = "") -> None:
        self._samples: list[Tensor] | None = [] if keep_samples else None
        self._statistics = [RunningStatistics(quantiles) for _ in range(0 if keep_samples else batch)]
        self._quantiles = tuple(quantiles)
        self._traces: list[Trace] = []
        self.misfits: list[Tensor] = []  # of the rows of every chunk
        self._sampler = sampler

    def add(self, x_0: Tensor, items: Tensor, records: Sequence[StepRecord]) -> None:
        """Take in a finished chunk: its samples, the item of every row, its steps."""
        self._traces.append(_trace(records))
        if self._samples is not None:
            self._samples.append(x_0)
            return
        for row, item in enumerate(items.tolist()):
            self._statistics[item].update(x_0[row])

    def posterior(self, num_samples: int) -> Posterior:
        """All chunks together."""
        trace = Trace.join(self._traces)
        misfits = torch.cat(self.misfits).reshape(-1, num_samples) if self.misfits else None
        if self._samples is not None:
            samples = torch.cat(self._samples)
            samples = samples.reshape(-1, num_samples, *samples.shape[1:])
            mean = samples.mean(1)
            std = samples.std(1) if num_samples > 1 else torch.full_like(mean, float("nan"))
            return Posterior(
                samples, mean, std, num_samples, trace, sampler=self._sampler, chi_square=misfits
            )
        stacked = {
            q: torch.stack([statistics.quantile(q) for statistics in self._statistics])
            for q in self._quantiles
        }
        mean = torch.stack([statistics.mean for statistics in self._statistics])
        std = torch.stack([statistics.std for statistics in self._statistics])
        return Posterior(None, mean, std, num_samples, trace, stacked, self._sampler, misfits)
