r"""One method over one set of measurements: a row of JSON for every image.

An interrupted run continues at its first missing image and gives the rows it would have given: noise is a
function of (seed, item), batches begin at the same images, rows are appended a batch at a time.

Counts are those of an image on its own. A batch spends a little otherwise: with a safeguard and gradient
steps an image that fell back needs one more forward than one that did not, and is differentiated once in vain
with those that did not. The trace tells which they were, so the difference is taken out.

Times are not here: they are measured for themselves (:mod:`~lavps.evaluation.benchmark.timing`).
"""

from __future__ import annotations

__all__ = ["RunFolder", "Runner", "row_counts"]

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from ...amortization.checkpoint import write_json
from ...samplers import Step, Trace
from ..lpips import LPIPS
from ..metrics import ImageBatch, psnr, ssim
from .measurements import MeasurementSet
from .methods import Method
from .models import Models
from .records import append_rows, claim, finite, read_json, read_rows

Row = dict[str, Any]


@dataclass(frozen=True)
class RunFolder:
    """Where the rows of a split lie: ``KEY.jsonl``, described by ``KEY.json``; images in ``images/KEY/``.

    Attributes:
        path: the folder.
    """

    path: Path

    def rows(self, key: str) -> list[Row]:
        """The rows of a method so far."""
        return read_rows(self.path / f"{key}.jsonl")

    def failure(self, key: str) -> str | None:
        """Why a method cannot be run to its end, if so."""
        return read_json(self.path / f"{key}.json").get("failed")

    def images(self, key: str) -> list[Path]:
        """Restored images that were kept, in order."""
        return sorted((self.path / "images" / key).glob("*.png"))

    def methods(self, count: int, most: int | None = None) -> list[Method]:
        """The methods with ``count`` rows (to at most ``most``, default the same), in order of their keys."""
        keys = [file.stem for file in sorted(self.path.glob("*.jsonl"))]
        kept = [key for key in keys if count <= len(self.rows(key)) <= (count if most is None else most)]
        return [Method.from_settings(read_json(self.path / f"{key}.json")["method"]) for key in kept]

    @contextmanager
    def claimed(self, key: str, wait: bool = True) -> Iterator[bool]:
        """Be the one process that works on this method."""
        with claim(self.path / "locks" / key, wait) as held:
            yield held

    def describe(self, method: Method, about: Mapping[str, Any]) -> None:
        """Write what a method's rows are, or refuse to add to rows that are something else."""
        file = self.path / f"{method.key}.json"
        known, now = read_json(file), {"method": method.settings(), **about}
        if not known:
            write_json(file, now)
        for name, value in now.items():
            if known and known.get(name) != value:
                raise ValueError(
                    f"{file}: rows of this method were made with {name} {known.get(name)!r}, now it is "
                    f"{value!r}. They cannot be compared: delete {method.key}.*, or use another folder"
                )

    def fail(self, method: Method, reason: str) -> None:
        """Remember that a method diverged, so that nobody tries again."""
        file = self.path / f"{method.key}.json"
        write_json(file, read_json(file) | {"failed": reason})


def row_counts(trace: Trace) -> tuple[Tensor, Tensor]:
    """Denoiser forwards and backwards of every row as if it had run alone, both (rows,); one repetition."""
    fallen = (1.0 - trace.accepted).nan_to_num(0.0)
    share = fallen.mean(1, keepdim=True)
    descends = (trace.step_backwards > 0)[:, None]  # else falling back costs nothing
    forwards = trace.step_forwards[:, None] + descends * (fallen - share)
    backwards = trace.step_backwards[:, None] - descends * torch.where(share < 1.0, share, 0.0)
    return forwards.sum(0).round(), backwards.expand_as(fallen).sum(0).round()


@dataclass(frozen=True)
class Runner:
    """Runs methods over a set of measurements.

    Attributes:
        folder: of the rows.
        measurements: the set.
        models: what methods are built from.
        lpips: the perceptual distance.
        seed: of the samplers, one for all methods.
        batch_size: images at a time.
        keep_images: how many restored images are written as PNG, from the first on.
        progress: show a bar with the time left.
    """

    folder: RunFolder
    measurements: MeasurementSet
    models: Models
    lpips: LPIPS
    seed: int = 0
    batch_size: int = 8
    keep_images: int = 0
    progress: bool = True

    def run(self, method: Method, count: int | None = None) -> list[Row]:
        """The rows of a method on the first ``count`` images, default all; none is run again."""
        with self.folder.claimed(method.key):
            return self.run_claimed(method, count)

    def run_claimed(self, method: Method, count: int | None = None) -> list[Row]:
        """The same, where the caller holds the claim."""
        self.folder.describe(method, self._about(method))
        rows, total = (
            self.folder.rows(method.key),
            min(count or len(self.measurements), len(self.measurements)),
        )
        if len(rows) >= total:
            return rows[:total]
        sampler = self.models.sampler(method)
        steps = sampler.total_steps
        # Counted in steps of images: one batch may take minutes.
        with tqdm(
            total=total * steps,
            initial=len(rows) * steps,
            desc=f"{method.family}, {method.label}",
            unit="step",
            disable=None if self.progress else True,
        ) as bar:
            while len(rows) < total:
                start = len(rows) // self.batch_size * self.batch_size
                new = self._batch(method, slice(start, min(start + self.batch_size, total)), bar.update)
                append_rows(self.folder.path / f"{method.key}.jsonl", new[len(rows) - start :])
                rows += new[len(rows) - start :]
        return rows

    def _about(self, method: Method) -> dict[str, Any]:
        settings = self.measurements.settings
        return {
            "measurements": [settings.task, settings.noise, settings.split, settings.count, settings.seed],
            "weights": self.models.hashes(method),
            "seed": self.seed,
            "precision": self.models.precision,
        }

    def _batch(self, method: Method, rows: slice, advance: Callable[[int], object]) -> list[Row]:
        half = self.models.precision == "bf16"
        problem = self.measurements.problem(rows, self.models.device, full_precision=half)
        items = list(self.measurements.items[rows])

        def follow(step: Step) -> None:
            advance(len(items))

        posterior = self.models.sample(method, problem, self.seed, items, callback=follow)
        assert posterior.samples is not None
        restored = posterior.samples[:, 0]
        # One that ran far out of [-1, 1] is judged as the file it would be written to.
        images, truth = (
            ImageBatch.from_tensor(restored.clamp(-1.0, 1.0).cpu()),
            self.measurements.images[rows],
        )
        self._keep(method, rows.start, images)
        forwards, backwards = row_counts(posterior.trace)
        columns = {
            "psnr": psnr(images, truth),
            "ssim": ssim(images, truth),
            "lpips": self.lpips(images, truth),
            "chi_square": problem.chi_square(restored),
            "forwards": forwards,
            "backwards": backwards,
            "model_forwards": torch.full_like(forwards, posterior.trace.model_forwards),
            "acceptance": posterior.trace.acceptance_by_row,
        }
        return [
            {"key": method.key, "item": item, "file": file, "seed": self.seed}
            | {name: finite(float(column[row])) for name, column in columns.items()}
            for row, (item, file) in enumerate(zip(items, self.measurements.files[rows], strict=True))
        ]

    def _keep(self, method: Method, start: int, images: ImageBatch) -> None:
        folder = self.folder.path / "images" / method.key
        for row in range(start, min(start + len(images), self.keep_images)):
            folder.mkdir(parents=True, exist_ok=True)
            pixels = images.pixels[row - start].permute(1, 2, 0).squeeze(2).numpy()
            Image.fromarray(pixels).save(folder / f"{row:05d}.png")
