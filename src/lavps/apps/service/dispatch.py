"""Functions that sample one batch, and the error by which they report a lost worker."""

from __future__ import annotations

__all__ = ["Dispatch", "WorkerLost", "in_this_process"]

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from .pool import ModelPool, Request, Update

Dispatch = Callable[[Sequence[Request]], AsyncIterator[Update]]


class WorkerLost(RuntimeError):  # noqa: N818 - public name
    """The process that sampled a batch died."""


def in_this_process(bench: ModelPool) -> Dispatch:
    """Return a dispatch function that samples in a thread of this process."""

    async def dispatch(requests: Sequence[Request]) -> AsyncIterator[Update]:
        updates = bench.run(requests)
        while (update := await asyncio.to_thread(next, updates, None)) is not None:
            yield update

    return dispatch
