"""``lavps bench``: samplers compared on real images, in five commands on one folder.

.. code-block:: shell

    lavps bench measure bench/sr4 --prior runs/faces64/model --task sr4 --validation val.tar --test test.tar
    lavps bench sweep bench/sr4 --sampler mgdm
    lavps bench sweep bench/sr4 --sampler lavps --model runs/faces64-sr4/model
    lavps bench test bench/sr4
    lavps bench time bench/sr4
    lavps bench report bench/sr4

Each resumes when given again. ``sweep`` may be started in several terminals: they share the work.
"""

from __future__ import annotations

__all__ = ["Bench", "Measure", "Report", "Sweeping", "Testing", "Timing"]

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ..amortization.checkpoint import read_config
from ..amortization.data import ImageData
from ..evaluation.benchmark.folder import Benchmark
from ..evaluation.benchmark.measurements import MeasurementSet, MeasurementSettings
from ..evaluation.benchmark.methods import SamplerName
from ..evaluation.benchmark.models import Precision
from ..evaluation.benchmark.protocol import BASELINE, Results, conclude, fronts
from ..evaluation.benchmark.report import write_report
from ..evaluation.benchmark.spaces import paper_grid, paper_subset, rival_grid
from ..evaluation.benchmark.sweep import Sweep
from ..evaluation.benchmark.timing import Timer
from ..evaluation.lpips import LPIPS
from .failures import fatal
from .fronts import Fronts

_Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Begin: measure the validation and the test images, once for all methods."""

    folder: _Folder  # of the benchmark, made if missing
    prior: str  # model folder or Hub id; its images' shape is the benchmark's
    task: str  # sr4, motion-blur, random-rectangle, ...; or file.py:attribute with an operator of your own
    validation: Path  # images to choose settings on: a folder, or a tar
    test: Path | None = None  # images to judge the chosen ones on, others than those
    noise: float = 0.05  # standard deviation of the noise, in the units of the measurement
    validation_count: int = 32  # how many of them
    test_count: int = 300  # how many of those
    seed: int = 0  # of images, operators, noise and samplers
    precision: Precision = "fp32"  # of the networks; bf16 is autocast, all else stays in float32

    def run(self) -> None:
        """Write benchmark.json and measurements/."""
        channels, height, width = read_config(self.prior).image_shape
        benchmark = Benchmark.create(
            self.folder, self.task, self.noise, self.prior, self.seed, self.precision
        )
        for split, path, count in (
            ("validation", self.validation, self.validation_count),
            ("test", self.test, self.test_count),
        ):
            if path is not None:
                settings = MeasurementSettings(
                    self.task, self.noise, split, count, self.seed, (channels, height, width)
                )
                data = ImageData.open(path, (height, width), channels, cache=False)
                MeasurementSet.create(benchmark.path / "measurements", settings, data)
                print(f"{count} {split} images are measured")


@dataclass(frozen=True, kw_only=True)
class _Running:
    """What running methods needs."""

    folder: _Folder  # of the benchmark
    lpips: Path | None = None  # file of LPIPS's weights; default the variable LAVPS_LPIPS
    batch_size: int = 8  # images at a time; more than rounding does not depend on it
    device: str = "cpu"  # where to compute


@dataclass(frozen=True, kw_only=True)
class Sweeping(_Running):
    """Try settings of a sampler on the validation images; several processes may, at once."""

    sampler: SamplerName  # whose settings
    model: str | None = None  # folder of the inference model, or of the conditional denoiser
    # paper: its 96 points at K = 100; subset: 32 of them; rival: the few settings of dps, mmps, mgps and
    # supervised; free: a search with K and the minimiser free; auto: subset for mgdm and lavps, else rival
    space: Literal["auto", "paper", "subset", "rival", "free"] = "auto"
    trials: int = 100  # of a free search, all processes and earlier runs together
    algorithm: Literal["tpe", "nsga2"] = "tpe"  # what proposes in a free search
    screen: int | None = None  # images to try settings on; only those not clearly behind go on to all of them

    def run(self) -> None:
        """Add rows to validation/."""
        space = self.space
        if space == "auto":
            space = "subset" if self.sampler in ("mgdm", "lavps") else "rival"
        benchmark, sampler, model = Benchmark.open(self.folder), self.sampler, self.model
        if model is None and sampler in ("lavps", "supervised"):
            raise ValueError(f"{sampler} needs a model: give --model")
        lpips, models = LPIPS.load(self.lpips, self.device), benchmark.models(self.device)
        runner = benchmark.runner("validation", models, lpips, batch_size=self.batch_size)
        name = f"{space} {sampler}" + (f" {model}" if model else "")
        sweep = Sweep(benchmark, runner, name, screen=self.screen)
        if space == "free":
            sweep.search(sampler, model, self.trials, self.algorithm)
        else:
            make = {"paper": paper_grid, "subset": paper_subset, "rival": rival_grid}[space]
            sweep.grid(make(sampler, model))
        print(f"{len(sweep.finished())} settings of {sampler} are measured on the validation images")


@dataclass(frozen=True, kw_only=True)
class Testing(_Running):
    """Measure the Pareto front of every family of methods again, on the test images."""

    most: int | None = None  # methods of a front, spread evenly in cost; default all of it
    groups: tuple[str, ...] | None = None  # whose fronts: "MGDM", "MGDM, Adam, K=100"; default every family
    within: float | None = None  # leave out what is this much worse than the front's best, in LPIPS
    keep_images: int = 8  # restored images to keep, for the report

    def run(self) -> None:
        """Add rows to test/."""
        benchmark = Benchmark.open(self.folder)
        lpips, models = LPIPS.load(self.lpips, self.device), benchmark.models(self.device)
        runner = benchmark.runner(
            "test", models, lpips, batch_size=self.batch_size, keep_images=self.keep_images
        )
        chosen = fronts(benchmark, self.most, self.groups, self.within)
        if not chosen:
            raise ValueError(f"{self.folder} has nothing on its validation images yet: lavps bench sweep")
        for family, methods in chosen.items():
            for method in methods:
                runner.run(method)
            print(f"{family}: {len(methods)} methods are measured on the test images")


@dataclass(frozen=True, kw_only=True)
class _Comparing:
    """What a comparison at equal quality needs."""

    folder: _Folder  # of the benchmark
    baseline: str = BASELINE  # the family that the others are to match, or a part: "MGDM, Adam, K=100"
    margin: float = 0.003  # loss of LPIPS that does not matter
    alpha: float = 0.05  # level of the non-inferiority test

    def conclude(self, benchmark: Benchmark) -> Results:
        """What the rows say so far."""
        return conclude(benchmark, self.baseline, self.margin, self.alpha)


@dataclass(frozen=True, kw_only=True)
class Timing(_Comparing):
    """Time the tested methods at batch 1, taking turns on the same images."""

    turns: int = 10  # of all methods, after one that warms up
    which: Literal["matched", "all"] = "matched"  # the baseline and what matches it, or all that was tested
    device: str = "cpu"  # where to compute

    def run(self) -> None:
        """Write timing/."""
        benchmark = Benchmark.open(self.folder)
        given = benchmark.measurements("test")
        methods = {method.key: method for method in benchmark.runs("test").methods(len(given))}
        if not methods:
            raise ValueError(f"{self.folder} has no methods with test rows yet: lavps bench test")
        matches = self.conclude(benchmark).matches if self.which == "matched" else []
        pairs = [(match["reference"], match["candidate"]) for match in matches]
        keys = sorted({key for pair in pairs for key in pair if key} or methods)
        timer = Timer(
            benchmark.path / "timing", given, benchmark.models(self.device), benchmark.settings.seed
        )
        timer.run([methods[key] for key in keys], self.turns)
        print(f"{len(keys)} methods are timed over {self.turns} turns")


@dataclass(frozen=True, kw_only=True)
class Report(_Comparing):
    """Compare at equal quality, and write report.md, report.html and their figures."""

    def run(self) -> None:
        """Write results.json and the report."""
        benchmark = Benchmark.open(self.folder)
        self.conclude(benchmark)
        print(f"the report is {write_report(benchmark)}")


@dataclass(frozen=True)
class Bench:
    """Compare samplers on real images at equal quality, in five commands on one folder.

    lavps bench measure bench/sr4 --prior PRIOR --task sr4 --validation val.tar --test test.tar
    lavps bench sweep bench/sr4 --sampler mgdm
    lavps bench sweep bench/sr4 --sampler lavps --model MODEL
    lavps bench test bench/sr4
    lavps bench time bench/sr4
    lavps bench report bench/sr4

    Each resumes when it is given again, after a kill too. sweep may run in several terminals at once.
    """

    command: (
        Annotated[Measure, tyro.conf.subcommand("measure")]
        | Annotated[Sweeping, tyro.conf.subcommand("sweep")]
        | Annotated[Testing, tyro.conf.subcommand("test")]
        | Annotated[Timing, tyro.conf.subcommand("time")]
        | Annotated[Report, tyro.conf.subcommand("report")]
        | Annotated[Fronts, tyro.conf.subcommand("fronts")]
    )

    def run(self) -> None:
        """Run the command."""
        with fatal("bench", (OSError, ValueError, ImportError)):
            self.command.run()
