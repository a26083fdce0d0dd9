"""A discrete-event simulation of a bulk run: workers that start, straggle and are lost; queues that fill.

It knows no formula of :mod:`~lavps.restoration.bulk.costs`, and is there to check them: batches are read by a
few readers, wait in a queue of bounded length, are sampled by whichever worker is free, and written by a few
writers. A worker that is lost gives its batch back to the queue and starts anew.
"""

from __future__ import annotations

__all__ = ["Simulated", "simulate"]

import heapq
import math
from dataclasses import dataclass
from itertools import count

import numpy as np

from .costs import Calibration, Workload
from .engine import readers_for, writers_for
from .stores import THREADS

_WAITING = 2  # batches a worker that wait for it


@dataclass(frozen=True)
class Simulated:
    """What came of a simulated run.

    Attributes:
        workers: how many.
        seconds: until the last batch was written.
        busy: share of their time that workers sampled what counted.
        lost: batches that were begun and lost.
    """

    workers: int
    seconds: float
    busy: float
    lost: int


class _Run:
    def __init__(self, calibration: Calibration, work: Workload, workers: int, seed: int) -> None:
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
        """Begin whatever can begin."""
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


def simulate(calibration: Calibration, work: Workload, workers: int, seed: int = 0) -> Simulated:
    """One run, by chance that the seed decides."""
    return _Run(calibration, work, workers, seed).run()
