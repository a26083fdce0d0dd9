"""Rows of a benchmark, written by hand."""

from __future__ import annotations

import random

from lavps.benchmark.records import append_rows
from lavps.benchmark.runs import RunFolder
from lavps.samplers import Settings
from support.benchmarks import gibbs

COUNT = 6


def write_rows(folder: RunFolder, method: Settings, lpips: float, counts: tuple[int, int, int]) -> None:
    """Rows with this mean: images differ much, methods on one image little."""
    draw = random.Random(method.key)
    folder.describe(method, {})
    levels = [0.05 * (row - (COUNT - 1) / 2) / COUNT for row in range(COUNT)]
    rows = [
        {
            "key": method.key, "item": row, "file": f"{row}.png", "seed": 0, "psnr": 30.0, "ssim": 0.9,
            "lpips": lpips + level + 1e-5 * draw.random(), "chi_square": 1.0, "forwards": counts[0],
            "backwards": counts[1], "model_forwards": counts[2], "acceptance": 0.5 if counts[2] else None,
        }
        for row, level in enumerate(levels)
    ]  # fmt: skip
    append_rows(folder.path / f"{method.key}.jsonl", rows)


def mgdm(k: int) -> Settings:
    return gibbs(k)
