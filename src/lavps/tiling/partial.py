"""Denoiser evaluations of large images that were interrupted: the windows that are done, in a file.

An evaluation is identified by its inputs and by the estimates of its first windows, so that it continues
with the same network and the same image only, and to the same result, bit by bit.
"""

from __future__ import annotations

__all__ = ["PartialEvaluation"]

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..checkpoints.hashes import tensors_hash
from ..io.atomic import atomically, discard

_SHARE = 20.0  # the time between two writes is at least this multiple of a write's own
_UNREADABLE = (OSError, SafetensorError, ValueError, KeyError, TypeError)


class PartialEvaluation:
    """Sum of the weighted estimates of the first windows, in a file.

    Args:
        file: Path.
        key: Key of the run; files of other runs are ignored.
        interval: Seconds before the first write, and between two.
    """

    def __init__(self, file: Path, key: str, interval: float) -> None:
        self.file, self.key, self._wait = file, key, interval
        self._interval, self._last = interval, time.monotonic()

    @property
    def windows(self) -> int:
        """Number of windows in the file."""
        try:
            with safe_open(self.file, framework="pt") as stored:
                return int(self._about(stored)["windows"])
        except _UNREADABLE:
            return 0

    def load(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, int, int] | None:
        """Return the sum and the numbers of its calls and windows; None if the file is of other inputs."""
        if not self.file.exists():
            return None
        try:
            with safe_open(self.file, framework="pt") as stored:
                about = self._about(stored)
                if about["inputs"] != tensors_hash(inputs):
                    return None
                return stored.get_tensor("fused").to(inputs["x"]), int(about["calls"]), int(about["windows"])
        except _UNREADABLE:
            return None

    def save(self, inputs: Mapping[str, Tensor], fused: Tensor, calls: int, windows: int) -> None:
        """Write the sum if it is time for it; a full disk does not stop the run."""
        start = time.monotonic()
        if start - self._last < self._wait:
            return
        about = {"key": self.key, "inputs": tensors_hash(inputs), "calls": calls, "windows": windows}
        content = {"fused": fused.detach().cpu().contiguous()}
        with suppress(OSError, SafetensorError):
            atomically(self.file, lambda file: save_file(content, file, {"run": json.dumps(about)}))
        self._last = time.monotonic()
        self._wait = max(self._interval, _SHARE * (self._last - start))

    def remove(self) -> None:
        """Remove the file, and what a killed process left of it."""
        discard(self.file)

    def _about(self, stored: Any) -> dict[str, Any]:
        about: dict[str, Any] = json.loads(stored.metadata()["run"])
        if about["key"] != self.key:
            raise KeyError("another run")
        return about
