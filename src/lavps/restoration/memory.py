r"""What fits into memory: a run that does not is repeated with half as much at a time.

A sampler's memory grows with the rows that run at once (items times samples) and, for images of another size
than the prior's, with the windows of a denoiser call. Both are only ways to cut up the same computation:
noise, losses and safeguards belong to a row, so a run in smaller parts gives the same samples, to rounding.
Where the memory ends depends on the machine and on whoever else uses it; it is found by trying.
"""

from __future__ import annotations

__all__ = ["AtOnce", "is_out_of_memory", "within_memory"]

import ctypes
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

T = TypeVar("T")
_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "could not create a primitive",  # oneDNN, which does not say why
    "could not create a memory",
    "could not execute a primitive",
)


@dataclass(frozen=True)
class AtOnce:
    """How much runs at a time.

    Attributes:
        rows: samples.
        windows: of a denoiser call on a tiled image.
    """

    rows: int
    windows: int

    def halved(self) -> AtOnce:
        """Half of each, at least one."""
        return AtOnce(max(self.rows // 2, 1), max(self.windows // 2, 1))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, of the processor or of an accelerator."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS)


def within_memory(work: Callable[[AtOnce], T], first: AtOnce) -> tuple[T, AtOnce]:
    """What ``work`` returns, and how much ran at a time: ``first``, or halves of it.

    Raises:
        MemoryError: one row and one window at a time do not fit either.
    """
    at_once = first
    while True:
        try:
            return work(at_once), at_once
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            reason = " ".join(str(error).split())[:200]
        # Outside of the handler: the error's traceback held what the run had allocated.
        _release()
        if at_once == AtOnce(1, 1):
            raise MemoryError(
                "out of memory with one sample and one window at a time: restore a smaller picture, or use a "
                f"smaller prior or another --device ({reason})"
            )
        at_once = at_once.halved()


def _release() -> None:
    """Give back what nobody uses: garbage, what torch keeps for later, what the C library does."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
