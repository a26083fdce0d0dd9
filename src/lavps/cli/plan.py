"""``lavps plan``: time and cost of a bulk run, from a calibration of a few seconds on this machine."""

from __future__ import annotations

__all__ = ["Plan"]

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from ..apps.bulk.calibrating import calibrate, training_seconds
from ..apps.bulk.costs import Forecast, MachineProfile, Workload, break_even, forecast
from ..checkpoints import local_copy
from ..devices import resolve_device
from ..io.atomic import write_atomically
from ..restoration.config import RestorationConfig
from ..restoration.presets import FrontEntry, Quality, chosen, front_for
from ..restoration.spec import MeasurementSpec
from .failures import fatal
from .options import Device, File, Model, N, PriorPath, Std, TaskName, argument, parse_duration


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Predict the hours and the cost of lavps restore-bulk, and when training an inference model pays."""

    prior: PriorPath[str]  # Model folder or Hub id of the prior.
    task: TaskName[str]  # Operator: sr4, denoise, motion-blur, ..., or a Python object in a file.
    count: N[int] = 1_000_000  # Number of images.
    noise: Std[float | None] = None  # Standard deviation of the noise.
    inference_model: Model[str | None] = None  # Inference model or few-step model of this prior.
    samples: N[int] = 1  # Number of samples per image.
    quality: Quality = "balanced"  # Preset of quality against cost.
    batch_size: N[int] = 16  # Images per batch and worker.
    # Numbers of workers to compare.
    workers: Annotated[tuple[int, ...], argument(metavar="N ...")] = (
        1,
        2,
        4,
        8,
        16,
        32,
        64,
        128,
        256,
        512,
    )
    price: Annotated[float, argument(metavar="PRICE")] = 1.0  # Price of one worker per hour.
    # Mean time, in hours, after which a worker is lost.
    lost_every: Annotated[float, argument(metavar="HOURS")] = math.inf
    # Time to train the inference model; default estimated from its folder.
    training: Annotated[str | None, argument(metavar="30min")] = None
    output: File[Path | None] = None  # JSON file for all numbers.
    device: Device[str] = "auto"  # cpu, cuda, mps, xpu, or auto: the first available of cuda, mps, xpu, cpu.

    def run(self) -> None:
        """Calibrate, predict, print."""
        with fatal("plan"):
            if min(self.count, self.batch_size, *self.workers) < 1:
                raise ValueError("--count, --workers and --batch-size must be at least 1")
            measuring, device = MeasurementSpec(self.task, self.noise), resolve_device(self.device)
            job = RestorationConfig(self.prior, self.inference_model, measuring, self.samples, device=device)
            measuring.check()
            calibration = calibrate(job, self.batch_size)
            zero, warm = self._entries()
            work = Workload(self.count, warm or zero, self.samples, self.lost_every, price=self.price)
            forecasts = [forecast(calibration, work, count) for count in self.workers]
            pays = self._break_even(calibration, zero, warm)
            self._print(calibration, work, forecasts, pays)
            if self.output is not None:
                rows = [asdict(one) | {"images_per_hour": one.per_hour(self.count)} for one in forecasts]
                values = {"calibration": asdict(calibration), "forecasts": rows, "break_even": pays}
                write_atomically(self.output, (json.dumps(values, indent=2) + "\n").encode())

    def _entries(self) -> tuple[FrontEntry, FrontEntry | None]:
        """Return the settings of this quality without and with the inference model."""
        zero = chosen(front_for(local_copy(self.prior), False, self.task), self.quality)
        if self.inference_model is None:
            return zero, None
        return zero, chosen(front_for(local_copy(self.inference_model), True, self.task), self.quality)

    def _break_even(
        self, calibration: MachineProfile, zero: FrontEntry, warm: FrontEntry | None
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
        calibration: MachineProfile,
        work: Workload,
        forecasts: list[Forecast],
        pays: dict[str, Any] | None,
    ) -> None:
        busy = calibration.batch_seconds(work.entry, work.samples)
        pace, entry = calibration.pace, work.entry
        print(
            f"a batch of {calibration.batch} takes {busy:.3g} s here: {entry.forwards:g} forwards of "
            f"{1e3 * pace.forward:.3g} ms, {entry.backwards:g} backwards of {1e3 * pace.backward:.3g} ms, "
            f"{entry.model_forwards:g} model calls of {1e3 * pace.model:.3g} ms; an image is decoded "
            f"in {1e3 * calibration.decode:.2g} ms, encoded in {1e3 * calibration.encode:.2g} ms; models "
            f"load in {calibration.load:.2g} s"
        )
        print(f"{'workers':>7} {'images/hour':>12} {'hours':>9} {'cost':>10} {'speed-up':>9}  limited by")
        alone = forecast(calibration, work, 1).seconds
        for one in forecasts:
            print(
                f"{one.workers:>7} {one.per_hour(work.images):>12,.0f} {one.seconds / 3600:>9.4g} "
                f"{one.cost:>10.4g} {alone / one.seconds:>8.1f}x  {one.limit}"
            )
        if pays is None:
            return
        print(
            f"an image takes {pays['zero_shot_seconds']:.3g} s zero-shot and {pays['warm_seconds']:.3g} s "
            f"with the inference model, both at quality {self.quality}"
        )
        if pays["images"] is None:
            print("the inference model saves no time at these settings")
        else:
            print(
                f"training it ({pays['training_seconds'] / 60:.3g} min, {pays['training_is']}) pays from "
                f"{math.ceil(pays['images']):,} images on"
            )
