"""Runs that fit into memory: a run that does not is repeated with half the batch.

A sampler's memory grows with the rows per batch (items times samples) and, for images of another size than
the prior's, with the windows per denoiser call. Noise, losses and safeguards belong to a row, so smaller
batches give the same samples, up to rounding. The limit depends on the machine and its load, and is found by
trial.
"""

from __future__ import annotations

__all__ = ["BatchLimits", "is_out_of_memory", "predicted_memory", "within_memory"]

import ctypes
import gc
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from ..devices import process_memory

T = TypeVar("T")
_IMAGES = 10  # images per row that a sampler holds at once, about
_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "could not create a primitive",  # oneDNN, which gives no reason
    "could not create a memory",
    "could not execute a primitive",
)


@dataclass(frozen=True)
class BatchLimits:
    """Sizes of batches.

    Attributes:
        rows: Samples per batch.
        windows: Windows per denoiser call on a tiled image.
    """

    rows: int
    windows: int

    def halved(self) -> BatchLimits:
        """Return half of each, at least one."""
        return BatchLimits(max(self.rows // 2, 1), max(self.windows // 2, 1))


def predicted_memory(image_shape: Sequence[int], at_once: BatchLimits, samples: int) -> int | None:
    """Return the bytes that a run on the CPU will take, about; None where those in use are unknown.

    They are those in use now and its images, or those of the denoiser evaluation that was made before.
    """
    images = 4 * math.prod(image_shape) * (_IMAGES * at_once.rows + samples)
    memory = process_memory()
    return None if memory is None else max(memory.peak, memory.used + images)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on the CPU or an accelerator."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS)


def within_memory(work: Callable[[BatchLimits], T], first: BatchLimits) -> tuple[T, BatchLimits]:
    """Return the result of ``work``, and the sizes it ran with: ``first``, or halves of it.

    Raises:
        MemoryError: One row and one window do not fit either.
    """
    at_once = first
    while True:
        try:
            return work(at_once), at_once
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            reason = " ".join(str(error).split())[:200]
        # Outside of the handler, since the error's traceback holds the tensors of the run.
        _release()
        if at_once == BatchLimits(1, 1):
            raise MemoryError(
                "out of memory with one sample and one window at a time: restore a smaller image, or use a "
                f"smaller prior or another --device ({reason})"
            )
        at_once = at_once.halved()


def _release() -> None:
    """Free unused memory: garbage, the cache of torch, and that of the C library."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
