"""State of an unfinished run, from which the same command continues to the same samples.

Noise is a function of (seed, item, sample, step), so a run is determined by the tensors that its next step
needs. A sampler that resumes reports them as :attr:`Progress.state <lavps.samplers.collect.Progress>`.
"""

from __future__ import annotations

__all__ = ["SamplerState", "StateStore"]

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from .collect import StepRecord


@dataclass(frozen=True)
class SamplerState:
    """State of a run between two steps; a run takes its rows in chunks, one after another.

    Attributes:
        finished: Samples (rows, C, *spatial) and steps of every finished chunk.
        rows: Number of rows of the current chunk.
        tensors: Tensors that the next step of the current chunk needs; empty before its first step.
        records: Steps of the current chunk so far.
    """

    finished: tuple[tuple[Tensor, tuple[StepRecord, ...]], ...] = ()
    rows: int = 0
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    records: tuple[StepRecord, ...] = ()

    @property
    def evaluations(self) -> int:
        """Denoiser evaluations and backward passes so far, over all rows."""
        chunks = [(len(samples), records) for samples, records in self.finished]
        return round(
            sum(
                rows * (record.forwards + record.backwards)
                for rows, records in [*chunks, (self.rows, self.records)]
                for record in records
            )
        )


class StateStore(Protocol):
    """Storage of the state of one run."""

    def load(self) -> SamplerState | None:
        """Return the stored state; None if there is none."""

    def save(self, state: SamplerState) -> None:
        """Take the state after a step, to be stored now or with a later one."""
