r"""Coverage of intervals before and after a conformal correction, and p values of wrong measurements.

    python -m recipes.calibration.run --data DATA                       # faces
    python -m recipes.calibration.run --data DATA --prior zoo/photos64 --crops \
        --references 120 --test-count 100 --rights 100                  # crops of photographs
    python -m recipes.calibration.run --data DATA --evaluations 25 \
        --count 80 --references 110 --test-count 60 --rights 60         # more evaluations

The correction is learned on validation images and tested on test images. Samples and statistics are stored in the
working folder, per image, so that a stopped study continues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tyro

from lavps import GaussianNoise, InverseProblem, load_prior
from lavps.benchmark.figures import matplotlib_figure
from lavps.benchmark.report import markdown_table
from lavps.evaluation import FIT_SAMPLES, Correction, conformal_p_value, fit_statistics, interval_misses
from lavps.evaluation.conformal import SCALES
from lavps.operators import AveragePool, Blur, Mask, Operator
from lavps.operators.registry import family_from
from lavps.restoration.presets import chosen, front_for
from lavps.samplers import Settings
from lavps.training.crops import RandomCrops
from lavps.training.data import ImageData, image_of

from ..common.labels import TITLES
from ..common.pages import read, write_json, write_page
from ..common.study import TASKS

Record = dict[str, Any]
STUDY = "calibration"
NOISE = 0.05
SEEDS = {"val": 0, "test": 1}
# Measurements that are not those of the stated operator, by kind.
WRONG = {
    "sr4": {
        "wrong": "factor 2, cropped to the expected size",
        "coarse": "factor 8, enlarged to the expected size",
    },
    "motion-blur": {"wrong": "mirrored kernel"},
    "centre-box": {"wrong": "box moved by 6 pixels"},
}
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#555555")
KINDS = {"right": "right operator and noise", "noise": "twice the noise"}


@dataclass(frozen=True)
class Config:
    """Input, size and output of the study."""

    data: Path = Path("data")
    """Folder of PRIOR-val.tar and PRIOR-test.tar."""
    prior: Path = Path("zoo/synthfaces64")
    """Folder of the prior."""
    work: Path = Path("runs/studies/calibration")
    """Working folder of the samples; those found there are used."""
    pages: Path = Path("benchmarks")
    """Folder of the page."""
    tasks: tuple[str, ...] = TASKS
    """Names of the tasks."""
    crops: bool = False
    """Whether images are crops of photographs at their native resolution; for priors of patches."""
    count: int = 120
    """Number of validation images, on which the correction is learned."""
    test_count: int = 150
    """Number of test images of the coverage."""
    alarms: int = 32
    """Number of test images of every kind of wrong measurement; 0 for the coverage alone."""
    references: int = 256
    """Number of validation images, with which the fit is compared; at least those of the correction."""
    rights: int = 250
    """Number of test images with the right operator and noise, for the rate of false alarms."""
    evaluations: int = 8
    """Number of denoiser evaluations per sample."""
    samples: int = 19
    """Number of samples per image."""
    levels: tuple[float, ...] = (0.5, 0.8, 0.9)
    """Levels of the intervals."""
    compiled: bool = False
    """Whether the prior's network is compiled."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""

    def run(self) -> None:
        """Measure, store the numbers, and write the page."""
        if not self.page_only:
            study = Study(self)
            stored = read(self.pages, STUDY, [])
            for task in self.tasks:  # records of other tasks, priors and numbers of evaluations stay
                found = study.measure(task)
                stored = sorted([r for r in stored if cell(r) != cell(found)] + [found], key=cell)
                write_json(self.pages, STUDY, stored)
        records = read(self.pages, STUDY)
        draw(records, self.pages / f"{STUDY}.png")
        write_page(self.pages, STUDY, **fields(records))


class Study:
    """Prior and images of the study."""

    def __init__(self, config: Config) -> None:
        self.config, self.prior = config, load_prior(config.prior, compiled=config.compiled)
        self.shape = tuple(self.prior.image_shape)  # type: ignore[attr-defined]
        name, size = config.prior.name, self.shape[1:]
        self.folder = config.work / f"{name}-{config.evaluations}"
        self.folder.mkdir(parents=True, exist_ok=True)
        files = {split: config.data / f"{name}-{split}.tar" for split in SEEDS}
        self.images: dict[str, ImageData | RandomCrops] = {
            split: RandomCrops.open(file, size, self.shape[0], cache=self.folder)
            if config.crops
            else ImageData.open(file, size, self.shape[0], cache=False)
            for split, file in files.items()
        }

    def truth(self, split: str, item: int) -> torch.Tensor:
        """Return the image of an item, (1, C, H, W)."""
        data = self.images[split]
        return data.draw([image_of(item, len(data), SEEDS[split])], [item])

    def problem(self, split: str, task: str, kind: str, item: int) -> InverseProblem:
        """Return the problem as the user states it: right, or measured with another operator or twice the noise."""
        operator = family_from(task, self.shape).draw([item], self.shape, SEEDS[split])
        x, true, std = self.truth(split, item), operator, NOISE
        if kind == "noise":
            std = 2 * NOISE
        elif kind != "right":
            x, true = wrongly(x, operator, kind)
        y = InverseProblem.simulate(x, true, GaussianNoise(std), SEEDS[split], [item]).y
        return InverseProblem(y, operator, GaussianNoise(NOISE))

    def settings(self, task: str) -> Settings:
        """Return the settings of the sampler."""
        front = front_for(self.config.prior, False, task)
        return chosen(front, evaluations=self.config.evaluations).settings

    def file(self, split: str, task: str, kind: str, item: int, what: str = "") -> Path:
        """Return the file of what is stored of an item."""
        return self.folder / f"{split}-{task}-{self.settings(task).key}-{kind}-{item:03d}{what}.npy"

    def samples(self, split: str, task: str, kind: str, item: int, count: int) -> torch.Tensor:
        """Return samples (1, count, C, H, W), stored ones if there are enough."""
        file = self.file(split, task, kind, item)
        if file.exists() and len(stored := np.load(file, allow_pickle=False)) >= count:
            return torch.from_numpy(stored[None, :count])
        problem = self.problem(split, task, kind, item)
        drawn = (
            self.settings(task)
            .sampler(self.prior)
            .sample(problem, count, seed=SEEDS[split], items=[item], batch_size=count)
        )
        assert drawn.samples is not None
        np.save(file, drawn.samples[0].numpy())
        return drawn.samples

    def misses(self, split: str, task: str, items: Iterable[int]) -> dict[float, torch.Tensor]:
        """Return the missed pixels (n, scales) by level."""
        found: dict[float, list[torch.Tensor]] = {level: [] for level in self.config.levels}
        for item in items:
            drawn = self.samples(split, task, "right", item, self.config.samples)
            for level, rows in found.items():
                rows.append(interval_misses(drawn, self.truth(split, item), level))
        return {level: torch.cat(rows) for level, rows in found.items()}

    def statistics(self, split: str, task: str, kind: str, items: Iterable[int]) -> torch.Tensor:
        """Return the fit statistics (n, K)."""
        rows = []
        for item in items:
            file = self.file(split, task, kind, item, "-fit")
            if not file.exists():
                drawn = self.samples(split, task, kind, item, FIT_SAMPLES)
                found = fit_statistics(self.problem(split, task, kind, item), drawn, self.prior)
                np.save(file, found[0].numpy())
            rows.append(torch.from_numpy(np.load(file, allow_pickle=False)))
        return torch.stack(rows)

    def coverage(self, task: str) -> list[Record]:
        """Return the correction and the coverage of every level."""
        config = self.config
        learned, tested = (
            self.misses(split, task, range(count))
            for split, count in (("val", config.count), ("test", config.test_count))
        )
        levels = []
        for level in config.levels:
            correction = Correction.fit(learned[level], level)
            scale = int((SCALES - correction.scale).abs().argmin())
            before, after = (1 - tested[level][:, index] for index in (len(SCALES) // 2, scale))
            found = {
                name: [float(values.mean()), float(values.std() / len(values) ** 0.5)]
                for name, values in (("test_before", before), ("test_after", after))
            }
            levels.append(asdict(correction) | found)
        return levels

    def measure(self, task: str) -> Record:
        """Return coverage and p values of a task."""
        config = self.config
        levels = self.coverage(task)  # first: the fit uses its samples
        return {
            "task": task,
            "prior": config.prior.name,
            "levels": levels,
            "test_images": config.test_count,
            "samples": config.samples,
            "evaluations": config.evaluations,
            "references": max(config.count, config.references),
            "p_values": self.p_values(task) if config.alarms else {},
        }

    def p_values(self, task: str) -> dict[str, list[float]]:
        """Return the p values of right and of wrong measurements."""
        config = self.config
        reference = self.statistics("val", task, "right", range(max(config.count, config.references)))
        counts = {"right": max(config.test_count, config.rights)}
        counts |= dict.fromkeys(("noise", *WRONG[task]), config.alarms)
        return {
            kind: [
                conformal_p_value(reference, row) for row in self.statistics("test", task, kind, range(count))
            ]
            for kind, count in counts.items()
        }


def cell(record: Record) -> tuple[str, int, int]:
    """Return what a record is about, in the order of the page."""
    return record["prior"], record["evaluations"], TASKS.index(record["task"])


def wrongly(x: torch.Tensor, operator: Operator, kind: str) -> tuple[torch.Tensor, Operator]:
    """Return image and operator of a measurement with another operator, of the same shape."""
    if kind == "coarse":
        blocks = AveragePool(2 * operator.factor)(x)  # type: ignore[attr-defined]
        return F.interpolate(blocks, x.shape[2:], mode="nearest"), operator
    if isinstance(operator, AveragePool):
        height, width = x.shape[2:]
        inner = x[:, :, height // 4 : 3 * height // 4, width // 4 : 3 * width // 4]
        return inner, AveragePool(operator.factor // 2)
    if isinstance(operator, Blur):
        return x, replace(operator, kernel=operator.kernel.flip(-1))
    assert isinstance(operator, Mask)
    return x, Mask(operator.mask.roll((6, 6), (-2, -1)))


def draw(records: list[Record], file: Path) -> None:
    """Draw stated against measured coverage, one column per task: as sampled, and corrected."""
    tasks = [task for task in TASKS if any(record["task"] == task for record in records)]
    kinds = list(dict.fromkeys((record["prior"], record["evaluations"]) for record in records))
    figure = matplotlib_figure(3.2 * len(tasks) + 0.4, 4.0)
    for axis, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        axis.plot([30, 100], [30, 100], color="#BBBBBB", lw=1, ls="--")
        for record in (r for r in records if r["task"] == task):
            place = kinds.index((record["prior"], record["evaluations"]))
            colour = COLOURS[place % len(COLOURS)]
            stated = [100 * row["level"] for row in record["levels"]]
            before, after = (
                [[100 * value for value in row[name]] for row in record["levels"]]
                for name in ("test_before", "test_after")
            )
            kind = f"{record['prior']}, {record['evaluations']} evaluations"
            shifted = [level + 1.2 * (place - (len(kinds) - 1) / 2) for level in stated]
            for values, style, filled, what in (
                (before, "o:", "white", "as sampled"),
                (after, "o", colour, "corrected"),
            ):
                axis.errorbar(
                    shifted, *zip(*values, strict=True), fmt=style, mfc=filled, color=colour, lw=1, ms=5,
                    label=f"{kind}: {what}",
                )  # fmt: skip
        axis.set(title=TITLES[task], xlim=(45, 95), xlabel="stated coverage, %")
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("covered pixels of test images, %")
    shown = [axis.get_legend_handles_labels() for axis in figure.axes]
    legend = {name: handle for pair in shown for handle, name in zip(*pair, strict=True)}
    figure.legend(
        legend.values(), legend, loc="outside lower center", ncols=len(kinds), frameon=False, fontsize=8
    )
    figure.savefig(file, dpi=130)


def percent(pair: tuple[float, float] | list[float]) -> str:
    """Return a share and its standard error in %."""
    return f"{100 * pair[0]:.1f} ± {100 * pair[1]:.1f}"


def fields(records: list[Record]) -> dict[str, str]:
    """Return the tables, and the numbers of the prose."""
    coverage = [
        [
            record["prior"], TITLES[record["task"]], str(record["evaluations"]), f"{100 * row['level']:g} %",
            percent(row["test_before"]), f"{row['scale']:.2f}", percent(row["test_after"]),
            str(record["test_images"]), percent((row["after"], row["after_error"])), str(row["images"]),
        ]
        for record in records for row in record["levels"]
    ]  # fmt: skip
    head = ["prior", "task", "evaluations", "level", "as sampled, test", "scale", "corrected, test", "n test",
            "corrected, leave-one-out", "n"]  # fmt: skip
    alarms = [
        [
            record["prior"], TITLES[record["task"]], str(record["evaluations"]),
            KINDS.get(kind) or f"wrong operator: {WRONG[record['task']][kind]}",
            f"{sum(p < 0.01 for p in values)} of {len(values)}", f"{float(np.median(values)):.2g}",
            str(record["references"]),
        ]
        for record in records for kind, values in record["p_values"].items()
    ]  # fmt: skip
    gaps = [100 * abs(row["test_after"][0] - row["level"]) for record in records for row in record["levels"]]
    noticed = {kind: share(records, lambda found, kind=kind: found == kind) for kind in KINDS}
    wrong = "; ".join(
        f"{title} ({share([r for r in records if r['task'] == task], lambda found, kind=kind: found == kind)})"
        for task in TASKS
        if any(r["task"] == task for r in records)
        for kind, title in WRONG[task].items()
    )
    tests = sorted({record["test_images"] for record in records})
    number = str(tests[0]) if len(tests) == 1 else f"{tests[0]} to {tests[-1]}"
    return {
        "answer": f"Corrected intervals covered what they state within {math.ceil(10 * max(gaps)) / 10:.1f} points, on {number} test images of "
        f"every task. Twice the noise was noticed in {noticed['noise']} measurements. Of wrong operators: "
        f"{wrong}. {noticed['right']} right measurements gave a false alarm.",
        "coverage": markdown_table(head, coverage),
        "alarms": markdown_table(
            ["prior", "task", "evaluations", "measurement", "p < 0.01", "median p", "reference images"],
            alarms,
        ),
        "samples": str(records[0]["samples"]),
    }


def share(records: list[Record], chosen: Callable[[str], bool]) -> str:
    """Return how many measurements of some kinds gave an alarm."""
    found = [p < 0.01 for r in records for kind, ps in r["p_values"].items() if chosen(kind) for p in ps]
    return f"{sum(found)} of {len(found)}"


if __name__ == "__main__":
    tyro.cli(Config).run()
