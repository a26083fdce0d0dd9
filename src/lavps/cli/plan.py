"""``lavps plan``: what a bulk run will take and cost, from a calibration of a few seconds on this machine."""

from __future__ import annotations

__all__ = ["Plan"]

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..priors.foreign import local_copy
from ..restoration.bulk.calibrating import calibrate, training_seconds
from ..restoration.bulk.costs import Calibration, Forecast, Workload, break_even, forecast
from ..restoration.bulk.simulation import simulate
from ..restoration.job import Job
from ..restoration.measuring import Measuring
from ..restoration.pacing import parse_duration
from ..restoration.presets import FrontEntry, Quality, front_for, of_quality
from ..restoration.writing import write_atomically
from .failures import fatal


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Predict the hours and the cost of lavps restore-bulk, and when training an inference model pays."""

    prior: str  # model folder or Hub id of the prior
    task: str  # sr4, denoise, motion-blur, ... or file.py:attribute
    images: int = 1_000_000  # how many
    noise: float | None = None  # standard deviation of the noise
    inference_model: str | None = None  # model folder or Hub id of an inference model of this prior
    samples: int = 1  # of every image
    quality: Quality = "balanced"  # fast, balanced or best
    batch: int = 16  # images at a time, on every worker
    workers: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # for which to predict
    price: float = 1.0  # of a worker, an hour
    lost_every: float = math.inf  # hours after which a worker is lost, on average
    training: str | None = (
        None  # time to train the inference model (30min); default estimated from its folder
    )
    simulation: bool = False  # check the arithmetic by simulating the runs, stragglers and losses included
    output: Path | None = None  # also write everything as JSON
    device: str = "auto"  # cpu, cuda, mps; auto takes cuda where there is one

    def run(self) -> None:
        """Calibrate, predict, print."""
        with fatal("plan"):
            if self.images < 1 or self.batch < 1 or any(count < 1 for count in self.workers):
                raise ValueError("numbers of images, workers and images at a time must be at least 1")
            job = self._job()
            job.measuring.check()
            calibration = calibrate(job, self.batch)
            zero, warm = self._entries()
            work = Workload(self.images, warm or zero, self.samples, self.lost_every, price=self.price)
            forecasts = [forecast(calibration, work, count) for count in self.workers]
            pays = self._break_even(calibration, zero, warm)
            self._print(calibration, work, forecasts, pays)
            if self.output is not None:
                self._write(calibration, forecasts, pays)

    def _job(self) -> Job:
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return Job(
            self.prior, self.inference_model, Measuring(self.task, self.noise), self.samples, device=device
        )

    def _entries(self) -> tuple[FrontEntry, FrontEntry | None]:
        """Settings of this quality without and with the inference model."""
        zero = of_quality(front_for(local_copy(self.prior), False, self.task), self.quality)
        if self.inference_model is None:
            return zero, None
        return zero, of_quality(front_for(local_copy(self.inference_model), True, self.task), self.quality)

    def _break_even(
        self, calibration: Calibration, zero: FrontEntry, warm: FrontEntry | None
    ) -> dict[str, Any] | None:
        if warm is None or self.inference_model is None:
            return None
        given = None if self.training is None else parse_duration(self.training)
        seconds = given or training_seconds(self.inference_model, calibration)
        if seconds is None:
            return None
        return {
            "training_seconds": seconds,
            "training_is": "given" if given else "estimated from the model's steps and the times here",
            "zero_shot_seconds": calibration.image_seconds(zero, self.samples),
            "warm_seconds": calibration.image_seconds(warm, self.samples),
            "images": break_even(calibration, zero, warm, seconds),
        }

    def _print(
        self,
        calibration: Calibration,
        work: Workload,
        forecasts: list[Forecast],
        pays: dict[str, Any] | None,
    ) -> None:
        busy = calibration.batch_seconds(work.entry, work.samples)
        pace, entry = calibration.pace, work.entry
        print(
            f"here a batch of {calibration.batch} takes {busy:.3g} s: {entry.forwards:g} forwards of "
            f"{1e3 * pace.forward:.3g} ms, {entry.backwards:g} backwards of {1e3 * pace.backward:.3g} ms, "
            f"{entry.model_forwards:g} model passes of {1e3 * pace.model:.3g} ms; an image is decoded "
            f"in {1e3 * calibration.decode:.2g} ms, encoded in {1e3 * calibration.encode:.2g} ms; models "
            f"load in {calibration.load:.2g} s"
        )
        head = f"{'workers':>7} {'images/hour':>12} {'hours':>9} {'cost':>10} {'speed-up':>9}  held by"
        print(head + ("   simulated" if self.simulation else ""))
        for one in forecasts:
            line = (
                f"{one.workers:>7} {one.per_hour(work.images):>12,.0f} {one.seconds / 3600:>9.4g} "
                f"{one.cost:>10.4g} {self._alone(calibration, work) / one.seconds:>8.1f}x  {one.limit:<8}"
            )
            if self.simulation:
                small = replace(work, images=min(work.images, 50 * calibration.batch * one.workers))
                simulated = simulate(calibration, small, one.workers)
                ratio = simulated.seconds / forecast(calibration, small, one.workers).seconds
                line += f" {ratio:>6.1%} of the prediction, {simulated.lost} batches lost"
            print(line)
        if pays is not None:
            self._print_break_even(pays)

    def _print_break_even(self, pays: dict[str, Any]) -> None:
        without, with_it = pays["zero_shot_seconds"], pays["warm_seconds"]
        print(
            f"an image takes {without:.3g} s zero-shot and {with_it:.3g} s with the inference model, both at "
            f"quality {self.quality}"
        )
        if pays["images"] is None:
            print("the inference model saves no time at these settings: it does not pay")
        else:
            print(
                f"training it ({pays['training_seconds'] / 60:.3g} min, {pays['training_is']}) pays from "
                f"{math.ceil(pays['images']):,} images on"
            )

    def _alone(self, calibration: Calibration, work: Workload) -> float:
        return forecast(calibration, work, 1).seconds

    def _write(
        self, calibration: Calibration, forecasts: list[Forecast], pays: dict[str, Any] | None
    ) -> None:
        assert self.output is not None
        values = {
            "calibration": asdict(calibration),
            "forecasts": [asdict(one) | {"images_per_hour": one.per_hour(self.images)} for one in forecasts],
            "break_even": pays,
        }
        write_atomically(self.output, (json.dumps(values, indent=2) + "\n").encode())
