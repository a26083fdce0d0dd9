"""The service on Ray Serve, over loopback: many clients, a killed replica, every case of its interface."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lavps.apps.service import Client, Options, Refused
from lavps.restoration import FileRestorer, MeasurementSpec, RestorationConfig
from support.processes import titled
from support.restoring import picture, write_prior

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
PATIENCE = float(os.environ.get("LAVPS_TEST_PATIENCE", "300"))  # seconds; more beside a busy machine
LOAD = float(os.environ.get("LAVPS_TEST_LOAD", "60"))  # seconds that many clients ask for


def encoded(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(8, 8, seed=seed)).save(file, "PNG")
    return file.getvalue()


def levels(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content))).astype(int)


@pytest.fixture(scope="module")
def prior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prior(tmp_path_factory.mktemp("models") / "prior", front=False)


@pytest.fixture(scope="module")
def service(
    prior: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Client, subprocess.Popen[bytes]]]:
    folder = tmp_path_factory.mktemp("service")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--models", f"tiny={prior}", "--port", port, "--spool", folder / "spool", "--device", "cpu"]
    words += ["--queue", "32", "--max-steps", "5000"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "lavps.cli", "serve", *map(str, words)],
            stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    client = Client(f"http://127.0.0.1:{port}", timeout=PATIENCE)
    end = time.monotonic() + PATIENCE
    while not client.healthy():
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < end, (folder / "log").read_text()
        time.sleep(1)
    yield client, process
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()


def alone(prior: Path, seed: int, content: bytes, folder: Path) -> np.ndarray:
    folder.mkdir(exist_ok=True)
    (folder / "a.png").write_bytes(content)
    job = RestorationConfig(str(prior), measuring=MeasurementSpec("denoise", 0.05), seed=seed, quality="fast")
    FileRestorer(job).restore(folder / "a.png", folder)
    return levels((folder / "a.png").read_bytes())


def test_sixty_four_clients(
    service: tuple[Client, subprocess.Popen[bytes]], prior: Path, tmp_path: Path
) -> None:
    client, _ = service
    expected = {n: alone(prior, n, encoded(n), tmp_path / str(n)) for n in range(6)}
    start = time.monotonic()
    client.restore(encoded(0), Options("tiny", "denoise", quality="fast"))
    single = time.monotonic() - start
    stop, lock = time.monotonic() + LOAD, threading.Lock()
    times: list[float] = []
    refusals = wrong = 0

    def ask(which: int) -> None:
        nonlocal refusals, wrong
        n = which % 6
        while time.monotonic() < stop:
            start = time.monotonic()
            try:
                answer = client.restore(encoded(n), Options("tiny", "denoise", seed=n, quality="fast"))
            except Refused as refusal:
                if refusal.status != 429 or not refusal.wait:
                    raise
                with lock:
                    refusals += 1
                time.sleep(min(refusal.wait, 2))
                continue
            with lock:
                times.append(time.monotonic() - start)
                wrong += int(np.abs(levels(answer.pictures["0"]) - expected[n]).max() > 1)

    with ThreadPoolExecutor(64) as pool:
        for future in [pool.submit(ask, which) for which in range(64)]:
            future.result()
    p95 = float(np.quantile(times, 0.95))
    print(f"{len(times)} answers, {refusals} refusals, single {single:.2f} s, p95 {p95:.2f} s")
    assert len(times) > 64
    assert wrong == 0


def test_a_killed_replica_loses_no_accepted_job(
    service: tuple[Client, subprocess.Popen[bytes]], prior: Path, tmp_path: Path
) -> None:
    client, process = service
    jobs = [client.submit(encoded(n), Options("tiny", "denoise", seed=n, evaluations=400)) for n in range(6)]
    end = time.monotonic() + PATIENCE
    while client.job(jobs[0]["id"])["state"] == "queued" and time.monotonic() < end:
        time.sleep(0.05)
    (replica,) = titled(process.pid, "ServeReplica:lavps:sampler")
    os.kill(replica, signal.SIGKILL)
    for job in jobs:
        while (now := client.job(job["id"], wait=20))["state"] in ("queued", "running"):
            assert time.monotonic() < end
        assert now["state"] == "done", now
    assert "lavps_workers_lost_total 1" in client._send("GET", "/metrics").decode()


def test_every_case_of_the_interface(service: tuple[Client, subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """At least a thousand cases, made from the OpenAPI description: no 5xx, nothing undocumented."""
    pytest.importorskip("schemathesis")
    client, _ = service
    command = [str(Path(sys.executable).parent / "schemathesis"), "run", f"{client.url}/openapi.json"]
    command += ["--checks", "not_a_server_error", "--max-examples", "200", "--phases", "fuzzing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    print(done.stdout[-1500:])
