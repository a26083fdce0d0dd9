"""Overhead of the bulk engine: throughput relative to a plain loop, and memory over many files.

    python -m recipes.bulk_throughput.run

A tiny network with random weights restores synthetic files, so the engine dominates the measurement. The plain loop reads,
samples, encodes and writes the same files in the same batches. It runs before and after the engine, and the results
must be identical.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import tyro
from PIL import Image

import lavps
from lavps.apps.bulk import Bulk, Cluster, Recipe, RunStats
from lavps.apps.bulk.calibrating import calibrate
from lavps.apps.bulk.costs import Workload, forecast
from lavps.benchmark.report import markdown_table
from lavps.guidance import Gradient
from lavps.io import encode_image, write_atomically
from lavps.restoration import MeasurementSpec, RestorationConfig, Restorer
from lavps.restoration.files import restore_files
from lavps.restoration.presets import FrontEntry
from lavps.samplers import UNBOUND, Settings

from ..common.pages import read, write_json, write_page
from ..common.tiny import write_tiny_prior

BATCH = 16


def make(folder: Path, count: int, size: int, steps: int) -> Recipe:
    """Write files and a prior of their size; return how they are restored."""
    write_tiny_prior(folder / "prior", size)
    (folder / "in").mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        levels = random.integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(levels).save(folder / "in" / f"{number:05d}.png")
    job = RestorationConfig(str(folder / "prior"), measuring=MeasurementSpec("denoise", 0.05))
    guidance = Gradient(1, lavps.WhitenedGradient())
    return Recipe.from_config(
        replace(job, settings=Settings(lavps.MGDM(UNBOUND, num_steps=steps, guidance=guidance)))
    )


def bare(folder: Path, recipe: Recipe) -> float:
    """Return images per second of a plain loop, without its first batch."""
    job = recipe.job
    restorer = Restorer.load(job.prior, settings=job.settings)
    (folder / "bare").mkdir(exist_ok=True)
    files, marks = sorted((folder / "in").iterdir()), []
    for start in range(0, len(files), BATCH):
        chunk = files[start : start + BATCH]
        measured = [job.measuring.read(file, restorer.image_shape) for file in chunk]
        for file, one in zip(chunk, restore_files(restorer, measured, 1, [0] * len(chunk)), strict=True):
            write_atomically(folder / "bare" / file.name, encode_image(one.samples[0], one.measured.like))
        marks.append(time.perf_counter())
    return (len(files) - BATCH) / (marks[-1] - marks[0])


def resident() -> int:
    """Return the resident bytes of this process and of its children."""
    total, own = 0, psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended
            total += process.memory_info().rss
    return total


def engine(folder: Path, recipe: Recipe) -> tuple[RunStats, list[tuple[int, int]]]:
    """Run the engine with one worker; return the memory of all processes by the number of files done."""
    memory: list[tuple[int, int]] = []
    done, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.5):
            memory.append((done[0], resident()))

    def progress(tally: RunStats) -> None:
        done[0] = tally.items

    watcher = threading.Thread(target=watch)
    watcher.start()
    bulk = Bulk(str(folder / "in"), str(folder / "out"), recipe, batch=BATCH, cluster=Cluster(1))
    tally = bulk.run(progress)
    stop.set()
    watcher.join()
    return tally, memory


def predicted(workers: int, files: int) -> dict[str, float]:
    """Return images per second of some workers, predicted and measured."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        recipe = make(folder, files, 64, 5)
        calibration = calibrate(recipe.job, BATCH, measure_start=False)
        work = Workload(files, FrontEntry.counted(recipe.settings(None)), stragglers=0.0)
        bulk = Bulk(str(folder / "in"), str(folder / "out"), recipe, batch=BATCH, cluster=Cluster(workers))
        rate = bulk.run().rate
        return {
            "workers": workers,
            "predicted": forecast(calibration, work, workers).rate,
            "measured": rate,
        }


@dataclass(frozen=True)
class Config:
    """Size of the measurement."""

    files: int = 256
    """Number of files of 64 x 64 pixels, for the throughput."""
    steps: int = 20
    """Number of diffusion steps K, for the throughput."""
    many: int = 2000
    """Number of files of 8 x 8 pixels, for the memory."""
    pages: Path = Path("benchmarks")
    """Folder of the page and its numbers."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without measuring."""


def measure(settings: Config) -> dict[str, Any]:
    """Time the engine between two runs of the plain loop, then follow its memory over many files."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        recipe = make(folder, settings.files, 64, settings.steps)
        before = bare(folder, recipe)
        tally, _ = engine(folder, recipe)
        after = bare(folder, recipe)
        same = all(
            (folder / "out" / file.name).read_bytes() == file.read_bytes()
            for file in (folder / "bare").iterdir()
        )
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _, memory = engine(folder, make(folder, settings.many, 8, 4))
    parts = [
        [bytes_ for done, bytes_ in memory if low < done <= high] for low, high in _quarters(settings.many)
    ]
    peaks = [max(part, default=0) / 2**20 for part in parts]
    values = {
        "bare_images_per_second": [before, after],
        "engine_images_per_second": tally.rate,
        "ratio": tally.rate / ((before + after) / 2),
        "identical": same,
        "sampling_share": tally.seconds / tally.fresh * tally.rate,
        "peak_mebibytes_by_quarter": peaks,
        "workers": [predicted(workers, settings.files) for workers in (1, 2)],
        "load": os.getloadavg()[1],
    }
    return values


def _quarters(many: int) -> list[tuple[int, int]]:
    return [(many * part // 4, many * (part + 1) // 4) for part in range(4)]


def main(config: Config) -> None:
    """Measure, or read what was measured, and write the page."""
    values = read(config.pages, "bulk_throughput") if config.page_only else measure(config)
    write_json(config.pages, "bulk_throughput", values, indent=2)
    workers = [
        [str(one["workers"]), f"{one['predicted']:.2f}", f"{one['measured']:.2f}"]
        for one in values["workers"]
    ]
    before, after = values["bare_images_per_second"]
    write_page(
        config.pages, "bulk_throughput", files=config.files, steps=config.steps, many=config.many, batch=BATCH,
        load=f"{values['load']:.1f}", engine=f"{values['engine_images_per_second']:.3g}", before=f"{before:.3g}", after=f"{after:.3g}",
        ratio=f"{values['ratio']:.3f}", share=f"{values['sampling_share']:.1%}", same="identical" if values["identical"] else "DIFFERENT",
        peaks=", ".join(f"{peak:.0f}" for peak in values["peak_mebibytes_by_quarter"]),
        workers=markdown_table(["workers", "predicted images per second", "measured images per second"], workers),
    )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Config))
