"""Listening sockets of the commands that open any, by the addresses to which they are bound."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from .running import RunningService

_PATIENCE = 300.0  # seconds until a command must listen


def listening() -> set[tuple[str, int]]:
    """Return the address and the port of every listening socket of this machine."""
    found = psutil.net_connections("tcp")
    return {(one.laddr.ip, one.laddr.port) for one in found if one.status == psutil.CONN_LISTEN}


def is_loopback(address: str) -> bool:
    """Return whether an address is reached from this machine alone; ::ffff:127.0.0.1 is 127.0.0.1."""
    found = ipaddress.ip_address(address)
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def counted(sockets: set[tuple[str, int]]) -> dict[str, int]:
    """Return the number of sockets on loopback and on other addresses."""
    local = sum(is_loopback(address) for address, _ in sockets)
    return {"loopback": local, "other": len(sockets) - local}


@contextlib.contextmanager
def command(*words: object) -> Iterator[None]:
    """Run ``lavps`` with these words."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "lavps.cli", *map(str, words)]
    process = psutil.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        yield
    finally:
        for one in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.wait()


def opened(before: set[tuple[str, int]], settled: float = 10.0) -> set[tuple[str, int]]:
    """Return the sockets that were opened, once their number has not changed for some seconds."""
    found, since, end = set[tuple[str, int]](), time.monotonic(), time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        new = listening() - before
        if new != found:
            found, since = found | new, time.monotonic()
        if found and time.monotonic() - since > settled:
            break
        time.sleep(0.2)
    return found


def sockets(prior: Path, place: Path) -> dict[str, Any]:
    """Return the sockets of the service in one process and on Ray Serve, of a bulk run on Ray and of the demo."""
    result = {}
    for name, ray in (("lavps serve --workers 0", False), ("lavps serve", True)):
        before = listening()
        service = RunningService(prior, place / name.replace(" ", "-"), ray)
        result[name] = counted(opened(before))
        service.stop()
    images = place / "images"
    images.mkdir()
    for number in range(400):
        levels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(levels).save(images / f"{number}.png")
    bulk = ("restore-bulk", images, place / "restored", "--prior", prior, "--task", "denoise", "--noise", 0.1)
    for name, words in (
        ("lavps restore-bulk", (*bulk, "--quality", "best", "--device", "cpu", "--workers", 1)),
        ("lavps demo", ("demo", "--prior", prior, "--device", "cpu", "--port", 7869)),
    ):
        before = listening()
        with command(*words):
            result[name] = counted(opened(before))
    return result
