"""Restoration in a child process without Ray: an item that ends the process fails, and the run continues.

A lost process usually has another cause, so its batch is first sampled again unchanged. If that ends the
process again, the items are sampled one by one, and an item that ends its process fails.
"""

from __future__ import annotations

__all__ = ["IsolatedRestorer"]

import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from .poison import alone, poisoned
from .recipe import Recipe
from .worker import FAILURES, Batch, BatchRestorer, Finished


class IsolatedRestorer:
    """Restores batches in a child process, started with the first batch and replaced if it ends.

    Args:
        recipe: Models, settings and seed.
        threads: Number of computing threads.
    """

    def __init__(self, recipe: Recipe, threads: int) -> None:
        self.recipe, self.threads = recipe, threads
        self._child: tuple[Any, Connection] | None = None

    def run(self, batch: Batch) -> list[Finished]:
        """Restore a batch; items that fail have a reason in their record."""
        finished = self._attempt(batch) or self._attempt(batch)
        if finished is not None:
            return finished
        parts = [alone(batch, index) for index in range(len(batch.items))]
        return [(self._attempt(part) or [poisoned(part)])[0] for part in parts]

    def close(self) -> None:
        """End the child process."""
        if self._child is not None:
            process, connection = self._child
            self._child = None
            connection.close()
            process.kill()
            process.join()

    def _attempt(self, batch: Batch) -> list[Finished] | None:
        """Return the results of a batch, or None if it ended the process."""
        if self._child is None:
            self._start()
        assert self._child is not None
        try:
            self._child[1].send(batch)
            finished: list[Finished] = self._received()
            return finished
        except (EOFError, ConnectionError):
            self.close()
            return None

    def _start(self) -> None:
        context: Any = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
        if os.name == "posix":
            context.set_forkserver_preload([__name__])
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self.recipe, self.threads), daemon=True)
        process.start()
        theirs.close()  # so that the end of the child ends the connection
        self._child = process, ours
        try:
            self._received()
        except (EOFError, ConnectionError):
            self.close()
            raise RuntimeError("the process that restores ended while it loaded the models") from None

    def _received(self) -> Any:
        assert self._child is not None
        answer = self._child[1].recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def _serve(connection: Connection, recipe: Recipe, threads: int) -> None:
    """Load the models, and restore batches until the parent process ends the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    torch.set_num_threads(threads)
    restorer = BatchRestorer(recipe)
    with suppress(EOFError, ConnectionError):
        try:
            assert restorer.restorer
            connection.send("ready")
            while True:
                connection.send(restorer.run(connection.recv()))
        except (*FAILURES, ImportError) as error:
            connection.send(error)
