"""The times that the cost model needs, measured here in a few seconds on pictures made up for it."""

from __future__ import annotations

__all__ = ["calibrate", "training_seconds"]

import hashlib
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ...amortization.checkpoint import read_config
from ...operators.families import OperatorFamily
from ...operators.named import family_from
from ...problem import GaussianNoise, InverseProblem
from ..images import ImageFile
from ..job import Job
from ..measuring import DEFAULT_NOISE
from ..pacing import Pace
from ..restorer import Restorer
from ..writing import encode_image, write_atomically
from .costs import Calibration
from .worker import shape_of

_PATIENCE = 4.0  # seconds after which a pass is not timed again: a busy machine wants more than one


def _seconds(work: Callable[[], object], times: int = 5) -> float:
    """The shortest of a few runs."""
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return min(spent)


def calibrate(job: Job, batch: int, measure_start: bool = True) -> Calibration:
    """Load the models, and time what a batch of this size takes on this machine.

    Args:
        job: prior, model, task and noise.
        batch: images at a time.
        measure_start: start a process to see how long that takes.
    """
    began = time.perf_counter()
    restorer = Restorer.load(job.prior, job.model, job.settings, job.device, job.tile_batch, job.label)
    load = time.perf_counter() - began
    shape = restorer.image_shape
    if shape is None:
        raise ValueError("the prior does not say the size of its images, so a calibration cannot choose one")
    problem = restorer.posed(_problem(job, shape, batch).to(job.device))
    prior, model = restorer.on(problem.image_shape)
    files = _file_times(problem.y[0].real.cpu(), shape)
    start = 0.0
    if measure_start:
        importing = [sys.executable, "-c", "import lavps.restoration.bulk"]
        start = _seconds(lambda: subprocess.run(importing, check=True), times=1)
    return replace(
        files, batch=batch, pace=Pace.measure(prior, problem, model, _PATIENCE), load=load, start=start
    )


def _problem(job: Job, shape: tuple[int, ...], batch: int) -> InverseProblem:
    how = job.measuring
    task = "denoise" if how.task in (None, "inpaint", "deblur") else str(how.task)
    family: OperatorFamily = family_from(task, shape)
    noise = np.random.default_rng(0).uniform(-1, 1, (batch, *shape)).astype(np.float32)
    operator = family.draw(list(range(batch)), shape)
    std = GaussianNoise(how.noise or DEFAULT_NOISE)
    return InverseProblem.simulate(torch.from_numpy(noise), operator, std)


def _file_times(y: torch.Tensor, shape: tuple[int, ...]) -> Calibration:
    """Reading, decoding, encoding and writing one file, in a folder of this machine."""
    from ..reading import read_image

    like = ImageFile(torch.zeros(shape), None, "PNG", "RGB" if shape[0] == 3 else "L", "uint8")
    picture = torch.from_numpy(np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32))
    content = encode_image(picture, like)
    measured = content
    if y.ndim == 3 and y.shape[0] == shape[0]:
        measured = encode_image(y.clamp(-1, 1), like)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "measured.png"
        file.write_bytes(measured)

        def read() -> None:
            encoded = io.BytesIO(file.read_bytes()).getvalue()
            hashlib.sha256(encoded).hexdigest()
            shape_of(encoded)

        write = _seconds(lambda: write_atomically(Path(folder) / "restored.png", content))
        return Calibration(
            1, Pace(0.0, 0.0), read=_seconds(read), decode=_seconds(lambda: read_image(measured)),
            encode=_seconds(lambda: encode_image(picture, like)), write=write,
        )  # fmt: skip


def training_seconds(model: str, calibration: Calibration) -> float | None:
    """About how long training an inference model would take here; None where its folder does not say.

    A row of a training step is counted as two forwards of the denoiser, one backward through it, and three
    passes of the model, its backward counted as two.
    """
    training = read_config(model).training
    if not isinstance(training.get("steps"), int) or not isinstance(training.get("batch_size"), int):
        return None
    pace = calibration.pace
    row = (2 * pace.forward + pace.backward + 3 * pace.model) / calibration.batch
    return float(training["steps"] * training["batch_size"] * row)
