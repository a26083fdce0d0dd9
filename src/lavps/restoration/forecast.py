"""Forecast of a restoration: what was read, what is computed, and about how much time and memory it takes.

The time is that of one denoiser evaluation, of one batch of windows for a tiled image, times the number of
evaluations, and that of the data steps. A backward pass counts as two evaluations, or three for a tiled
image, which repeats the forward pass. An evaluation of an inference model counts as one.
"""

from __future__ import annotations

__all__ = ["RunForecast", "evaluation_seconds", "forecast", "in_words"]

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..priors import LatentPrior
from ..schedule import as_time
from .pacing import seconds_of
from .restorer import Restorer
from .spec import MeasuredFile

_MIDDLE = 0.5  # time t of the evaluation; the cost does not depend on it
_PATIENCE = 0.5  # seconds after which the evaluation is not repeated


@dataclass(frozen=True)
class RunForecast:
    """Forecast of the restoration of a file.

    Attributes:
        content: Content of the file.
        task: Name of the operator.
        noise: Standard deviation of the noise, in words.
        measured: Width and height of the measurement, or its shape.
        restored: Width and height of the result, or its shape.
        windows: Number of windows; 1 if the image is not tiled.
        evaluations: Denoiser evaluations per sample.
        samples: Number of samples.
        total: Denoiser evaluations on windows of all samples, with those that backward passes repeat.
        seconds: Predicted seconds; None if they are unknown.
        memory: Predicted bytes of memory; None if they are unknown.
        done: Evaluations, as in ``total``, of an interrupted run that is continued.
        doubts: Probable mistakes in the request (:mod:`~lavps.restoration.doubts`).
    """

    content: str
    task: str
    noise: str
    measured: str
    restored: str
    windows: int
    evaluations: float
    samples: int
    total: int
    seconds: float | None
    memory: int | None = None
    done: int = 0
    doubts: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{self.content}, {self.task}, noise {self.noise}", f"{self.measured} -> {self.restored}"]
        if self.windows > 1:
            parts.append(f"{self.windows} windows")
        plural = "" if self.evaluations == 1 else "s"
        parts.append(f"{self.evaluations:g} denoiser evaluation{plural} per sample")
        if self.samples > 1:
            parts.append(f"{self.samples} samples")
        if self.seconds is not None:
            parts.append(f"about {in_words(self.seconds)}")
        if self.memory is not None:
            parts.append(f"about {self.memory / 1e9:.2g} GB of memory")
        if self.done:
            parts.append(f"continues an interrupted run, of which {self.done / self.total:.0%} is done")
        return "\n  warning: ".join(["; ".join(parts), *self.doubts])

    def continued(self, done: int) -> RunForecast:
        """Return the forecast of the rest of a run, after this many evaluations."""
        rest = 1.0 - done / self.total
        return replace(self, done=done, seconds=None if self.seconds is None else rest * self.seconds)


def in_words(seconds: float) -> str:
    """Return a duration in two digits: 0.8 s, 45 s, 12 min, 3.5 h."""
    for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s")):
        amount = seconds / size
        if amount >= 1.5 or unit == "s":
            return f"{amount:.0f} {unit}" if amount >= 9.5 else f"{amount:.2g} {unit}"
    raise AssertionError("seconds are the last unit")


def evaluation_seconds(
    restorer: Restorer, measured: MeasuredFile, rows: int, device: str, compiled: bool = False
) -> float:
    """Time one denoiser evaluation as the run makes them, and return its seconds per window and sample.

    Args:
        restorer: Restorer of the run.
        measured: Inverse problem of the file.
        rows: Samples per batch.
        device: Device of the computation.
        compiled: Whether the network is compiled, so that the first evaluation is not timed.
    """
    shape = measured.problem.image_shape
    windows = restorer.windows(shape)
    count, one = rows, shape
    if windows > 1 or (restorer.image_shape is not None and shape != restorer.image_shape):
        count, one = min(restorer.tile_batch, windows * rows), restorer.image_shape or shape
    x, t = torch.zeros(count, *one, device=device), as_time(_MIDDLE)
    with torch.no_grad():
        if compiled:
            restorer.prior.denoise(x, t)
        return seconds_of(lambda: restorer.prior.denoise(x, t), x.device, _PATIENCE) / count


def forecast(
    restorer: Restorer, measured: MeasuredFile, samples: int, per_evaluation: float | None, step: float = 0.0
) -> RunForecast:
    """Return the forecast of a run.

    Args:
        restorer: Restorer with the settings of the run.
        measured: Inverse problem of the file.
        samples: Number of samples.
        per_evaluation: Seconds per denoiser evaluation, window and sample; None if unknown.
        step: Seconds per data step and sample.
    """
    problem, like, spec = measured.grey or measured.problem, measured.like, measured.measuring
    latent = isinstance(restorer.prior, LatentPrior)
    windows, counts = restorer.windows(measured.problem.image_shape), restorer.settings.counts
    passes = counts.forwards + (2 + (windows > 1)) * counts.backwards + counts.model_forwards
    return RunForecast(
        f"{like.format} image" if measured.is_picture else f"array of shape {tuple(problem.y.shape[1:])}",
        str(spec.task),
        f"{spec.noise:g}" if measured.estimate is None else str(measured.estimate),
        _size(problem.y.shape[1:], measured.is_picture),
        _size(measured.problem.image_shape, True),
        windows,
        counts.forwards,
        samples,
        round((counts.forwards + counts.backwards) * windows * samples),
        None
        if latent or per_evaluation is None
        else (per_evaluation * passes * windows + step * counts.data_steps) * samples,
    )


def _size(shape: Sequence[int], is_image: bool) -> str:
    """Return width x height of an image (C, H, W), or the shape."""
    axes = shape[:0:-1] if is_image and len(shape) == 3 else shape
    return "x".join(map(str, axes))
