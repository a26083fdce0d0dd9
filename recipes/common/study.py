"""Settings of the studies on real images, and the working folder of a benchmark.

A study uses the harness of ``lavps bench`` in a working folder (``--work``), resumes there, and writes a page and its
numbers to ``benchmarks/``. The rows of all images are packed into one archive per task beside the page. Without a
working folder the archive is unpacked first, so no image is processed twice.
"""

from __future__ import annotations

import gzip
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch

from lavps.amortization.few_step import few_step_folder
from lavps.benchmark import Benchmark, MeasurementSet, MeasurementSettings, Models, Runner
from lavps.benchmark.models import Precision
from lavps.checkpoints.folder import read_config
from lavps.evaluation import LPIPS
from lavps.samplers import UNBOUND, FewStep, FewStepModel, Settings, Unbound
from lavps.training.crops import RandomCrops
from lavps.training.data import ImageData

TASKS = ("sr4", "motion-blur", "centre-box")
# Tasks, and operators that models for them were not trained on.
SHIFTS = {"sr4": "sr8", "motion-blur": "random-motion-blur-hard", "centre-box": "random-pixels"}
Scale = Literal["small", "paper"]
PRIORS = {"small": "synthfaces64", "paper": "ffhq256"}
LOADED: dict[tuple[Any, ...], Models] = {}
PACKED = ("benchmark.json", "prices.json", "study.journal", "results.json", "validation", "test", "timing")


@dataclass(frozen=True)
class Study:
    """Input and output of a study."""

    data: Path = Path("data")
    """Folder of the tar shards PRIOR-val.tar and PRIOR-test.tar."""
    lpips: Path | None = None
    """File of the LPIPS weights; the default is the environment variable LAVPS_LPIPS."""
    work: Path = Path("runs/studies")
    """Working folder; results found there are continued."""
    zoo: Path = Path("zoo")
    """Folder of the trained models."""
    pages: Path = Path("benchmarks")
    """Folder of the pages."""
    scale: Scale = "small"
    """small: 64 x 64 faces on a CPU; paper: FFHQ at 256 x 256 on a GPU."""
    precision: Precision = "bf16"
    """Precision of the networks."""
    device: str = "cpu"
    """Device of the computation."""
    compiled: bool = False
    """Whether the prior's network is compiled; for samplers without gradients."""
    batch_size: int = 8
    """Number of images per batch."""
    validation_count: int = 32
    """Number of validation images, on which settings are chosen."""
    test_count: int = 300
    """Number of test images, on which settings are evaluated."""

    @property
    def prior(self) -> Path:
        """Return the folder of the prior."""
        return self.zoo / PRIORS[self.scale]

    def model(self, task: str) -> str:
        """Return the folder of the inference model of a task."""
        return str(self.zoo / f"{PRIORS[self.scale]}-{task}")

    def few_step(self) -> list[Settings]:
        """Return the settings of the few-step model that belongs to the prior, if there is one."""
        if (folder := few_step_folder(self.prior)) is None:
            return []
        model = cast(FewStepModel, Unbound(str(self.zoo / folder.name)))
        count = int((read_config(folder).window or {})["evaluations"])
        return [Settings(FewStep(UNBOUND, model, evaluations=count))]

    def begin(self, study: str, task: str, noise: float = 0.05) -> Benchmark:
        """Open the working folder of a task with its measurements; unpack the archive if there is no folder."""
        folder, archive = self.work / study / task, self.archive(study, task)
        if not folder.exists() and archive.exists():
            folder.mkdir(parents=True)
            with tarfile.open(archive) as file:
                file.extractall(folder, filter="data")
        benchmark = Benchmark.create(folder, task, noise, str(self.prior), 0, self.precision)
        shape = read_config(self.prior).image_shape
        for split, count in (("validation", self.validation_count), ("test", self.test_count)):
            file = self.data / f"{self.prior.name}-{'val' if split == 'validation' else split}.tar"
            settings = MeasurementSettings(task, noise, split, count, 0, shape)
            MeasurementSet.create(folder / "measurements", settings, self.images(file, shape))
        return benchmark

    def images(self, file: Path, shape: tuple[int, ...]) -> ImageData | RandomCrops:
        """Open the images of a split."""
        return ImageData.open(file, (shape[1], shape[2]), shape[0], cache=False)

    def archive(self, study: str, task: str) -> Path:
        """Return the file of the published rows."""
        return self.pages / study / f"{task}.tar.gz"

    def pack(self, study: str, benchmark: Benchmark, task: str) -> None:
        """Write the rows to their archive."""
        archive = self.archive(study, task)
        archive.parent.mkdir(parents=True, exist_ok=True)

        def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
            if Path(entry.name).name in ("locks", "images") or entry.name.endswith(".lock"):
                return None
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
            return entry

        # No time stamps: equal rows give equal bytes.
        with gzip.GzipFile(archive, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as file:
            for name in PACKED:
                if (benchmark.path / name).exists():
                    file.add(benchmark.path / name, name, filter=plain)

    def models(self, benchmark: Benchmark) -> Models:
        """Load the prior and the models that methods name, once."""
        about = benchmark.settings
        key = (about.prior, about.prior_hash, about.precision, self.device, self.compiled)
        if key not in LOADED:
            models = LOADED[key] = benchmark.models(self.device)
            if self.compiled:
                models.prior.network = torch.compile(models.prior.network, dynamic=False)
        return LOADED[key]

    def runner(self, benchmark: Benchmark, split: str, keep_images: int = 0, samples: int = 1) -> Runner:
        """Return the runner of methods on a split."""
        lpips = LPIPS.load(self.lpips, self.device)
        return benchmark.runner(
            split,
            self.models(benchmark),
            lpips,
            batch_size=self.batch_size,
            keep_images=keep_images,
            samples=samples,
        )
