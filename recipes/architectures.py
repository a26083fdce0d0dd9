"""HDiT or U-Net for a 64 x 64 prior on a CPU? Both trained for the same processor time, judged on held-out images.

    python recipes/architectures.py --data path/to/data --minutes 10

Each network is first trained for a few steps to learn what a step costs, then from the start for as many steps as the time
allows, with the same batch, schedule, optimiser and learning-rate shape. What counts is the denoising loss on images of
people that the training never saw, with the same times and noise for both.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from lavps.amortization.checkpoint import read_config
from lavps.cli import main as command_line
from lavps.evaluation.benchmark.report import markdown_table

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Config:
    """A comparison at equal processor time."""

    data: Path = Path("data")
    """Folder of faces64-train.tar and faces64-val.tar."""
    runs: Path = Path("runs/architectures")
    """Folder of the trainings."""
    pages: Path = Path("benchmarks")
    """Folder of the page."""
    minutes: float = 10.0
    """Processor time of each."""
    networks: tuple[str, ...] = ("unet-small", "hdit-small")
    """What is compared."""
    rates: tuple[float, ...] = (5e-4, 1e-3)
    """Learning rates tried for each: the better one counts."""
    batch_size: int = 48
    """Images a step."""


def train(
    config: Config, network: str, rate: float, steps: int, folder: Path, validation_images: int = 256
) -> float:
    """Processor seconds of a training."""
    start = time.process_time()
    options = {
        "data": config.data / "faces64-train.tar", "validation": config.data / "faces64-val.tar", "output": folder,
        "size": 64, "network": network, "steps": steps, "batch-size": config.batch_size, "learning-rate": rate,
        "warmup-steps": max(1, steps // 8), "ema-decay": 0.99, "precision": "bf16", "validation-images": validation_images,
        "validate-every": steps, "checkpoint-every": steps, "preview-every": 10 * steps, "log-every": max(1, steps // 20),
    }  # fmt: skip
    command_line(
        [
            "train",
            "prior",
            *[word for name, value in options.items() for word in (f"--{name}", str(value))],
            "--cpu",
        ]
    )
    return time.process_time() - start


def step_seconds(config: Config, network: str) -> float:
    """Processor seconds of a training step, from two short trainings."""
    folder = config.runs / f"{network}-probe"
    known = config.runs / f"{network}-step.json"
    if not known.exists():
        seconds = []
        for steps in (2, 12):
            shutil.rmtree(folder, ignore_errors=True)
            seconds.append(train(config, network, config.rates[0], steps, folder, validation_images=8))
        shutil.rmtree(folder)
        known.write_text(json.dumps((seconds[1] - seconds[0]) / 10))
    return float(json.loads(known.read_text()))


def main(config: Config) -> None:
    records = []
    for network in config.networks:
        steps = max(20, round(60 * config.minutes / step_seconds(config, network)))
        for rate in config.rates:
            folder = config.runs / f"{network}-{rate:g}"
            known = folder / "record.json"
            if not known.exists():
                shutil.rmtree(folder, ignore_errors=True)
                seconds = train(config, network, rate, steps, folder)
                loss = read_config(folder / "model").training["validation"]["loss"]
                record = {"network": network, "rate": rate, "steps": steps, "seconds": seconds, "loss": loss}
                known.write_text(json.dumps(record))
            records.append(json.loads(known.read_text()))
            print(records[-1], flush=True)
    config.pages.mkdir(parents=True, exist_ok=True)
    (config.pages / "architectures.json").write_text(json.dumps(records, indent=1) + "\n")
    rows = [
        [
            r["network"],
            f"{r['rate']:g}",
            f"{r['steps'] * config.batch_size}",
            f"{r['seconds'] / 60:.1f}",
            f"{r['loss']:.4f}",
        ]
        for r in records
    ]
    best = {
        network: min(r["loss"] for r in records if r["network"] == network) for network in config.networks
    }
    order = sorted(best, key=lambda network: best[network])
    verdict = f"{order[0]} is ahead: its loss is {1 - best[order[0]] / best[order[-1]]:.1%} below that of {order[-1]}."
    text = (
        (HERE / "architectures_page.md")
        .read_text()
        .format(
            verdict=verdict,
            table=markdown_table(
                ["network", "learning rate", "images seen", "processor minutes", "held-out loss"], rows
            ),
        )
    )
    (config.pages / "architectures.md").write_text(text)


if __name__ == "__main__":
    main(tyro.cli(Config))
