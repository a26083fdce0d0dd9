r"""What a bulk run will take and cost: arithmetic on a few measured times.

A batch of B images keeps a worker busy for

.. math:: \tau = F \tau_F + G \tau_G + P \tau_P + B (\tau_{decode} + \tau_{encode}) + \tau_{engine}

with F forwards, G backwards and P passes of the inference model, timed for B rows at once. A worker that is
lost every M seconds loses half a batch and the time to start and load, which leaves the share

.. math:: a = M / (M + \tau / 2 + \tau_{start} + \tau_{load}).

N workers restore :math:`\min(N a B / \tau,\; R / \tau_{read},\; W / \tau_{write})` images a second, with R
and W the threads that read and write; the run ends when the last batch does, stragglers included.

An inference model pays from :math:`n^* = T_{train} / (\tau_{zero} - \tau_{warm})` images on, with the seconds
an image takes without and with it.
"""

from __future__ import annotations

__all__ = ["Calibration", "Forecast", "Workload", "break_even", "forecast"]

import math
from dataclasses import dataclass

from ..pacing import Pace
from ..presets import FrontEntry
from .engine import readers_for, writers_for
from .stores import THREADS


@dataclass(frozen=True)
class Calibration:
    """Times of one machine, in seconds.

    Attributes:
        batch: images at a time.
        pace: of the passes, for all of them at once.
        read: an image from its store, hashed.
        decode: an image.
        encode: an image.
        write: an image to its store.
        load: the models.
        start: a process, with its imports.
        engine: of the engine, a batch.
    """

    batch: int
    pace: Pace
    read: float = 0.0
    decode: float = 0.0
    encode: float = 0.0
    write: float = 0.0
    load: float = 0.0
    start: float = 0.0
    engine: float = 0.02

    def batch_seconds(self, entry: FrontEntry, samples: int = 1) -> float:
        """A worker's time for a batch with these settings."""
        aside = self.batch * (self.decode + samples * self.encode) + self.engine
        return samples * self.pace.predict(entry) + aside

    def image_seconds(self, entry: FrontEntry, samples: int = 1) -> float:
        """The same for an image."""
        return self.batch_seconds(entry, samples) / self.batch


@dataclass(frozen=True)
class Workload:
    """What is to be done, and what may happen.

    Attributes:
        images: how many.
        entry: settings with their counts.
        samples: of every image.
        lost_every: hours after which a worker is lost, on average; infinite on a machine of one's own.
        stragglers: share of batches that take longer.
        slowdown: by which factor.
        price: of a worker, an hour.
    """

    images: int
    entry: FrontEntry
    samples: int = 1
    lost_every: float = math.inf
    stragglers: float = 0.02
    slowdown: float = 3.0
    price: float = 0.0


@dataclass(frozen=True)
class Forecast:
    """What so many workers will do.

    Attributes:
        workers: how many.
        rate: images a second once all are at work.
        seconds: of the whole run.
        cost: of the whole run.
        limit: what holds the rate: "workers", "reading", "writing"; "starting" where they wait longer than
            they work.
    """

    workers: int
    rate: float
    seconds: float
    cost: float
    limit: str

    def per_hour(self, images: int) -> float:
        """Images an hour, start and end included."""
        return 3600 * images / self.seconds


def forecast(calibration: Calibration, work: Workload, workers: int) -> Forecast:
    """The arithmetic above for N workers."""
    busy = calibration.batch_seconds(work.entry, work.samples)
    mean = busy * (1 + work.stragglers * (work.slowdown - 1))
    between, restart = 3600 * work.lost_every, calibration.start + calibration.load
    available = 1.0 if math.isinf(between) else between / (between + mean / 2 + restart)
    limits = {
        "workers": workers * available * calibration.batch / mean,
        "reading": _rate(THREADS * readers_for(workers), calibration.read),
        "writing": _rate(THREADS * writers_for(workers), work.samples * calibration.write),
    }
    limit = min(limits, key=lambda name: limits[name])
    batches = math.ceil(work.images / calibration.batch)
    at_work = min(workers, batches)
    steady = max(batches / at_work * mean / available, work.images / limits[limit])
    # At the end workers wait for the last batch: half of one on average, or what is left of a straggler.
    unlucky = 1 - (1 - work.stragglers) ** at_work
    tail = busy * (1 + unlucky * (work.slowdown - 1)) / 2 if at_work > 1 else 0.0
    seconds = restart + steady + tail
    cost = workers * seconds / 3600 * work.price
    return Forecast(workers, limits[limit], seconds, cost, "starting" if restart > steady else limit)


def _rate(servers: int, seconds: float) -> float:
    return servers / seconds if seconds > 0 else math.inf


def break_even(calibration: Calibration, zero: FrontEntry, warm: FrontEntry, training: float) -> float | None:
    """Images from which on training an inference model pays; None where it never does.

    Args:
        calibration: of this machine.
        zero: settings without the model.
        warm: settings with it, of the same quality.
        training: seconds of it, on a machine as fast.
    """
    saved = calibration.image_seconds(zero) - calibration.image_seconds(warm)
    return training / saved if saved > 0 else None
