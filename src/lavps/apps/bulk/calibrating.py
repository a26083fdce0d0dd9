"""Calibration of the cost model: a few seconds of timing on synthetic images."""

from __future__ import annotations

__all__ = ["calibrate", "training_seconds"]

import hashlib
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ...checkpoints.folder import read_config
from ...io.atomic import write_atomically
from ...io.decode import read_image
from ...io.encode import encode_image
from ...io.image import ImageFile
from ...operators.registry import family_from
from ...problem import GaussianNoise, InverseProblem
from ...restoration.config import RestorationConfig
from ...restoration.pacing import PassTimes
from .costs import MachineProfile
from .worker import shape_of

_PATIENCE = 4.0  # seconds after which timing is not repeated
_NOISE = 0.05  # of the simulated measurements, if none is given


def _seconds(work: Callable[[], object], times: int = 5) -> float:
    """Return the shortest time of several calls."""
    return min(timeit.repeat(work, number=1, repeat=times))


def calibrate(job: RestorationConfig, batch: int, measure_start: bool = True) -> MachineProfile:
    """Load the models and time the parts of a batch on this machine.

    Args:
        job: Prior, model, task and noise.
        batch: Number of images per batch.
        measure_start: Whether to time the start of a worker process too.
    """
    start = time.perf_counter()
    restorer = job.load()
    load = time.perf_counter() - start
    shape = restorer.image_shape
    if shape is None:
        raise ValueError("calibration needs a prior of fixed image size, but this prior does not specify one")
    problem = restorer.posed(_problem(job, shape, batch).to(job.device))
    prior, model = restorer.on(problem.image_shape)
    importing = [sys.executable, "-c", "import lavps.apps.bulk"]
    return replace(
        _file_times(problem.y[0].real.cpu(), shape),
        batch=batch,
        start=_seconds(lambda: subprocess.run(importing, check=True), times=1) if measure_start else 0.0,
        pace=PassTimes.measure(prior, problem, model, _PATIENCE),
        load=load,
    )


def _problem(job: RestorationConfig, shape: tuple[int, ...], batch: int) -> InverseProblem:
    spec = job.measuring
    task = "denoise" if spec.task in (None, "inpaint", "deblur") else str(spec.task)
    x = np.random.default_rng(0).uniform(-1, 1, (batch, *shape)).astype(np.float32)
    operator = family_from(task, shape).draw(list(range(batch)), shape)
    return InverseProblem.simulate(torch.from_numpy(x), operator, GaussianNoise(spec.noise or _NOISE))


def _file_times(y: torch.Tensor, shape: tuple[int, ...]) -> MachineProfile:
    """Time reading, decoding, encoding and writing of one file in a temporary folder."""
    like = ImageFile(torch.zeros(shape), None, "PNG", "RGB" if shape[0] == 3 else "L", "uint8")
    image = torch.from_numpy(np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32))
    content = measured = encode_image(image, like)
    if y.ndim == 3 and y.shape[0] == shape[0]:
        measured = encode_image(y.clamp(-1, 1), like)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "measured.png"
        file.write_bytes(measured)

        def read() -> None:
            encoded = file.read_bytes()
            hashlib.sha256(encoded).hexdigest()
            shape_of(encoded)

        write = _seconds(lambda: write_atomically(Path(folder) / "restored.png", content))
        return MachineProfile(
            1, PassTimes(0.0, 0.0), read=_seconds(read), decode=_seconds(lambda: read_image(measured)),
            encode=_seconds(lambda: encode_image(image, like)), write=write,
        )  # fmt: skip


def training_seconds(model: str, calibration: MachineProfile) -> float | None:
    """Estimate the time to train an inference model here; return None if its folder lacks the numbers.

    One row of a training step is counted as two forward passes and one backward pass of the denoiser, and as
    three forward passes of the model, of which two stand for its backward pass.
    """
    training = read_config(model).training
    if not isinstance(training.get("steps"), int) or not isinstance(training.get("batch_size"), int):
        return None
    pace = calibration.pace
    row = (2 * pace.forward + pace.backward + 3 * pace.model) / calibration.batch
    return float(training["steps"] * training["batch_size"] * row)
