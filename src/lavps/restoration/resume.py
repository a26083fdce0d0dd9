"""Interrupted restorations: the state of a run in a hidden file beside its outputs.

The file ``.photo.state`` is written when a run has lasted 30 seconds, every 30 seconds from then on, and when
the run is interrupted. The windows of a large image that are done since the last step are in
``.photo.state.windows``. Both are removed once the outputs are written. Its key is a hash of the request: the
input, the settings, the weights, the sizes of batches and the machine. A run with the same key continues from
the file and gives the same samples, bit by bit. Other runs ignore the file.
"""

from __future__ import annotations

__all__ = ["INTERVAL", "RunFile", "state_name"]

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..io.atomic import atomically, discard
from ..samplers.collect import StepRecord
from ..samplers.state import SamplerState
from ..tiling.partial import PartialEvaluation

INTERVAL = 30.0  # seconds before the state is first written, and between two writes
_SHARE = 20.0  # the time between two writes is at least this multiple of a write's own
_ROW_VALUES = ("loss", "accepted")  # fields of a step with a value for each row


def state_name(stem: str) -> str:
    """Return the name of the state of a file of this stem."""
    return f".{stem}.state"


class RunFile:
    """State of a run in a file; a :class:`~lavps.samplers.state.StateStore`.

    Args:
        file: Path of the state.
        key: Key of the run (:func:`~lavps.restoration.request.request_key`).
    """

    def __init__(self, file: Path, key: str) -> None:
        self.file, self.key = file, key
        self._last, self._wait = time.monotonic(), INTERVAL
        self._unsaved: SamplerState | None = None
        self.partial = PartialEvaluation(file.with_name(f"{file.name}.windows"), key, INTERVAL)

    def load(self) -> SamplerState | None:
        """Return the stored state of this run; None if there is none, or that of another run."""
        try:
            with safe_open(self.file, framework="pt") as stored:
                about = json.loads(stored.metadata()["run"])
                if about["key"] != self.key:
                    return None
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            return _decoded(about, tensors)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):
            return None

    def save(self, state: SamplerState) -> None:
        """Write the state if it is time for it; a full disk does not stop the run."""
        self._unsaved = state
        if time.monotonic() - self._last >= self._wait:
            self._write(state)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Write the state when the run in this context is interrupted, unless it was short."""
        started = time.monotonic()
        try:
            yield
        except KeyboardInterrupt:
            if self._unsaved is not None and time.monotonic() - started >= INTERVAL:
                self._write(self._unsaved)
            raise

    def remove(self) -> None:
        """Remove the files, and what a killed process left of them."""
        self.partial.remove()
        discard(self.file)

    def _write(self, state: SamplerState) -> None:
        start = time.monotonic()
        about, tensors = _encoded(state)
        metadata = {"run": json.dumps({"key": self.key} | about)}
        with suppress(OSError, SafetensorError):
            atomically(self.file, lambda file: save_file(tensors, file, metadata))
        self.partial.remove()  # of a step before this state
        self._unsaved, self._last = None, time.monotonic()
        self._wait = max(INTERVAL, _SHARE * (self._last - start))


def _encoded(state: SamplerState) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a state as JSON values and tensors."""
    tensors = {f"state.{name}": tensor for name, tensor in state.tensors.items()}
    tensors |= {f"samples.{number}": samples for number, (samples, _) in enumerate(state.finished)}
    about = {
        "rows": state.rows,
        "records": [_values(record) for record in state.records],
        "finished": [[_values(record) for record in records] for _, records in state.finished],
    }
    return about, {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _decoded(about: dict[str, Any], tensors: dict[str, Tensor]) -> SamplerState:
    finished = tuple(
        (tensors.pop(f"samples.{number}"), tuple(map(_record, records)))
        for number, records in enumerate(about["finished"])
    )
    current = {name.removeprefix("state."): tensor for name, tensor in tensors.items()}
    return SamplerState(finished, about["rows"], current, tuple(map(_record, about["records"])))


def _values(record: StepRecord) -> dict[str, Any]:
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return values | {name: values[name].tolist() for name in _ROW_VALUES}


def _record(values: dict[str, Any]) -> StepRecord:
    rows = {name: torch.tensor(values[name], dtype=torch.float64) for name in _ROW_VALUES}
    return StepRecord(**(values | rows))
