"""What the studies on real images have in common: where things lie, and how a benchmark's folder is kept.

A study works in a folder of its own (``--work``) with the harness of ``lavps bench``, resumes there, and leaves a page
and the numbers behind it in ``benchmarks/``. The rows of all images are packed into one archive beside the page; where
the working folder is gone, it is unpacked first, so nothing is measured twice.
"""

from __future__ import annotations

import gzip
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lavps.amortization.checkpoint import read_config
from lavps.amortization.data import ImageData
from lavps.evaluation import LPIPS
from lavps.evaluation.benchmark import (
    Benchmark,
    MeasurementSet,
    MeasurementSettings,
    Models,
    Runner,
)

TITLES = {"sr4": "super-resolution x4", "motion-blur": "motion blur", "centre-box": "centre box"}
TASKS = tuple(TITLES)
Scale = Literal["small", "natural", "paper"]
PRIORS = {"small": "faces64", "natural": "natural64", "paper": "ffhq256"}
PACKED = ("benchmark.json", "prices.json", "study.journal", "results.json", "validation", "test", "timing")


@dataclass(frozen=True)
class Study:
    """Where a study finds and leaves things."""

    data: Path = Path("data")
    """Folder of the tar shards, as PRIOR-val.tar and PRIOR-test.tar."""
    lpips: Path | None = None
    """File of LPIPS's weights; default the variable LAVPS_LPIPS."""
    work: Path = Path("runs/studies")
    """Folder to work in; what is there is continued."""
    zoo: Path = Path("zoo")
    """Folder of the trained models."""
    pages: Path = Path("benchmarks")
    """Folder of the pages."""
    scale: Scale = "small"
    """small: 64 x 64 faces on a CPU; natural: natural images of that size; paper: FFHQ at 256 x 256 on a GPU."""
    device: str = "cpu"
    """Where to compute."""
    batch_size: int = 8
    """Images at a time."""
    validation_count: int = 32
    """Images to choose settings on."""
    test_count: int = 300
    """Images to judge them on."""

    @property
    def prior(self) -> Path:
        """Folder of the prior."""
        return self.zoo / PRIORS[self.scale]

    def model(self, task: str) -> str:
        """Folder of the inference model of a task."""
        return str(self.zoo / f"{PRIORS[self.scale]}-{task}")

    def window_model(self, task: str) -> str:
        """The same, trained for the last steps alone, where there is one."""
        folder = Path(self.model(task) + "-window")
        return str(folder) if folder.exists() else self.model(task)

    def begin(self, study: str, task: str, noise: float = 0.05) -> Benchmark:
        """The folder of a task, measured; unpacked from what was published where there is none."""
        folder, archive = self.work / study / task, self.archive(study, task)
        if not folder.exists() and archive.exists():
            folder.mkdir(parents=True)
            with tarfile.open(archive) as file:
                file.extractall(folder, filter="data")
        benchmark = Benchmark.create(folder, task, noise, str(self.prior), 0, "bf16")
        shape = read_config(self.prior).image_shape
        for split, count in (("validation", self.validation_count), ("test", self.test_count)):
            short = "val" if split == "validation" else split
            data = ImageData.open(
                self.data / f"{self.prior.name}-{short}.tar", shape[1:], shape[0], cache=False
            )
            settings = MeasurementSettings(task, noise, split, count, 0, shape)
            MeasurementSet.create(folder / "measurements", settings, data)
        return benchmark

    def archive(self, study: str, task: str) -> Path:
        """The rows that were published."""
        return self.pages / study / f"{task}.tar.gz"

    def pack(self, study: str, benchmark: Benchmark, task: str) -> None:
        """Publish the rows."""
        archive = self.archive(study, task)
        archive.parent.mkdir(parents=True, exist_ok=True)

        def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
            if Path(entry.name).name in ("locks", "images") or entry.name.endswith(".lock"):
                return None
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
            return entry

        # Without times of its own: the same rows make the same bytes.
        with gzip.GzipFile(archive, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as file:
            for name in PACKED:
                if (benchmark.path / name).exists():
                    file.add(benchmark.path / name, name, filter=plain)

    def models(self, benchmark: Benchmark) -> Models:
        """The prior, and what methods name."""
        return benchmark.models(self.device)

    def runner(self, benchmark: Benchmark, split: str, keep_images: int = 0) -> Runner:
        """What runs methods on a split."""
        lpips = LPIPS.load(self.lpips, self.device)
        return benchmark.runner(
            split, self.models(benchmark), lpips, batch_size=self.batch_size, keep_images=keep_images
        )
