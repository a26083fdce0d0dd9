"""What the bulk engine costs beside the sampling: throughput over a bare loop, and memory over many files.

    python recipes/bulk_throughput.py

A tiny network with random weights restores made-up files: what is measured is the engine. The bare loop reads,
samples, encodes and writes the same files in the same batches; it runs before and after the engine, whose
result must be the same to the last bit. Writes benchmarks/bulk_throughput.json and .md.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import torch
import tyro
from PIL import Image

import lavps
from lavps.amortization.checkpoint import ModelConfig, save_model
from lavps.networks import build_seeded
from lavps.restoration import Job, Measuring, Restorer, encode_image, write_atomically
from lavps.restoration.bulk import Bulk, Cluster, Recipe, Tally
from lavps.restoration.bulk.calibrating import calibrate
from lavps.restoration.bulk.costs import Workload, forecast
from lavps.restoration.files import restore_files
from lavps.restoration.presets import FrontEntry

BATCH = 16
NETWORK = {"kind": "unet", "widths": [16], "depth": 1, "attention": [], "head_dim": 16, "condition_width": 16}


def make(folder: Path, count: int, size: int, steps: int) -> Recipe:
    """Files, a prior of their size, and how they are restored."""
    description = NETWORK | {"in_channels": 3, "out_channels": 3}
    config = ModelConfig("prior", description, lavps.Flow(), (3, size, size), "velocity", "time")
    save_model(folder / "prior", build_seeded(description, 0), config)
    (folder / "in").mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        levels = random.integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(levels).save(folder / "in" / f"{number:05d}.png")
    job = Job(str(folder / "prior"), measuring=Measuring("denoise", 0.05))
    return Recipe.of(replace(job, settings=lavps.restoration.Settings(num_steps=steps)))


def bare(folder: Path, recipe: Recipe) -> float:
    """Images a second of a plain loop, its first batch not counted."""
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
    """Bytes of this process and of all that it has started."""
    total, own = 0, psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended
            total += process.memory_info().rss
    return total


def engine(folder: Path, recipe: Recipe) -> tuple[Tally, list[tuple[int, int]]]:
    """The engine with one worker, and the memory of all processes by the number of files done."""
    memory: list[tuple[int, int]] = []
    done, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.5):
            memory.append((done[0], resident()))

    def progress(tally: Tally) -> None:
        done[0] = tally.items

    watcher = threading.Thread(target=watch)
    watcher.start()
    bulk = Bulk(str(folder / "in"), str(folder / "out"), recipe, batch=BATCH, cluster=Cluster(1))
    tally = bulk.run(progress)
    stop.set()
    watcher.join()
    return tally, memory


def predicted(workers: int, files: int) -> dict[str, float]:
    """Images a second of so many workers, as the cost model says and as they are."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        recipe = make(folder, files, 64, 5)
        calibration = calibrate(recipe.job, BATCH, measure_start=False)
        work = Workload(files, FrontEntry.of(recipe.settings(None), False), stragglers=0.0)
        bulk = Bulk(str(folder / "in"), str(folder / "out"), recipe, batch=BATCH, cluster=Cluster(workers))
        rate = bulk.run().rate
        return {
            "workers": workers,
            "predicted": forecast(calibration, work, workers).rate,
            "measured": rate,
        }


@dataclass
class Config:
    """How much is measured."""

    files: int = 256  # of 64 x 64 pixels, for the throughput
    steps: int = 20  # of the sampler, for the throughput
    many: int = 2000  # of 8 x 8 pixels, for the memory


def main(settings: Config) -> None:
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
    write(values, settings)


def _quarters(many: int) -> list[tuple[int, int]]:
    return [(many * part // 4, many * (part + 1) // 4) for part in range(4)]


def write(values: dict[str, object], settings: Config) -> None:
    folder = Path(__file__).parent.parent / "benchmarks"
    (folder / "bulk_throughput.json").write_text(json.dumps(values, indent=2) + "\n")
    before, after = values["bare_images_per_second"]  # type: ignore[misc]
    peaks = ", ".join(f"{peak:.0f}" for peak in values["peak_mebibytes_by_quarter"])  # type: ignore[attr-defined]
    workers = "; ".join(
        f"{one['workers']} worker(s), {one['predicted']:.2f} predicted, {one['measured']:.2f} measured"
        for one in values["workers"]  # type: ignore[attr-defined]
    )
    (folder / "bulk_throughput.md").write_text(
        f"""# What the bulk engine costs

`python recipes/bulk_throughput.py --files {settings.files} --steps {settings.steps} --many {settings.many}`, on two
hyperthreads whose load was {values["load"]:.1f}.

- {settings.files} files of 64 x 64 pixels in batches of {BATCH}: the engine with one worker restores
  {values["engine_images_per_second"]:.3g} images a second, a bare loop {before:.3g} before and {after:.3g} after it:
  **{values["ratio"]:.3f}** of the bare loop. {values["sampling_share"]:.1%} of the worker's time is sampling. The
  results are {"identical to the last bit" if values["identical"] else "DIFFERENT"}.
- {settings.many} files of 8 x 8 pixels: the peaks of all processes' memory in the four quarters of the run are {peaks}
  MiB.
- `lavps plan` and what came of it, in images a second: {workers}. The calibration has a hyperthread to itself; two workers
  share a core.
"""
    )


if __name__ == "__main__":
    main(tyro.cli(Config))
