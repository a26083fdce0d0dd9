"""How far the noise that is estimated from a measurement is from the true one.

python -m recipes.noise_estimates.run --data DATA

DATA holds ``photos-test.tar`` and ``synthfaces64-test.tar``. Measurements are rounded to 8 bits, as in a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import tyro
from torch import Tensor

import lavps
from lavps.benchmark.report import markdown_table
from lavps.evaluation.noise_estimate import estimate_noise
from lavps.operators.registry import family_from
from lavps.training.data import ImageData

from ..common.labels import TITLES
from ..common.pages import read, write_json, write_page

IMAGES = {"photographs": ("photos-test.tar", 256), "faces": ("synthfaces64-test.tar", 64)}


@dataclass(frozen=True)
class Config:
    """Settings of the study."""

    data: Path = Path("data")
    """Folder of the tars."""
    pages: Path = Path("benchmarks")
    """Folder of the page and its numbers."""
    tasks: tuple[str, ...] = ("denoise", "centre-box", "sr2", "sr4", "motion-blur")
    """Tasks."""
    levels: tuple[float, ...] = (0.01, 0.05, 0.1, 0.2)
    """Standard deviations of the noise."""
    count: int = 60
    """Number of images of each kind."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without measuring."""


def estimates(images: Tensor, task: str, std: float) -> list[tuple[float, float]]:
    """Return the estimate and its uncertainty for each image, relative to the true standard deviation."""
    shape = tuple(images.shape[1:])
    operator = family_from(task, shape).draw(range(len(images)), shape)
    problem = lavps.InverseProblem.simulate(images, operator, std, seed=1)
    stored = ((problem.y + 1.0) * 127.5).round().clamp(0, 255) / 127.5 - 1.0
    seen = problem.operator.observed(problem.y)
    known = [None] * len(images) if seen is None else list(seen.expand(problem.y.shape))
    found = [estimate_noise(y, mask) for y, mask in zip(stored, known, strict=True)]
    return [(round(value / std, 4), round(error / std, 4)) for value, error in found]


def table(rows: list[dict[str, Any]]) -> str:
    """Return the errors of one kind of images."""
    lines = []
    for row in rows:
        errors = [abs(value - 1.0) for value, _ in row["estimates"]]
        covered = [abs(value - 1.0) <= 2 * error for value, error in row["estimates"]]
        lines.append(
            [
                TITLES.get(row["task"], row["task"]),
                f"{row['std']:g}",
                f"{median(value - 1.0 for value, _ in row['estimates']):+.1%}",
                f"{quantiles(errors, n=10)[-1]:.1%}",
                f"{sum(error <= 0.1 for error in errors) / len(errors):.0%}",
                f"{sum(covered) / len(covered):.0%}",
            ]
        )
    head = [
        "task",
        "noise",
        "median error",
        "90 % of the errors below",
        "within 10 %",
        "within 2 uncertainties",
    ]
    return markdown_table(head, lines)


def main(config: Config) -> None:
    """Measure, unless only the page is wanted, and write the page."""
    torch.set_num_threads(1)
    if not config.page_only:
        rows = []
        for kind, (tar, size) in IMAGES.items():
            data = ImageData.open(config.data / tar, size, cache=False)
            images = torch.stack([data[n] for n in range(min(config.count, len(data)))])
            for task in config.tasks:
                for std in config.levels:
                    found = estimates(images, task, std)
                    rows.append({"images": kind, "task": task, "std": std, "estimates": found})
        write_json(config.pages, "noise_estimates", rows, indent=None)
    rows = read(config.pages, "noise_estimates")
    tables = {kind: table([row for row in rows if row["images"] == kind]) for kind in IMAGES}
    write_page(config.pages, "noise_estimates", count=len(rows[0]["estimates"]), **tables)


if __name__ == "__main__":
    main(tyro.cli(Config))
