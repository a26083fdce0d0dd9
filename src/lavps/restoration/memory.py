"""Runs that fit into memory: a run that does not is repeated with half the batch.

A sampler's memory grows with the rows per batch (items times samples) and, for images of another size than
the prior's, with the windows per denoiser call. Noise, losses and safeguards belong to a row, so smaller
batches give the same samples, up to rounding. The limit depends on the machine and its load, and is found by
trial.
"""

from __future__ import annotations

__all__ = ["BatchLimits", "predicted_memory", "within_memory"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..devices import free_memory, is_out_of_memory, process_memory

T = TypeVar("T")
_IMAGES = 10  # images per row that a sampler holds at once, about


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
        free_memory()
        if at_once == BatchLimits(1, 1):
            raise MemoryError(
                "out of memory with one sample and one window at a time: restore a smaller image, or use a "
                f"smaller prior or another --device ({reason})"
            )
        at_once = at_once.halved()
