"""Coverage of intervals before and after a conformal correction, and p values of wrong measurements.

    python -m recipes.calibration.run --data DATA --count 256 --test-count 300     # the whole study
    python -m recipes.calibration.run --data DATA --tasks sr4 --count 32           # a part of it

The correction is learned on validation images and tested on test images. Samples and statistics are stored in the
working folder, per image, so that a stopped study continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from lavps import GaussianNoise, InverseProblem, load_prior
from lavps.benchmark.report import markdown_table
from lavps.evaluation import FIT_SAMPLES, Correction, conformal_p_value, fit_statistics, interval_misses
from lavps.evaluation.conformal import SCALES
from lavps.operators import AveragePool, Blur, Mask, Operator
from lavps.operators.registry import family_from
from lavps.restoration.presets import chosen, front_for
from lavps.training.data import ImageData, image_of

from ..common.labels import TITLES
from ..common.pages import read, write_json, write_page
from ..common.study import TASKS

Record = dict[str, Any]
STUDY = "calibration"
NOISE = 0.05
SEEDS = {"val": 0, "test": 1}
FIRST_REFERENCE, FIRST_RIGHT = 48, 100  # first further items of the two splits
WRONG = {
    "sr4": "factor 2 on the inner half of the image",
    "motion-blur": "mirrored kernel",
    "centre-box": "box moved by 6 pixels",
}


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
    count: int = 48
    """Number of validation images, on which the correction is learned."""
    test_count: int = 48
    """Number of test images; 0 leaves the coverage out and measures the p values alone."""
    alarms: int = 16
    """Number of test images with a wrong operator, and with twice the noise."""
    references: int = 144
    """End of the items of further validation images, with which the fit is compared."""
    rights: int = 124
    """End of the items of further test images with the right operator and noise."""
    evaluations: int = 8
    """Number of denoiser evaluations per sample."""
    samples: int = 19
    """Number of samples per image."""
    levels: tuple[float, ...] = (0.5, 0.8, 0.9)
    """Levels of the intervals."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""

    def run(self) -> None:
        """Measure, store the numbers, and write the page."""
        if not self.page_only:
            study = Study(self)
            stored = read(self.pages, STUDY) if (self.pages / f"{STUDY}.json").exists() else []
            for task in self.tasks:  # records of other tasks stay
                stored = [record for record in stored if record["task"] != task] + [study.measure(task)]
                write_json(self.pages, STUDY, sorted(stored, key=lambda record: TASKS.index(record["task"])))
        write_page(self.pages, STUDY, **fields(read(self.pages, STUDY)))


class Study:
    """Prior and images of the study."""

    def __init__(self, config: Config) -> None:
        self.config, self.prior = config, load_prior(config.prior)
        self.shape = tuple(self.prior.image_shape)  # type: ignore[attr-defined]
        name, size = config.prior.name, self.shape[1:]
        self.images = {
            split: ImageData.open(config.data / f"{name}-{split}.tar", size, self.shape[0], cache=False)
            for split in SEEDS
        }
        config.work.mkdir(parents=True, exist_ok=True)

    def truth(self, split: str, item: int) -> torch.Tensor:
        """Return the image of an item, (1, C, H, W)."""
        data = self.images[split]
        return data[image_of(item, len(data), SEEDS[split])][None]

    def problem(self, split: str, task: str, kind: str, item: int) -> InverseProblem:
        """Return the problem as the user states it: right, or measured with another operator or twice the noise."""
        operator = family_from(task, self.shape).draw([item], self.shape, SEEDS[split])
        x, true, std = self.truth(split, item), operator, NOISE
        if kind == "noise":
            std = 2 * NOISE
        elif kind == "wrong":
            x, true = wrongly(x, operator)
        y = InverseProblem.simulate(x, true, GaussianNoise(std), SEEDS[split], [item]).y
        return InverseProblem(y, operator, GaussianNoise(NOISE))

    def samples(self, split: str, task: str, kind: str, item: int, count: int) -> torch.Tensor:
        """Return samples (1, count, C, H, W), stored ones if there are enough."""
        file = self.config.work / f"{split}-{task}-{kind}-{item:03d}.npy"
        if file.exists() and len(stored := np.load(file, allow_pickle=False)) >= count:
            return torch.from_numpy(stored[None, :count])
        settings = chosen(
            front_for(self.config.prior, False, task), evaluations=self.config.evaluations
        ).settings
        problem = self.problem(split, task, kind, item)
        drawn = settings.sampler(self.prior).sample(
            problem, count, seed=SEEDS[split], items=[item], batch_size=count
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
            file = self.config.work / f"{split}-{task}-{kind}-{item:03d}-fit.npy"
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
        levels = self.coverage(task) if config.test_count else []
        known = sorted({*range(config.count), *range(FIRST_REFERENCE, config.references)})
        right = sorted({*range(config.test_count), *range(FIRST_RIGHT, config.rights)})
        reference = self.statistics("val", task, "right", known)
        p_values = {
            kind: [conformal_p_value(reference, row) for row in self.statistics("test", task, kind, items)]
            for kind, items in (("right", right), ("noise", range(config.alarms)), ("wrong", range(config.alarms)))
        }  # fmt: skip
        return {
            "task": task,
            "levels": levels,
            "test_images": config.test_count,
            "samples": config.samples,
            "evaluations": config.evaluations,
            "references": len(known),
            "p_values": p_values,
        }


def wrongly(x: torch.Tensor, operator: Operator) -> tuple[torch.Tensor, Operator]:
    """Return image and operator of a measurement with another operator, of the same shape."""
    if isinstance(operator, AveragePool):
        height, width = x.shape[2:]
        inner = x[:, :, height // 4 : 3 * height // 4, width // 4 : 3 * width // 4]
        return inner, AveragePool(operator.factor // 2)
    if isinstance(operator, Blur):
        return x, replace(operator, kernel=operator.kernel.flip(-1))
    assert isinstance(operator, Mask)
    return x, Mask(operator.mask.roll((6, 6), (-2, -1)))


def fields(records: list[Record]) -> dict[str, str]:
    """Return the tables, and the numbers of the prose."""

    def percent(pair: tuple[float, float] | list[float]) -> str:
        return f"{100 * pair[0]:.1f} ± {100 * pair[1]:.1f}"

    coverage = [
        [
            TITLES[record["task"]], f"{100 * row['level']:g} %", percent((row["before"], row["before_error"])),
            f"{row['scale']:.2f}", percent((row["after"], row["after_error"])), str(row["images"]),
            percent(row["test_before"]), percent(row["test_after"]), str(record["test_images"]),
        ]
        for record in records for row in record["levels"]
    ]  # fmt: skip
    head = ["task", "level", "as sampled", "scale", "corrected, leave-one-out", "n",
            "as sampled, test", "corrected, test", "n test"]  # fmt: skip
    names = {"right": "right operator and noise", "noise": "twice the noise"}
    alarms = [
        [
            TITLES[record["task"]], names.get(kind, f"wrong operator: {WRONG[record['task']]}"),
            f"{sum(p < 0.01 for p in values)} of {len(values)}", f"{float(np.median(values)):.2g}",
            f"{min(values):.2g}", str(record["references"]),
        ]
        for record in records for kind, values in record["p_values"].items()
    ]  # fmt: skip
    gaps = [100 * (row["after"] - row["level"]) for record in records for row in record["levels"]]
    false = [p < 0.01 for record in records for p in record["p_values"]["right"]]
    return {
        "coverage": markdown_table(head, coverage),
        "alarms": markdown_table(
            ["task", "measurement", "p < 0.01", "median p", "smallest p", "reference images"], alarms
        ),
        "largest_gap": f"{max(map(abs, gaps)):.1f}",
        "false": f"{sum(false)} of {len(false)}",
        "samples": str(records[0]["samples"]),
        "evaluations": str(records[0]["evaluations"]),
    }


if __name__ == "__main__":
    tyro.cli(Config).run()
