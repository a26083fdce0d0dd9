"""A discrete-event simulation of a bulk run, the oracle for the closed-form cost model.

It uses no formula of :mod:`lavps.apps.bulk.costs`. A few readers read batches into a queue of bounded
length, whichever worker is free samples them, and a few writers write them. A lost worker returns its batch
to the queue and restarts.
"""

from __future__ import annotations

__all__ = ["Simulated", "simulate"]

import heapq
import math
from dataclasses import dataclass
from itertools import count

import numpy as np

from lavps.apps.bulk.costs import MachineProfile, Workload
from lavps.apps.bulk.engine import readers_for, writers_for
from lavps.apps.bulk.stores import THREADS

_WAITING = 2  # queued batches per worker


@dataclass(frozen=True)
class Simulated:
    """Result of a simulated run.

    Attributes:
        workers: Number of workers.
        seconds: Time until the last batch is written.
        busy: Fraction of worker time spent on batches that were completed.
        lost: Number of batches that were started and lost.
    """

    workers: int
    seconds: float
    busy: float
    lost: int


class _Run:
    def __init__(self, calibration: MachineProfile, work: Workload, workers: int, seed: int) -> None:
        self.calibration, self.work, self.workers = calibration, work, workers
        self.random = np.random.default_rng(seed)
        self.batches = math.ceil(work.images / calibration.batch)
        self.events: list[tuple[float, int, str, int]] = []
        self.order, self.now = count(), 0.0
        self.unread, self.reading, self.ready = self.batches, 0, 0
        self.readers, self.writers = readers_for(workers), writers_for(workers)
        self.to_write, self.writing, self.written = 0, 0, 0
        self.idle: list[int] = []
        self.begun: dict[int, float] = {}
        self.generation = [0] * workers
        self.useful, self.lost = 0.0, 0

    def at(self, seconds: float, what: str, who: int = 0) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.order), what, who))

    def service(self) -> float:
        busy = self.calibration.batch_seconds(self.work.entry, self.work.samples)
        slow = self.random.random() < self.work.stragglers
        return busy * (self.work.slowdown if slow else 1.0)

    def advance(self) -> None:
        """Start all work that can start."""
        size = self.calibration.batch
        while (
            self.unread
            and self.reading < self.readers
            and self.ready + self.reading < _WAITING * self.workers
        ):
            self.unread, self.reading = self.unread - 1, self.reading + 1
            self.at(size * self.calibration.read / THREADS, "read")
        while self.ready and self.idle:
            worker = self.idle.pop()
            self.ready -= 1
            self.begun[worker] = self.now
            self.at(self.service(), "sampled", worker * 1_000_000 + self.generation[worker])
        while self.to_write and self.writing < self.writers:
            self.to_write, self.writing = self.to_write - 1, self.writing + 1
            self.at(size * self.work.samples * self.calibration.write / THREADS, "written")

    def start(self, worker: int) -> None:
        self.at(self.calibration.start + self.calibration.load, "started", worker)

    def loss(self, worker: int) -> None:
        if math.isfinite(self.work.lost_every):
            self.at(self.random.exponential(3600 * self.work.lost_every), "lost", worker)

    def run(self) -> Simulated:
        for worker in range(self.workers):
            self.start(worker)
            self.loss(worker)
        while self.written < self.batches:
            self.advance()
            self.now, _, what, who = heapq.heappop(self.events)
            getattr(self, f"_{what}")(who)
        return Simulated(self.workers, self.now, self.useful / (self.workers * self.now), self.lost)

    def _read(self, _: int) -> None:
        self.reading, self.ready = self.reading - 1, self.ready + 1

    def _started(self, worker: int) -> None:
        self.idle.append(worker)

    def _sampled(self, who: int) -> None:
        worker, generation = divmod(who, 1_000_000)
        if self.generation[worker] == generation:
            self.useful += self.now - self.begun.pop(worker)
            self.to_write += 1
            self.idle.append(worker)

    def _written(self, _: int) -> None:
        self.writing, self.written = self.writing - 1, self.written + 1

    def _lost(self, worker: int) -> None:
        self.generation[worker] += 1
        if self.begun.pop(worker, None) is not None:
            self.ready, self.lost = self.ready + 1, self.lost + 1
            self.start(worker)
        elif worker in self.idle:
            self.idle.remove(worker)
            self.start(worker)
        self.loss(worker)


def simulate(calibration: MachineProfile, work: Workload, workers: int, seed: int = 0) -> Simulated:
    """Simulate one run."""
    return _Run(calibration, work, workers, seed).run()
