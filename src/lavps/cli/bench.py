"""``lavps bench``: a comparison of samplers on real images, command by command on one folder."""

from __future__ import annotations

__all__ = ["Bench", "Fronts", "Measure", "Repeat", "Report", "Sweeping", "Testing", "Timing"]

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import tyro

from ..benchmark.analysis import BASELINE, Results, analyze, fronts
from ..benchmark.export import install_fronts
from ..benchmark.folder import Benchmark
from ..benchmark.measurements import MeasurementSet, MeasurementSettings
from ..benchmark.models import Precision
from ..benchmark.repeat import published, repeat
from ..benchmark.report import write_report
from ..benchmark.spaces import SamplerName, baseline_grid, paper_grid, paper_subset
from ..benchmark.sweep import Sweep
from ..benchmark.timing import Timer
from ..checkpoints.folder import read_config
from ..devices import resolve_device
from ..evaluation.lpips import LPIPS
from ..training.data import ImageData
from .failures import fatal
from .options import Device, File, Folder, Model, N, PriorPath, Std, T, TaskName, argument

_Images = Annotated[T, argument(metavar="FOLDER|FILE.tar")]
_ROUNDING = 0.002  # of LPIPS, between processors


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Create a benchmark: measure the validation and test images, once for all methods."""

    folder: Annotated[Folder[Path], tyro.conf.Positional]  # Benchmark folder, created if missing.
    prior: PriorPath[str]  # Model folder or Hub id; the benchmark has the shape of its images.
    task: TaskName[str]  # Operator: sr4, motion-blur, random-rectangle, ..., or a Python object in a file.
    validation: _Images[Path]  # Images on which settings are chosen.
    test: _Images[Path | None] = None  # Images on which the chosen settings are compared; other images.
    noise: Std[float] = 0.05  # Standard deviation of the noise, in the units of the measurement.
    validation_count: N[int] = 32  # Number of validation images.
    test_count: N[int] = 300  # Number of test images.
    seed: N[int] = 0  # Seed of images, operators, noise and samplers.
    precision: Precision = "fp32"  # Precision of the networks; bf16 is autocast, all else stays in float32.

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
                print(f"measured {count} {split} images")


@dataclass(frozen=True, kw_only=True)
class _Running:
    """Options of commands that run methods."""

    folder: Annotated[Folder[Path], tyro.conf.Positional]  # Benchmark folder.
    lpips: File[Path | None] = None  # Weights of LPIPS; default the variable LAVPS_LPIPS.
    batch_size: N[int] = 8  # Samples per batch; results depend on it only by rounding.
    samples: N[int] = 1  # Samples per image; from 2 on CRPS, energy score and coverage are recorded too.
    device: Device[str] = "cpu"  # cpu, cuda, mps or xpu.


@dataclass(frozen=True, kw_only=True)
class Sweeping(_Running):
    """Evaluate settings of a sampler on the validation images; several processes share the work."""

    sampler: SamplerName  # Sampler.
    model: Model[str | None] = None  # Inference model, or conditional denoiser.
    # Settings to evaluate. paper: its 96 points at K = 100; subset: 32 of them; baseline: the few settings of
    # samplers outside the paper's grid; free: a search over K and the minimizer too; auto: subset for mgdm
    # and lavps, else baseline.
    space: Literal["auto", "paper", "subset", "baseline", "free"] = "auto"
    trials: N[int] = 100  # Number of trials of a free search, over all processes and earlier runs.
    algorithm: Literal["tpe", "nsga2"] = "tpe"  # Search algorithm of a free search.
    screen: N[int | None] = None  # Number of images for screening; clearly worse settings stop after them.

    def run(self) -> None:
        """Add rows to validation/."""
        space = self.space
        if space == "auto":
            space = "subset" if self.sampler in ("mgdm", "lavps") else "baseline"
        benchmark, sampler, model = Benchmark.open(self.folder), self.sampler, self.model
        if model is None and sampler in ("lavps", "supervised"):
            raise ValueError(f"{sampler} needs a model: give --model")
        device = resolve_device(self.device)
        lpips, models = LPIPS.load(self.lpips, device), benchmark.models(device)
        runner = benchmark.runner(
            "validation", models, lpips, batch_size=self.batch_size, samples=self.samples
        )
        name = f"{space} {sampler}" + (f" {model}" if model else "")
        sweep = Sweep(benchmark, runner, name, screen=self.screen)
        if space == "free":
            sweep.search(sampler, model, self.trials, self.algorithm)
        else:
            make = {"paper": paper_grid, "subset": paper_subset, "baseline": baseline_grid}[space]
            sweep.grid(make(sampler, model))
        print(f"evaluated {len(sweep.finished())} settings of {sampler} on the validation images")


@dataclass(frozen=True, kw_only=True)
class Testing(_Running):
    """Evaluate the Pareto front of every family of methods on the test images."""

    most: N[int | None] = None  # Maximum number of methods per front, evenly spaced in cost; default all.
    # Families or groups whose fronts are tested: "MGDM", "MGDM (Adam), K=100"; default every family.
    groups: Annotated[tuple[str, ...] | None, argument(metavar="GROUP ...")] = None
    # Largest difference in LPIPS to the front's best; worse methods are left out.
    within: Annotated[float | None, argument(metavar="LPIPS")] = None
    keep_images: N[int] = 8  # Number of restored images kept for the report.

    def run(self) -> None:
        """Add rows to test/."""
        benchmark = Benchmark.open(self.folder)
        device = resolve_device(self.device)
        lpips, models = LPIPS.load(self.lpips, device), benchmark.models(device)
        runner = benchmark.runner(
            "test",
            models,
            lpips,
            batch_size=self.batch_size,
            keep_images=self.keep_images,
            samples=self.samples,
        )
        chosen = fronts(benchmark, self.most, self.groups, self.within)
        if not chosen:
            raise ValueError(f"{self.folder} has no validation results yet: run lavps bench sweep")
        for family, methods in chosen.items():
            for method in methods:
                runner.run(method)
            print(f"{family}: evaluated {len(methods)} methods on the test images")


@dataclass(frozen=True, kw_only=True)
class _Comparing:
    """Options of the non-inferiority comparison."""

    folder: Annotated[Folder[Path], tyro.conf.Positional]  # Benchmark folder.
    # Baseline: a family, or a group such as "MGDM (Adam), K=100".
    baseline: Annotated[str, argument(metavar="FAMILY")] = BASELINE
    margin: Annotated[float, argument(metavar="LPIPS")] = 0.003  # Non-inferiority margin.
    alpha: Annotated[float, argument(metavar="P")] = 0.05  # Level of the non-inferiority test.

    def conclude(self, benchmark: Benchmark) -> Results:
        """Analyze the rows measured so far."""
        return analyze(benchmark, self.baseline, self.margin, self.alpha)


@dataclass(frozen=True, kw_only=True)
class Timing(_Comparing):
    """Time the tested methods at batch size 1, alternating between them on the same images."""

    turns: N[int] = 10  # Number of timings per method, after a warm-up.
    which: Literal["matched", "all"] = "matched"  # Methods to time: matches and baseline, or all.
    device: Device[str] = "cpu"  # cpu, cuda, mps or xpu.

    def run(self) -> None:
        """Write timing/."""
        benchmark = Benchmark.open(self.folder)
        given = benchmark.measurements("test")
        methods = {method.key: method for method in benchmark.runs("test").methods(len(given))}
        if not methods:
            raise ValueError(f"{self.folder} has no methods with test rows yet: run lavps bench test")
        matches = self.conclude(benchmark).matches if self.which == "matched" else []
        pairs = [(match["reference"], match["candidate"]) for match in matches]
        keys = sorted({key for pair in pairs for key in pair if key} or methods)
        models = benchmark.models(resolve_device(self.device))
        timer = Timer(benchmark.path / "timing", given, models, benchmark.settings.seed)
        timer.run([methods[key] for key in keys], self.turns)
        print(f"timed {len(keys)} methods, {self.turns} times each")


@dataclass(frozen=True, kw_only=True)
class Report(_Comparing):
    """Compare with the baseline, and write report.md, report.html and their figures."""

    def run(self) -> None:
        """Write results.json and the report."""
        benchmark = Benchmark.open(self.folder)
        self.conclude(benchmark)
        print(f"the report is {write_report(benchmark)}")


@dataclass(frozen=True, kw_only=True)
class Fronts:
    """Write the best measured settings to the model folders, as fronts.json, for lavps restore."""

    folder: Annotated[Folder[Path], tyro.conf.Positional]  # Benchmark folder.
    output: Folder[Path | None] = None  # Folder for one NAME.json per model, instead of the model folders.

    def run(self) -> None:
        """Write fronts.json of the prior and of every inference model."""
        with fatal("bench fronts"):
            written = install_fronts(self.folder, self.output)
        for file, count in written.items():
            print(f"{count} settings are in {file}")


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """Run a method of a published study again, and compare with its stored rows."""

    archive: Annotated[File[Path], tyro.conf.Positional]  # Archive of a study: benchmarks/STUDY/TASK.tar.gz.
    images: _Images[Path]  # Images of the study.
    # Method: a part of its name, as in "DiffPIR, K=25", or its key; default the first.
    method: Annotated[str, argument(metavar="NAME")] = ""
    count: N[int] = 2  # Number of images.
    split: Literal["test", "validation"] = "test"  # Split of the images.
    lpips: File[Path | None] = None  # Weights of LPIPS; default the variable LAVPS_LPIPS.

    def run(self) -> None:
        """Print both, image by image; another result than the stored one is an error."""
        with TemporaryDirectory() as name:
            folder = Path(name)
            methods = published(self.archive, folder, self.split)
            keys = [key for key, text in methods.items() if self.method in f"{key} {text}"]
            if not keys:
                names = "; ".join(sorted(set(methods.values())))
                raise ValueError(
                    f"no method of {self.archive} has the name {self.method!r}. There are: {names}"
                )
            lpips = LPIPS.load(self.lpips, "cpu")
            found = repeat(folder, keys[0], self.images, lpips, self.count, self.split)
        print(f"{methods[keys[0]]} ({keys[0]})")
        for old, new in zip(found.stored, found.rows, strict=True):
            print(
                f"{old['file']}: LPIPS {old['lpips']:.4f} published, {new['lpips']:.4f} now; "
                f"PSNR {old['psnr']:.2f}, {new['psnr']:.2f} dB"
            )
        if (difference := found.difference()) > _ROUNDING:
            raise ValueError(f"LPIPS differs by {difference:.4f}, more than rounding explains")


@dataclass(frozen=True)
class Bench:
    """Compare the cost of samplers at non-inferior quality on real images, command by command on one folder.

    $ lavps bench measure bench/sr4 --prior PRIOR --task sr4 --validation val.tar --test test.tar
    $ lavps bench sweep bench/sr4 --sampler mgdm
    $ lavps bench sweep bench/sr4 --sampler lavps --model MODEL
    $ lavps bench test bench/sr4
    $ lavps bench time bench/sr4
    $ lavps bench report bench/sr4
    $ lavps bench repeat benchmarks/few_steps/sr4.tar.gz --images test.tar

    Each command resumes when it is run again, even if it was killed. Several processes may run sweep at once.
    """

    command: (
        Annotated[Measure, tyro.conf.subcommand("measure")]
        | Annotated[Sweeping, tyro.conf.subcommand("sweep")]
        | Annotated[Testing, tyro.conf.subcommand("test")]
        | Annotated[Timing, tyro.conf.subcommand("time")]
        | Annotated[Report, tyro.conf.subcommand("report")]
        | Annotated[Fronts, tyro.conf.subcommand("fronts")]
        | Annotated[Repeat, tyro.conf.subcommand("repeat")]
    )

    def run(self) -> None:
        """Run the chosen command."""
        with fatal("bench", (OSError, ValueError, ImportError)):
            self.command.run()
