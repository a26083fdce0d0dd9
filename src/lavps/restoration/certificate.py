"""Certificates of intervals: what was certified, and how well the intervals cover.

A certificate holds for one prior, one inference model or none, one operator, one range of noise levels, one
setting of the sampler and one number of samples. :meth:`Certificate.check` refuses others. A certificate of
held-out images corrects intervals (:class:`~lavps.evaluation.Correction`); one of images drawn from the prior
tests the sampler alone, and corrects nothing.
"""

from __future__ import annotations

__all__ = ["Certificate", "task_record"]

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.hashes import file_hash
from ..checkpoints.scope import check_scope
from ..evaluation import Correction, conformal_p_value
from ..io.atomic import write_atomically
from ..samplers import Settings
from .degraded import script_of
from .spec import MeasurementSpec

_FORMAT = 1


def task_record(spec: MeasurementSpec) -> tuple[str, str | None]:
    """Return the name of a task, and the hash of the mask, kernel or Python file that defines it."""
    script = script_of(spec.task)
    file = spec.mask or spec.kernel or script
    name = str(spec.task) if script is None else f"{script.name}:{str(spec.task).rpartition(':')[2]}"
    return name, None if file is None else file_hash(file)


@dataclass(frozen=True)
class Certificate:
    """Coverage of a sampler's intervals, and what it was measured on.

    Attributes:
        prior: Hash of the prior's weights.
        model: Hash of the inference model's weights; None without one.
        task: Name of the task.
        operator_file: Hash of the mask, kernel or Python file that defines the operator; None for a name.
        noise: Lowest and highest standard deviation of the noise.
        settings: Settings of the sampler.
        samples: Number of samples per image.
        image_shape: Shape (C, *spatial) of the images.
        source: "images" for held-out images, "prior" for draws from the prior.
        images: Number of images.
        corrections: Coverage and correction, by level.
        histogram: Share of the pixels of each rank 0..samples of the truth among the samples.
        p_values: Tests that ranks are uniform, by feature.
        statistics: Fit statistics of every image (:func:`~lavps.evaluation.fit_statistics`).
    """

    prior: str
    model: str | None
    task: str
    operator_file: str | None
    noise: tuple[float, float]
    settings: Settings
    samples: int
    image_shape: tuple[int, ...]
    source: str
    images: int
    corrections: tuple[Correction, ...]
    histogram: tuple[float, ...]
    p_values: dict[str, float]
    statistics: tuple[tuple[float, ...], ...]

    @classmethod
    def read(cls, file: str | Path) -> Certificate:
        """Read a certificate.

        Raises:
            ValueError: The file is not a certificate.
        """
        try:
            values: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
            if values.pop("lavps certificate") != _FORMAT:
                raise ValueError("its format is unknown")
            low, high = (float(value) for value in values.pop("noise"))
            return cls(
                noise=(low, high),
                settings=Settings.from_dict(values.pop("settings")),
                image_shape=tuple(int(side) for side in values.pop("image_shape")),
                corrections=tuple(Correction(**entry) for entry in values.pop("corrections")),
                histogram=tuple(float(share) for share in values.pop("histogram")),
                statistics=tuple(tuple(map(float, row)) for row in values.pop("statistics")),
                **values,
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{file} is no certificate of lavps calibrate: {error!r}") from error

    def write(self, file: str | Path) -> None:
        """Write the certificate as JSON."""
        values = {"lavps certificate": _FORMAT, **asdict(self), "settings": self.settings.to_dict()}
        values["statistics"] = [[float(f"{value:.6g}") for value in row] for row in self.statistics]
        write_atomically(Path(file), (json.dumps(values, indent=1, allow_nan=False) + "\n").encode())

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits that identify the corrections and their scope."""
        values = asdict(self) | {"settings": self.settings.to_dict(), "statistics": None}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]

    def check(
        self,
        hashes: tuple[str | None, str | None],
        spec: MeasurementSpec,
        settings: Settings,
        image_shape: tuple[int, ...],
    ) -> None:
        """Check that the certificate holds for a restoration.

        Args:
            hashes: Hashes of prior and inference model.
            spec: Measurement, with all values set.
            settings: Settings of the sampler.
            image_shape: Shape (C, *spatial) of the image.

        Raises:
            ValueError: It holds for others; the message states which.
        """
        made, remedy = "the certificate was made", "lavps calibrate"
        prior, model = hashes
        task, file = task_record(spec)
        check_scope(made, (self.prior, (self.task,), self.noise), prior or "none", task, spec.noise, remedy)
        if model != self.model:
            own, other = (name[:12] if name else "none" for name in (self.model, model))
            raise ValueError(f"{made} for inference model {own}, not for {other}: run {remedy}")
        if file != self.operator_file:
            raise ValueError(f"{made} for another mask, kernel or Python file of {task}: run {remedy}")
        if settings != self.settings:
            raise ValueError(
                f"{made} for settings {self.settings.key}, not for {settings.key}: leave --quality, "
                f"--evaluations, --schedule and --budget out, or run {remedy}"
            )
        if image_shape != self.image_shape or spec.keep_known is not None:
            size, other = (" x ".join(map(str, shape)) for shape in (self.image_shape, image_shape))
            kept = "" if spec.keep_known is None else " with --keep-known"
            raise ValueError(f"{made} for images of {size}, not of {other}{kept}")

    def correction(self, level: float) -> Correction:
        """Return the correction of a level.

        Raises:
            ValueError: The level is not in the certificate, or the certificate tests the sampler alone.
        """
        if self.source != "images":
            raise ValueError("the certificate tests the sampler alone: run lavps calibrate with --images")
        for found in self.corrections:
            if abs(found.level - level) < 1e-9:
                return found
        known = ", ".join(f"{found.level:g}" for found in self.corrections)
        raise ValueError(f"level {level:g} is not in the certificate, which has {known}")

    def scale(self, level: float, num_samples: int) -> float:
        """Return the factor of the deviation from the median, for this number of samples.

        Raises:
            ValueError: The certificate has another number of samples, or not this level.
        """
        if num_samples != self.samples:
            raise ValueError(f"the certificate was made for {self.samples} samples, not for {num_samples}")
        return self.correction(level).scale

    def statement(self, level: float) -> str:
        """Return the coverage of corrected intervals on held-out images, in one sentence."""
        return coverage_sentence(self.correction(level))

    def p_value(self, statistics: torch.Tensor) -> float:
        """Return the p value of the hypothesis that a measurement fits what was certified.

        Args:
            statistics: Fit statistics (K,) of the measurement.

        Raises:
            ValueError: The certificate holds other statistics.
        """
        if len(self.statistics[0]) != len(statistics):
            raise ValueError("the certificate is of an earlier version: run lavps calibrate again")
        return conformal_p_value(torch.tensor(self.statistics, dtype=torch.float64), statistics.double())


def coverage_sentence(found: Correction) -> str:
    """Return the coverage of the corrected intervals of a level, in one sentence."""
    error = max(100 * found.after_error, 0.1)
    digits = 0 if error >= 1 else 1
    return (
        f"{found.level * 100:g} % intervals covered {100 * found.after:.{digits}f} % of pixels "
        f"(+- {error:.{digits}f}) on {found.images} held-out images"
    )
