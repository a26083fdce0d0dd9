r"""Runs of one method on one set of measurements: one JSON row per image.

An interrupted run continues at its first missing image and gives the same rows: noise is a function of
(seed, item), batches start at the same images, and rows are appended batch by batch.

Counts are those of an image sampled alone. In a batch with a safeguard and gradient steps, an image whose
prediction was rejected needs one more forward pass, and takes part in one unused backward pass. The trace
records these images, so the difference is subtracted.

Columns of an image are those of its first sample. If more are drawn, their fair CRPS, energy score and
coverage are recorded too: the share of true pixels between the smallest and the largest of N samples, whose
nominal value is (N - 1) / (N + 1).

Times are measured separately (:mod:`~lavps.benchmark.timing`).
"""

from __future__ import annotations

__all__ = ["RunFolder", "Runner", "row_counts"]

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from ..evaluation.lpips import LPIPS
from ..evaluation.metrics import ImageBatch, crps, energy_score, pixel_coverage, psnr, ssim
from ..io.atomic import write_json
from ..samplers import Settings, Step, Trace
from .measurements import MeasurementSet
from .methods import family, label
from .models import Models
from .records import append_rows, claim, finite, read_json, read_rows

Row = dict[str, Any]


@dataclass(frozen=True)
class RunFolder:
    """Rows of a split: ``KEY.jsonl``, described by ``KEY.json``; restored images in ``images/KEY/``.

    Attributes:
        path: Path of the folder.
    """

    path: Path

    def rows(self, key: str) -> list[Row]:
        """Return the rows of a method."""
        return read_rows(self.path / f"{key}.jsonl")

    def failure(self, key: str) -> str | None:
        """Return the error of a method that diverged, else None."""
        return read_json(self.path / f"{key}.json").get("failed")

    def images(self, key: str) -> list[Path]:
        """Return the files of the restored images, in order."""
        return sorted((self.path / "images" / key).glob("*.png"))

    def methods(self, count: int, most: int | None = None) -> list[Settings]:
        """Return the methods with ``count`` to ``most`` rows (default ``count``), in order of their keys."""
        keys = [file.stem for file in sorted(self.path.glob("*.jsonl"))]
        kept = [key for key in keys if count <= len(self.rows(key)) <= (count if most is None else most)]
        return [Settings.from_dict(read_json(self.path / f"{key}.json")["method"]) for key in kept]

    def claimed(self, key: str, wait: bool = True) -> AbstractContextManager[bool]:
        """Hold the lock of a method; see :func:`~lavps.io.atomic.claim`."""
        return claim(self.path / "locks" / key, wait)

    def describe(self, method: Settings, about: Mapping[str, Any]) -> None:
        """Write the description of a method's rows; raise ValueError if existing rows have another."""
        file = self.path / f"{method.key}.json"
        known, now = read_json(file), {"method": method.to_dict(), **about}
        if not known:
            write_json(file, now)
        for name, value in now.items():
            if known and known.get(name) != value:
                raise ValueError(
                    f"{file}: rows of this method were made with {name} {known.get(name)!r}, which is now "
                    f"{value!r}. They are not comparable: delete {method.key}.*, or use another folder"
                )

    def fail(self, method: Settings, reason: str) -> None:
        """Record that a method diverged, so that it is not run again."""
        file = self.path / f"{method.key}.json"
        write_json(file, read_json(file) | {"failed": reason})


def row_counts(trace: Trace) -> tuple[Tensor, Tensor]:
    """Return forward and backward passes, (rows,) each, of rows sampled alone; for one repetition."""
    rejected = (1.0 - trace.accepted).nan_to_num(0.0)
    share = rejected.mean(1, keepdim=True)
    descends = (trace.step_backwards > 0)[:, None]  # without gradient steps, a rejection is free
    forwards = trace.step_forwards[:, None] + descends * (rejected - share)
    backwards = trace.step_backwards[:, None] - descends * torch.where(share < 1.0, share, 0.0)
    return forwards.sum(0).round(), backwards.expand_as(rejected).sum(0).round()


@dataclass(frozen=True)
class Runner:
    """Runner of methods on a set of measurements.

    Attributes:
        folder: Folder of the rows.
        measurements: Set of measurements.
        models: Networks that methods are built from.
        lpips: Perceptual distance.
        seed: Seed of the samplers, one for all methods.
        batch_size: Number of samples drawn at a time, all samples of at least one image.
        keep_images: Number of restored images, from the first one on, written as PNG.
        progress: Whether to show a progress bar.
        samples: Number of samples per image; from 2 on they are scored as a distribution too.
    """

    folder: RunFolder
    measurements: MeasurementSet
    models: Models
    lpips: LPIPS
    seed: int = 0
    batch_size: int = 8
    keep_images: int = 0
    progress: bool = True
    samples: int = 1

    def run(self, method: Settings, count: int | None = None) -> list[Row]:
        """Return the rows of a method on the first ``count`` images, default all; missing rows are run."""
        with self.folder.claimed(method.key):
            return self.run_claimed(method, count)

    def run_claimed(self, method: Settings, count: int | None = None) -> list[Row]:
        """Return the rows as :meth:`run` does; the caller holds the claim."""
        self.folder.describe(method, self._about(method))
        rows = self.folder.rows(method.key)
        total = min(count or len(self.measurements), len(self.measurements))
        if len(rows) >= total:
            return rows[:total]
        steps = self.models.sampler(method).total_steps
        # The unit is one step of one image: a batch may take minutes.
        with tqdm(
            total=total * steps,
            initial=len(rows) * steps,
            desc=f"{family(method)}, {label(method)}",
            unit="step",
            disable=None if self.progress else True,
        ) as bar:
            while len(rows) < total:
                stride = max(1, self.batch_size // self.samples)
                start = len(rows) // stride * stride
                new = self._batch(method, slice(start, min(start + stride, total)), bar.update)
                append_rows(self.folder.path / f"{method.key}.jsonl", new[len(rows) - start :])
                rows += new[len(rows) - start :]
        return rows

    def _about(self, method: Settings) -> dict[str, Any]:
        settings = self.measurements.settings
        return {
            "measurements": [settings.task, settings.noise, settings.split, settings.count, settings.seed],
            "weights": self.models.hashes(method),
            "seed": self.seed,
            "precision": self.models.precision,
            "samples": None if self.samples == 1 else self.samples,
        }

    def _batch(self, method: Settings, rows: slice, advance: Callable[[int], object]) -> list[Row]:
        half = self.models.precision == "bf16"
        problem = self.measurements.problem(rows, self.models.device, full_precision=half)
        items = list(self.measurements.items[rows])

        def follow(step: Step) -> None:
            advance(len(items))

        posterior = self.models.sample(
            method, problem, self.seed, items, num_samples=self.samples, callback=follow
        )
        assert posterior.samples is not None
        restored = posterior.samples[:, 0]
        # A sample far outside [-1, 1] is scored as its image file would be.
        images = ImageBatch.from_tensor(restored.clamp(-1.0, 1.0).cpu())
        truth = self.measurements.images[rows]
        self._keep(method, rows.start, images)
        forwards, backwards = (counts[:: self.samples] for counts in row_counts(posterior.trace))
        columns = {
            "psnr": psnr(images, truth),
            "ssim": ssim(images, truth),
            "lpips": self.lpips(images, truth),
            "chi_square": problem.chi_square(restored),
            "forwards": forwards,
            "backwards": backwards,
            "model_forwards": torch.full_like(forwards, posterior.trace.model_forwards),
            "acceptance": posterior.trace.acceptance_by_row[:: self.samples],
        }
        if self.samples > 1:
            drawn, target = posterior.samples.clamp(-1.0, 1.0).cpu(), truth.to_tensor()
            level = (self.samples - 1) / (self.samples + 1)
            columns |= {
                "crps": crps(drawn, target),
                "energy_score": energy_score(drawn, target),
                "coverage": pixel_coverage(drawn, target, [level])[:, 0],
                "nominal_coverage": torch.full_like(forwards, level),
            }
        return [
            {"key": method.key, "item": item, "file": file, "seed": self.seed}
            | {name: finite(float(column[row])) for name, column in columns.items()}
            for row, (item, file) in enumerate(zip(items, self.measurements.files[rows], strict=True))
        ]

    def _keep(self, method: Settings, start: int, images: ImageBatch) -> None:
        folder = self.folder.path / "images" / method.key
        for row in range(start, min(start + len(images), self.keep_images)):
            folder.mkdir(parents=True, exist_ok=True)
            pixels = images.pixels[row - start].permute(1, 2, 0).squeeze(2).numpy()
            Image.fromarray(pixels).save(folder / f"{row:05d}.png")
