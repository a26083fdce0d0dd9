"""``lavps serve`` over loopback, in one process and on Ray Serve: many clients, attacks, killed replicas."""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Service:
    client: Client
    process: subprocess.Popen[bytes]
    spool: Path


@pytest.fixture(scope="module", params=["process", "ray"])
def service(
    request: pytest.FixtureRequest, prior: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--models", f"tiny={prior}", "--port", port, "--spool", folder / "spool", "--device", "cpu"]
    words += ["--queue", "32", "--max-evaluations", "5000", "--receive", "5"]
    words += ["--workers", int(request.param == "ray")]
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
    yield Service(client, process, folder / "spool")
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()


def status(service: Service, path: str, **headers: str) -> int:
    """Status code of the answer to a GET request."""
    request = urllib.request.Request(service.client.url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def ended(service: Service, job: str) -> dict[str, object]:
    """The job once it has ended; answers while a replica starts again are none."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            now = service.client.job(job, wait=10)
        except (Refused, OSError) as error:
            if "no such job" in str(error):
                raise
            time.sleep(0.5)
            continue
        if now["state"] not in ("queued", "running"):
            return now
    raise AssertionError(f"the job {job} has not ended")


def alone(prior: Path, seed: int, content: bytes, folder: Path) -> np.ndarray:
    folder.mkdir(exist_ok=True)
    (folder / "a.png").write_bytes(content)
    job = RestorationConfig(str(prior), measuring=MeasurementSpec("denoise", 0.05), seed=seed, quality="fast")
    FileRestorer(job).restore(folder / "a.png", folder)
    return levels((folder / "a.png").read_bytes())


def test_sixty_four_clients(service: Service, prior: Path, tmp_path: Path) -> None:
    client = service.client
    expected = {n: alone(prior, n, encoded(n), tmp_path / str(n)) for n in range(6)}
    start = time.monotonic()
    client.restore(encoded(0), Options("tiny", "denoise", 0.05, quality="fast"))
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
                answer = client.restore(encoded(n), Options("tiny", "denoise", 0.05, seed=n, quality="fast"))
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


@pytest.mark.parametrize("service", ["ray"], indirect=True)
@pytest.mark.parametrize("replica", ["sampler", "desk"])
def test_a_killed_replica_loses_no_accepted_job(service: Service, replica: str) -> None:
    client = service.client
    options = [Options("tiny", "denoise", 0.05, seed=n, evaluations=400) for n in range(6)]
    jobs = [client.submit(encoded(n), one) for n, one in enumerate(options)]
    end = time.monotonic() + PATIENCE
    while client.job(jobs[0]["id"])["state"] == "queued" and time.monotonic() < end:
        time.sleep(0.05)
    (killed,) = titled(service.process.pid, f"ServeReplica:lavps:{replica}")
    os.kill(killed, signal.SIGKILL)
    for job in jobs:
        now = ended(service, job["id"])
        assert now["state"] == "done", now
        assert levels(client._send("GET", now["links"]["0"])).shape == (8, 8, 3)  # type: ignore[index]
    if replica == "sampler":
        assert "lavps_workers_lost_total 1" in client._send("GET", "/metrics").decode()


def test_web_pages_of_other_sites_and_paths_of_ray_are_refused(service: Service) -> None:
    assert status(service, "/v1/models") == 200
    assert status(service, "/v1/models", Origin=service.client.url) == 200
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        assert status(service, "/v1/models", **headers) == 403, headers
        assert status(service, "/healthz", **headers) == 403, headers
    assert [status(service, path) for path in ("/-/routes", "/-/healthz")] == [404, 404]


def test_a_deleted_folder_ends_its_own_job_only(service: Service) -> None:
    options = Options("tiny", "denoise", 0.05, evaluations=300)
    first = service.client.submit(encoded(0), options)
    others = [Options("tiny", "denoise", 0.05, seed=n, evaluations=5) for n in range(3)]
    jobs = [service.client.submit(encoded(n), other) for n, other in enumerate(others)]
    shutil.rmtree(service.spool / jobs[1]["id"])
    assert [ended(service, job["id"])["state"] for job in jobs] == ["done", "failed", "done"]
    assert ended(service, first["id"])["state"] == "done"
    shutil.rmtree(service.spool / jobs[2]["id"])
    assert service.client.job(jobs[2]["id"])["state"] == "failed"
    assert service.client.healthy()


def test_a_body_that_does_not_arrive_is_given_up(service: Service) -> None:
    port = int(service.client.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        head = "POST /v1/restore?model=tiny&task=denoise HTTP/1.1\r\nContent-Length: 100\r\n"
        connection.sendall(f"{head}Host: 127.0.0.1:{port}\r\n\r\n".encode() + b"12345")
        assert b" 408 " in connection.recv(4096).splitlines()[0]


def test_every_case_of_the_interface(service: Service, tmp_path: Path) -> None:
    """At least a thousand cases, made from the OpenAPI description: no 5xx, nothing undocumented."""
    pytest.importorskip("schemathesis")
    url = f"{service.client.url}/openapi.json"
    command = [str(Path(sys.executable).parent / "schemathesis"), "run", url]
    command += ["--checks", "not_a_server_error,status_code_conformance,content_type_conformance"]
    command += ["--max-examples", "200", "--phases", "fuzzing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    print(done.stdout[-1500:])
