"""HDiT or U-Net as a 64 x 64 prior on a CPU: both are trained for the same CPU time and compared on held-out images.

    python -m recipes.architectures.run --data DATA

A training step of each network is timed first, alternating between the networks. Each is then trained for as many steps
as the time allows, with the same batches, schedule, optimizer and shape of the learning-rate schedule. The held-out loss
uses images of other people, with the same times and noise for all networks.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import tyro

from lavps.benchmark.report import markdown_table
from lavps.checkpoints.folder import read_config
from lavps.cli.choices import describe_network
from lavps.nn import build_network

from ..common.pages import read, write_json, write_page
from ..common.training import train

TURNS = 6  # the first is not counted


@dataclass(frozen=True)
class Config:
    """Comparison at the same CPU time."""

    data: Path = Path("data")
    """Folder of faces64-train.tar and faces64-val.tar."""
    runs: Path = Path("runs/architectures")
    """Folder of the training runs."""
    pages: Path = Path("benchmarks")
    """Folder of the page."""
    minutes: float = 8.0
    """CPU minutes per training run."""
    rates: dict[str, tuple[float, ...]] = field(
        default_factory=lambda: {"unet-small": (1e-3, 2e-3), "hdit-small": (5e-4, 1e-3)}
    )
    """Networks, and the learning rates tried for each; the better one counts."""
    batch_size: int = 48
    """Number of images per step."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without training."""


def train_network(config: Config, network: str, rate: float, steps: int, folder: Path) -> float:
    """Train a network and return its CPU seconds."""
    start = time.process_time()
    options = {
        "data": config.data / "faces64-train.tar", "validation": config.data / "faces64-val.tar", "output": folder,
        "size": 64, "network": network, "steps": steps, "batch-size": config.batch_size, "learning-rate": rate,
        "warmup-steps": max(1, steps // 8), "ema-decay": 0.99, "precision": "bf16", "validation-images": 256,
        "validate-every": steps, "checkpoint-every": steps, "preview-every": 10 * steps, "log-every": max(1, steps // 20),
    }  # fmt: skip
    train("prior", options)
    return time.process_time() - start


def prices(config: Config) -> dict[str, dict[str, float]]:
    """Return CPU seconds of a training step and of a forward pass of 8 images, alternating between the networks."""
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


def measure(config: Config) -> list[dict[str, Any]]:
    """Train every network with every learning rate, or read what is done."""
    records = []
    for network, price in prices(config).items():
        steps = max(20, round(60 * config.minutes / price["step"]))
        for rate in config.rates[network]:
            folder = config.runs / f"{network}-{rate:g}"
            known = folder / "record.json"
            if not known.exists():
                shutil.rmtree(folder, ignore_errors=True)
                seconds = train_network(config, network, rate, steps, folder)
                loss = read_config(folder / "model").training["validation"]["loss"]
                record = {
                    "network": network, "rate": rate, "steps": steps, "seconds": seconds, "loss": loss, "forward": price["forward"],
                }  # fmt: skip
                known.write_text(json.dumps(record))
            records.append(json.loads(known.read_text()))
            print(records[-1], flush=True)
    return records


def main(config: Config) -> None:
    """Measure, or read what was measured, and write the page."""
    records = read(config.pages, "architectures") if config.page_only else measure(config)
    write_json(config.pages, "architectures", records)
    head = ["network", "learning rate", "images seen", "CPU minutes", "held-out loss", "ms per forward pass"]
    rows = [
        [r["network"], f"{r['rate']:g}", f"{r['steps'] * config.batch_size:,}", f"{r['seconds'] / 60:.1f}",
         f"{r['loss']:.4f}", f"{1000 * r['forward'] / 8:.1f}"]
        for r in records
    ]  # fmt: skip
    best = {network: min(r["loss"] for r in records if r["network"] == network) for network in config.rates}
    first, *_, last = sorted(best, key=lambda network: best[network])
    write_page(
        config.pages,
        "architectures",
        verdict=f"The best held-out loss of {first} is {1 - best[first] / best[last]:.1%} below that of {last}.",
        table=markdown_table(head, rows),
    )


if __name__ == "__main__":
    main(tyro.cli(Config))
