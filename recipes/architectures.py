"""HDiT or U-Net for a 64 x 64 prior on a CPU? Both trained for the same processor time, judged on held-out images.

    python recipes/architectures.py --data path/to/data --minutes 10

A step of each is timed first, the networks taking turns; then each is trained for as many steps as the time allows, with the
same batch, schedule, optimiser and learning-rate shape. What counts is the denoising loss on images of people that the
training never saw, with the same times and noise for both.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import tyro

from lavps.amortization.checkpoint import read_config
from lavps.cli import main as command_line
from lavps.cli.choices import describe_network
from lavps.evaluation.benchmark.report import markdown_table
from lavps.networks import build_network

HERE = Path(__file__).parent
TURNS = 6  # the first is not counted


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
    rates: dict[str, tuple[float, ...]] = field(
        default_factory=lambda: {"unet-small": (1e-3, 2e-3), "hdit-small": (5e-4, 1e-3)}
    )
    """Networks, and the learning rates tried of each: the better one counts."""
    batch_size: int = 48
    """Images a step."""


def train(config: Config, network: str, rate: float, steps: int, folder: Path) -> float:
    """Processor seconds of a training."""
    start = time.process_time()
    options = {
        "data": config.data / "faces64-train.tar", "validation": config.data / "faces64-val.tar", "output": folder,
        "size": 64, "network": network, "steps": steps, "batch-size": config.batch_size, "learning-rate": rate,
        "warmup-steps": max(1, steps // 8), "ema-decay": 0.99, "precision": "bf16", "validation-images": 256,
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


def prices(config: Config) -> dict[str, dict[str, float]]:
    """Processor seconds of a training step and of a forward pass of 8 images, the networks taking turns."""
    known = config.runs / "prices.json"
    if known.exists():
        return json.loads(known.read_text())  # type: ignore[no-any-return]
    networks = {name: build_network(describe_network(name, 3, 3)) for name in config.rates}
    seconds: dict[str, dict[str, list[float]]] = {name: {"step": [], "forward": []} for name in networks}
    for name in list(networks) * TURNS:
        for what, count in (("step", config.batch_size), ("forward", 8)):
            x, t = torch.randn(count, 3, 64, 64), torch.rand(count)
            start = time.process_time()
            with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(what == "step"):
                out = networks[name](x, t)
                if what == "step":
                    out.square().mean().backward()
            seconds[name][what].append(time.process_time() - start)
    found = {
        name: {what: statistics.median(times[1:]) for what, times in both.items()}
        for name, both in seconds.items()
    }
    config.runs.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps(found))
    return found


def main(config: Config) -> None:
    records = []
    for network, price in prices(config).items():
        steps = max(20, round(60 * config.minutes / price["step"]))
        for rate in config.rates[network]:
            folder = config.runs / f"{network}-{rate:g}"
            known = folder / "record.json"
            if not known.exists():
                shutil.rmtree(folder, ignore_errors=True)
                seconds = train(config, network, rate, steps, folder)
                loss = read_config(folder / "model").training["validation"]["loss"]
                record = {
                    "network": network, "rate": rate, "steps": steps, "seconds": seconds, "loss": loss, "forward": price["forward"],
                }  # fmt: skip
                known.write_text(json.dumps(record))
            records.append(json.loads(known.read_text()))
            print(records[-1], flush=True)
    config.pages.mkdir(parents=True, exist_ok=True)
    (config.pages / "architectures.json").write_text(json.dumps(records, indent=1) + "\n")
    rows = [
        [
            r["network"],
            f"{r['rate']:g}",
            f"{r['steps'] * config.batch_size:,}",
            f"{r['seconds'] / 60:.1f}",
            f"{r['loss']:.4f}",
            f"{1000 * r['forward'] / 8:.1f}",
        ]
        for r in records
    ]
    best = {network: min(r["loss"] for r in records if r["network"] == network) for network in config.rates}
    order = sorted(best, key=lambda network: best[network])
    verdict = f"{order[0]} is ahead: its loss is {1 - best[order[0]] / best[order[-1]]:.1%} below that of {order[-1]}."
    text = (
        (HERE / "architectures_page.md")
        .read_text()
        .format(
            verdict=verdict,
            table=markdown_table(
                [
                    "network",
                    "learning rate",
                    "images seen",
                    "processor minutes",
                    "held-out loss",
                    "ms a forward",
                ],
                rows,
            ),
        )
    )
    (config.pages / "architectures.md").write_text(text)


if __name__ == "__main__":
    main(tyro.cli(Config))
