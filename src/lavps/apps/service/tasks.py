"""Background tasks that are restarted when they end."""

from __future__ import annotations

__all__ = ["BackgroundTasks"]

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from typing import Any

_RESTART = 1.0  # seconds until a task that ended is restarted
_log = logging.getLogger("lavps.service")


class BackgroundTasks:
    """Endless tasks, each restarted if an error ends it."""

    def __init__(self) -> None:
        self._running: dict[int, asyncio.Task[None]] = {}
        self._closing = False

    @property
    def healthy(self) -> bool:
        """Whether all tasks run."""
        return not any(task.done() for task in self._running.values())

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], number: int | None = None) -> None:
        """Start a task.

        Args:
            work: Coroutine function of the task.
            number: Index of the task that is replaced; default a new one.
        """
        if self._closing:
            return
        number = len(self._running) if number is None else number

        def ended(task: asyncio.Task[None]) -> None:
            if not self._closing:
                reason = "cancelled" if task.cancelled() else type(task.exception()).__name__
                _log.error(json.dumps({"event": "task ended", "reason": reason}))
                asyncio.get_running_loop().call_later(_RESTART, self.start, work, number)

        self._running[number] = asyncio.get_running_loop().create_task(work())
        self._running[number].add_done_callback(ended)

    async def close(self) -> None:
        """End all tasks."""
        self._closing = True
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
