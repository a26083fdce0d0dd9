"""Load, memory and faults of the service, started as a user starts it.

    python -m recipes.service.run             # in one process
    python -m recipes.service.run --ray       # on Ray Serve

A tiny prior with random weights restores 8 x 8 images, so the service dominates the measurement. ``--disk`` names a
folder on a small file system of its own, which the soak fills:

    mount -t tmpfs -o size=8m tmpfs DISK
"""

from __future__ import annotations

import io
import os
import random
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from PIL import Image

import lavps
from lavps.apps.service import Options, Refused
from lavps.benchmark.report import markdown_table

from ..common.pages import read, versions_of, write_json, write_page
from ..common.tiny import write_tiny_prior
from .running import RunningService
from .soak import Soak
from .sockets import sockets

SIZE = 8
Part = Literal["load", "memory", "images", "soak", "sockets"]
MODES = {"in_process": "in one process", "ray": "on Ray Serve"}


@dataclass(frozen=True)
class Config:
    """Size of the measurements."""

    ray: bool = False
    """Whether the service runs on Ray Serve, or in one process."""
    parts: tuple[Part, ...] = ("load", "memory", "images", "soak")
    """Measurements to make; the stored numbers of the others are kept."""
    clients: int = 64
    """Number of clients of the load."""
    seconds: float = 60.0
    """Duration of the load in seconds."""
    requests: int = 2000
    """Number of requests over which the memory is followed."""
    images: int = 3000
    """Number of mutated image files."""
    soak_minutes: float = 20.0
    """Duration of the soak in minutes."""
    disk: Path | None = None
    """Folder on a small file system, which the soak fills; without it, no disk is filled."""
    pages: Path = Path("benchmarks")
    """Folder of the page and its numbers."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without measuring."""


def encoded(seed: int, side: int = SIZE, format: str = "PNG") -> bytes:
    levels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, format)
    return file.getvalue()


def load(service: RunningService, config: Config) -> dict[str, Any]:
    """Send requests of many clients for some time; measure latencies of jobs and of the health check."""
    times: list[float] = []
    health: list[float] = []
    counts: Counter[str] = Counter()
    stop, lock = time.monotonic() + config.seconds, threading.Lock()

    def ask(number: int) -> None:
        while (start := time.monotonic()) < stop:
            outcome = "restored"
            try:
                service.client.restore(
                    encoded(number), Options("tiny", "denoise", 0.05, seed=number, quality="fast")
                )
            except Refused as refusal:
                outcome = "refused" if refusal.status == 429 else "errors"
                time.sleep(min(refusal.wait or 1, 2))
            except Exception:
                outcome = "errors"
            with lock:
                counts[outcome] += 1
                times.extend([time.monotonic() - start] if outcome == "restored" else [])

    def watch() -> None:
        while (start := time.monotonic()) < stop:
            counts["unhealthy"] += not service.client.healthy()
            health.append(time.monotonic() - start)
            time.sleep(0.5)

    with ThreadPoolExecutor(config.clients + 1) as pool:
        for future in [pool.submit(watch), *(pool.submit(ask, n) for n in range(config.clients))]:
            future.result()
    return {
        "clients": config.clients,
        "seconds": config.seconds,
        "load": os.getloadavg()[0],
        **{name: counts[name] for name in ("restored", "refused", "errors", "unhealthy")},
        "latency": np.quantile(times, [0.5, 0.95, 0.99]).tolist(),
        "health": np.quantile(health, [0.5, 1.0]).tolist(),
    }


def memory(service: RunningService, config: Config) -> dict[str, Any]:
    """Follow the memory of the service over many requests."""
    marks, each = [], max(config.requests // 10, 1)
    with ThreadPoolExecutor(8) as pool:
        for start in range(0, config.requests, each):
            options = [Options("tiny", "denoise", 0.05, seed=start + n, quality="fast") for n in range(each)]
            list(pool.map(lambda one: service.client.restore(encoded(0), one, retries=10), options))
            marks.append([start + each, service.resident()])
    return {"mebibytes": marks}


def images(service: RunningService, config: Config) -> dict[str, Any]:
    """Send mutated image files; count the answers, and read the peak of the memory."""
    chance = random.Random(0)
    formats = ("PNG", "JPEG", "TIFF", "WEBP")
    seeds = [encoded(n, side, format) for side in (8, 64) for n, format in enumerate(formats)]
    answers: Counter[str] = Counter()
    for number in range(config.images):
        content = bytearray(seeds[number % len(seeds)])
        for _ in range(chance.randint(1, 12)):
            content[chance.randrange(min(len(content), 200 if number % 3 else len(content)))] = (
                chance.randrange(256)
            )
        here, length = chance.randrange(len(content)), chance.randint(1, 64)
        if number % 5 == 0:
            del content[here:]
        elif number % 5 == 1:
            content[here:here] = chance.randbytes(length)
        try:
            service.client.restore(
                bytes(content), Options("tiny", "denoise", 0.05, evaluations=1), retries=10
            )
            answers["200"] += 1
        except Refused as refusal:
            answers[str(refusal.status)] += 1
        except RuntimeError:
            answers["failed"] += 1
    answers["unhealthy"] += not service.client.healthy()
    return {"files": config.images, "answers": dict(answers), "peak_mebibytes": service.peak()}


def measure(config: Config, values: dict[str, Any]) -> None:
    """Make the measurements; each is stored when it ends."""
    mode = values.setdefault("ray" if config.ray else "in_process", {})
    values["versions"] = {"lavps": lavps.__version__, "torch": torch.__version__}
    for part in config.parts:
        if part == "sockets":
            with tempfile.TemporaryDirectory() as place:
                values[part] = sockets(write_tiny_prior(Path(place) / "prior", SIZE), Path(place))
            write_json(config.pages, "service", values)
            continue
        disk = config.disk if part == "soak" else None
        with tempfile.TemporaryDirectory(dir=disk) as place, tempfile.TemporaryDirectory() as models:
            prior = write_tiny_prior(Path(models) / "prior", SIZE)
            options = ["--keep-jobs", 100] if part == "soak" else []
            service = RunningService(prior, Path(place) / "spool", config.ray, *options)
            try:
                if part == "soak":
                    pauses = (10.0, 30.0) if config.ray else (5.0, 20.0)
                    result = Soak(service, encoded(0), disk, pauses).run(60 * config.soak_minutes)
                else:
                    result = {"load": load, "memory": memory, "images": images}[part](service, config)
            finally:
                service.stop()
        mode[part] = result
        print(part, result, flush=True)
        write_json(config.pages, "service", values)


def counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"


def main(config: Config) -> None:
    """Measure, or read what was measured, and write the page."""
    stored = (config.pages / "service.json").exists()
    values = read(config.pages, "service") if stored else {}
    if not config.page_only:
        measure(config, values)
    found = {name: values[key] for key, name in MODES.items() if key in values}

    def table(head: list[str], part: str, row: Any) -> str:
        rows = [[name, *row(mode[part])] for name, mode in found.items() if part in mode]
        missing = [f"Not measured {name}." for name in MODES.values() if part not in found.get(name, {})]
        return "\n\n".join([*([markdown_table(["service", *head], rows)] if rows else []), *missing])

    write_page(
        config.pages, "service", versions=versions_of(values), size=SIZE,
        sockets=markdown_table(
            ["command", "on loopback", "on other addresses"],
            [[f"`{name}`", str(one["loopback"]), str(one["other"])] for name, one in values.get("sockets", {}).items()],
        ),
        load=table(
            ["clients", "seconds", "load average", "restored", "429", "errors", "latency: median, 95 %, 99 %, s", "health check: median, maximum, s", "unhealthy"],
            "load",
            lambda r: [
                str(r["clients"]), f"{r['seconds']:.0f}", f"{r['load']:.1f}", f"{r['restored']:,}", f"{r['refused']:,}", str(r["errors"]),
                ", ".join(f"{x:.2f}" for x in r["latency"]), ", ".join(f"{x:.2f}" for x in r["health"]), str(r["unhealthy"]),
            ],
        ),
        memory=table(
            ["requests", "MiB after each tenth"], "memory",
            lambda r: [f"{r['mebibytes'][-1][0]:,}", ", ".join(f"{mark[1]:.0f}" for mark in r["mebibytes"])],
        ),
        images=table(
            ["files", "answers", "peak, MiB"], "images",
            lambda r: [f"{r['files']:,}", counted(r["answers"]), f"{r['peak_mebibytes']:.0f}"],
        ),
        soak=table(
            ["minutes", "faults", "requests not accepted", "accepted jobs", "ends", "reasons of failures", "slowest job, s", "healthy at the end"], "soak",
            lambda r: [
                f"{r['seconds'] / 60:.0f}", counted(r["faults"]), counted(r["refused"]), f"{r['accepted']:,}", counted(r["ends"]),
                counted(r["reasons"]), f"{r['longest']:.0f}", "yes" if r["healthy"] else "NO",
            ],
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Config))
