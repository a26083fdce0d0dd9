r"""Predicted duration and cost of a bulk run, computed from a few measured times.

A batch of B images takes a worker

.. math:: \tau = F \tau_F + G \tau_G + P \tau_P + B (\tau_{decode} + \tau_{encode}) + \tau_{engine}

with F forward and G backward passes of the denoiser and P forward passes of the inference model, each timed
for B rows. A worker that is lost every M seconds loses half a batch on average and the time to restart.
The available share of its time is

.. math:: a = M / (M + \tau / 2 + \tau_{start} + \tau_{load}).

N workers restore :math:`\min(N a B / \tau,\; R / \tau_{read},\; W / \tau_{write})` images per second, with R
reading and W writing threads. The run ends with its last batch, stragglers included.

An inference model pays off from :math:`n^* = T_{train} / (\tau_{zero} - \tau_{warm})` images on, with the
seconds per image without and with the model.
"""

from __future__ import annotations

__all__ = ["Forecast", "MachineProfile", "Workload", "break_even", "forecast"]

import math
from dataclasses import dataclass

from ...restoration.pacing import PassTimes
from ...restoration.presets import FrontEntry
from .engine import readers_for, writers_for
from .stores import THREADS


@dataclass(frozen=True)
class MachineProfile:
    """Times of one machine, in seconds."""

    batch: int  # Number of images per batch
    pace: PassTimes  # Times of the network passes for one batch
    read: float = 0.0  # Time to read and hash one image
    decode: float = 0.0  # Time to decode one image
    encode: float = 0.0  # Time to encode one image
    write: float = 0.0  # Time to write one image
    load: float = 0.0  # Time to load the models
    start: float = 0.0  # Time to start a process, imports included
    engine: float = 0.02  # Overhead of the engine per batch

    def batch_seconds(self, entry: FrontEntry, samples: int = 1) -> float:
        """Return a worker's time per batch with these settings."""
        overhead = self.batch * (self.decode + samples * self.encode) + self.engine
        return samples * self.pace.predict(entry) + overhead

    def image_seconds(self, entry: FrontEntry, samples: int = 1) -> float:
        """Return a worker's time per image with these settings."""
        return self.batch_seconds(entry, samples) / self.batch


@dataclass(frozen=True)
class Workload:
    """Images to restore, and assumptions about the workers."""

    images: int  # Number of images
    entry: FrontEntry  # Sampler settings with their numbers of network passes
    samples: int = 1  # Number of samples per image
    lost_every: float = math.inf  # Mean time in hours between losses of a worker
    stragglers: float = 0.02  # Fraction of slow batches
    slowdown: float = 3.0  # Time of a slow batch, relative to the others
    price: float = 0.0  # Price per worker and hour


@dataclass(frozen=True)
class Forecast:
    """Predicted run with a given number of workers."""

    workers: int  # Number of workers
    rate: float  # Images per second in the steady state
    seconds: float  # Duration of the run
    cost: float  # Cost of the run
    limit: (
        str  # Bottleneck: "workers", "reading" or "writing"; "starting" if the start takes most of the time
    )

    def per_hour(self, images: int) -> float:
        """Return the images per hour, start and end of the run included."""
        return 3600 * images / self.seconds


def forecast(calibration: MachineProfile, work: Workload, workers: int) -> Forecast:
    """Predict a run with a given number of workers."""
    busy = calibration.batch_seconds(work.entry, work.samples)
    mean = busy * (1 + work.stragglers * (work.slowdown - 1))
    mean_lifetime, restart = 3600 * work.lost_every, calibration.start + calibration.load
    available = 1.0 if math.isinf(mean_lifetime) else mean_lifetime / (mean_lifetime + mean / 2 + restart)
    limits = {"workers": workers * available * calibration.batch / mean}
    if calibration.read > 0:
        limits["reading"] = THREADS * readers_for(workers) / calibration.read
    if work.samples * calibration.write > 0:
        limits["writing"] = THREADS * writers_for(workers) / (work.samples * calibration.write)
    limit = min(limits, key=lambda name: limits[name])
    batches = math.ceil(work.images / calibration.batch)
    active = min(workers, batches)
    steady = max(batches / active * mean / available, work.images / limits[limit])
    # At the end, workers wait for the last batch: half a batch on average, longer for a straggler.
    straggling = 1 - (1 - work.stragglers) ** active
    tail = busy * (1 + straggling * (work.slowdown - 1)) / 2 if active > 1 else 0.0
    seconds = restart + steady + tail
    cost = workers * seconds / 3600 * work.price
    return Forecast(workers, limits[limit], seconds, cost, "starting" if restart > steady else limit)


def break_even(
    calibration: MachineProfile, zero: FrontEntry, warm: FrontEntry, training: float
) -> float | None:
    """Return the number of images from which training an inference model pays off; None if it never does.

    Args:
        calibration: Times of this machine.
        zero: Settings without the model.
        warm: Settings of the same quality with the model.
        training: Training time in seconds, on a machine of the same speed.
    """
    saved = calibration.image_seconds(zero) - calibration.image_seconds(warm)
    return training / saved if saved > 0 else None
