"""Wall time of a call."""

from __future__ import annotations

__all__ = ["timed"]

import time
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def timed(work: Callable[[], T], device: str) -> tuple[T, float]:
    """Return the result of a call and its wall time in seconds, with the device synchronized."""
    _wait(device)
    start = time.perf_counter()
    result = work()
    _wait(device)
    return result, time.perf_counter() - start


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device.startswith("mps"):
        torch.mps.synchronize()
