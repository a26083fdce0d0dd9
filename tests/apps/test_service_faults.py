"""Faults of the service: an error ends its own job only, and a state is reported once it is on disk."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import stat
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lavps.apps.service import BatchScheduler, JobStore, Limits, ModelPool, Options, Refused
from lavps.apps.service import jobs as jobs_module
from lavps.apps.service.dispatch import WorkerLost, in_this_process
from lavps.apps.service.guard import timed_protocol
from lavps.apps.service.pool import Request, Update
from lavps.apps.service.serving import Serving
from lavps.restoration.degraded import DegradedRecord, OperatorDraw
from lavps.restoration.spec import ImageTooLarge, MeasurementSpec
from support.restoring import picture, save, write_prior

pytest.importorskip("httpx")
TestClient = pytest.importorskip("fastapi.testclient").TestClient
HERE = "http://127.0.0.1:8000"
LIMITS = Limits(queue=16, batch_size=8)
OPTIONS = Options("plain", "denoise", 0.05, quality="fast")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str | None]]:
    return {"plain": (str(write_prior(tmp_path_factory.mktemp("models") / "prior")), None)}


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return save(tmp_path / "a.png", picture(8, 8)).read_bytes()


def desk_of(models: dict[str, Any], spool: Path, limits: Limits = LIMITS, poison: int = -1) -> BatchScheduler:
    """A scheduler; a batch with the seed ``poison`` loses its worker."""
    bench = ModelPool(models, limits)
    sound = in_this_process(bench)

    async def dispatch(requests: Sequence[Request]) -> AsyncIterator[Update]:
        if any(request.options.seed == poison for request in requests):
            raise WorkerLost("killed")
        async for update in sound(requests):
            yield update

    return BatchScheduler(bench, dispatch, JobStore(spool), limits)


def run(desk: BatchScheduler, scenario: Callable[[], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        try:
            return await scenario()
        finally:
            await desk.close()

    return asyncio.run(whole())


class Disk:
    """A disk that fills up when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full, written = False, jobs_module._write

        def write(path: Path, content: bytes) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            written(path, content)

        monkeypatch.setattr(jobs_module, "_write", write)


def test_a_deleted_folder_ends_its_own_job_only(
    models: dict[str, Any], tmp_path: Path, content: bytes
) -> None:
    async def scenario() -> list[str]:
        desk.limits = replace(LIMITS, patience=0.3)
        jobs = [await desk.submit(replace(OPTIONS, seed=n), content) for n in range(3)]
        shutil.rmtree(tmp_path / "spool" / jobs[1].id)
        await desk.open()
        states = [(await desk.wait(job.id, 60)).state for job in jobs]
        assert desk.healthy
        later = await desk.submit(OPTIONS, content)
        return [*states, (await desk.wait(later.id, 60)).state]

    desk = desk_of(models, tmp_path / "spool")
    desk.spool.jobs = lambda: ([], {})  # type: ignore[method-assign]
    assert run(desk, scenario) == ["done", "failed", "done", "done"]


def test_a_done_job_fails_when_its_results_are_deleted(
    models: dict[str, Any], tmp_path: Path, content: bytes
) -> None:
    with TestClient(Serving(models, tmp_path / "spool", LIMITS).in_process(), base_url=HERE) as client:
        query = {"model": "plain", "task": "denoise", "noise": 0.05, "quality": "fast", "wait": 60}
        query |= {"samples": 2}
        for name in ("result-mean", "."):
            job = client.post("/v1/restore", params=query, content=content).json()
            assert job["state"] == "done"
            lost = tmp_path / "spool" / job["id"] / name
            lost.unlink() if lost.is_file() else shutil.rmtree(lost)
            now = client.get(job["links"]["self"]).json()
            assert (now["state"], set(now["links"])) == ("failed", {"self", "preview"})
            assert "no longer in the job store" in now["reason"]
            assert client.get(job["links"]["0"]).status_code == 409


def test_a_deleted_store_is_created_again(models: dict[str, Any], tmp_path: Path, content: bytes) -> None:
    async def scenario() -> list[str]:
        first = await desk.submit(OPTIONS, content)
        shutil.rmtree(tmp_path / "spool")
        await desk.open()
        later = await desk.submit(OPTIONS, content)
        return [(await desk.wait(job.id, 60)).state for job in (first, later)]

    desk = desk_of(models, tmp_path / "spool")
    desk.spool.jobs = lambda: ([], {})  # type: ignore[method-assign]
    assert run(desk, scenario) == ["failed", "done"]
    assert stat.S_IMODE((tmp_path / "spool").stat().st_mode) == 0o700


def test_a_worker_task_that_ends_is_unhealthy_and_restarted(
    models: dict[str, Any], tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [RuntimeError("a fault of the scheduler")]
    take = BatchScheduler._take

    def faulty(desk: BatchScheduler) -> Any:
        if faults:
            raise faults.pop()
        return take(desk)

    monkeypatch.setattr(BatchScheduler, "_take", faulty)
    app = Serving(models, tmp_path / "spool", LIMITS).in_process()
    with TestClient(app, base_url=HERE) as client:
        assert client.get("/healthz").status_code == 200
        query = {"model": "plain", "task": "denoise", "noise": 0.05, "quality": "fast"}
        job = client.post("/v1/restore", params=query, content=content).json()
        end, unhealthy = time.monotonic() + 60, False
        while client.get(f"/v1/jobs/{job['id']}").json()["state"] != "done":
            unhealthy |= client.get("/healthz").status_code == 503
            assert time.monotonic() < end
            time.sleep(0.02)
        assert unhealthy
        assert client.get("/healthz").status_code == 200


def test_a_full_disk_answers_507_and_recovers(
    models: dict[str, Any], tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    with TestClient(Serving(models, tmp_path / "spool", LIMITS).in_process(), base_url=HERE) as client:
        query = {"model": "plain", "task": "denoise", "noise": 0.05, "quality": "fast", "wait": 60}
        disk.full = True
        answer = client.post("/v1/restore", params=query, content=content)
        assert answer.status_code == 507, answer.text
        assert int(answer.headers["retry-after"]) > 0
        assert not list((tmp_path / "spool").iterdir())
        disk.full = False
        assert client.post("/v1/restore", params=query, content=content).json()["state"] == "done"


def test_a_job_is_done_only_when_its_files_are_on_disk(
    models: dict[str, Any], tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, finish = [], JobStore.finish

    def watched(store: JobStore, job: Any, pictures: dict[str, bytes]) -> None:
        seen.append(desk.job(job.id).state)
        finish(store, job, pictures)

    async def scenario() -> None:
        await desk.open()
        job = await desk.wait((await desk.submit(OPTIONS, content)).id, 60)
        assert (job.state, seen) == ("done", ["running"])
        assert desk.spool.picture(job.id, "0")

    monkeypatch.setattr(JobStore, "finish", watched)
    desk = desk_of(models, tmp_path / "spool")
    run(desk, scenario)


def test_a_result_that_cannot_be_stored_is_a_failed_job(
    models: dict[str, Any], tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def scenario() -> None:
        first = await desk.submit(OPTIONS, content)
        disk.full = True
        await desk.open()
        failed = await desk.wait(first.id, 60)
        assert (failed.state, failed.reason) == ("failed", "the result could not be stored")
        assert not list((tmp_path / "spool" / first.id).glob("result-*"))
        assert desk.healthy
        disk.full = False
        later = await desk.submit(OPTIONS, content)
        assert (await desk.wait(later.id, 60)).state == "done"

    desk = desk_of(models, tmp_path / "spool")
    desk.spool.jobs = lambda: ([], {})  # type: ignore[method-assign]
    run(desk, scenario)


@pytest.mark.parametrize(
    "damage",
    ["no measurement", "unknown field", "no JSON", "another type", "another id", "unknown state", "a file"],
)
def test_a_damaged_job_is_quarantined_and_the_service_starts(
    models: dict[str, Any], tmp_path: Path, content: bytes, damage: str
) -> None:
    store = JobStore(tmp_path / "spool")
    sound, broken = jobs_module.Job.new(OPTIONS), jobs_module.Job.new(OPTIONS)
    for job in (sound, broken):
        store.accept(job, content)
    folder = tmp_path / "spool" / broken.id
    state = folder / "job.json"
    changes: dict[str, dict[str, Any]] = {
        "unknown field": {"colour": "red"},
        "another type": {"created": "yesterday"},
        "another id": {"id": "0" * 32},
        "unknown state": {"state": "lost"},
    }
    if damage == "no measurement":
        (folder / "measurement").unlink()
    elif damage == "no JSON":
        state.write_bytes(b"\xff{")
    elif damage == "a file":
        shutil.rmtree(folder)
        folder.write_text("")
    else:
        state.write_text(json.dumps(json.loads(state.read_text()) | changes[damage]))
    with TestClient(Serving(models, tmp_path / "spool", LIMITS).in_process(), base_url=HERE) as client:
        assert client.get(f"/v1/jobs/{sound.id}", params={"wait": 60}).json()["state"] == "done"
        assert client.get(f"/v1/jobs/{broken.id}").status_code == 404
        assert 'lavps_jobs_total{state="quarantined"} 1' in client.get("/metrics").text
    (kept,) = (tmp_path / "spool" / "quarantine").iterdir()
    assert kept.name.startswith(broken.id)


def test_the_service_starts_if_nothing_can_be_quarantined(
    models: dict[str, Any], tmp_path: Path, content: bytes
) -> None:
    store, damaged = JobStore(tmp_path / "spool"), [jobs_module.Job.new(OPTIONS) for _ in range(2)]
    for job in damaged:
        store.accept(job, content)
    (tmp_path / "spool" / damaged[0].id / "job.json").write_text("{")
    (tmp_path / "spool" / damaged[1].id / "measurement").unlink()
    (tmp_path / "spool" / "quarantine").touch()  # no folder can be created there
    with TestClient(Serving(models, tmp_path / "spool", LIMITS).in_process(), base_url=HERE) as client:
        assert 'lavps_jobs_total{state="quarantined"} 2' in client.get("/metrics").text


def test_a_request_that_kills_its_worker_does_not_take_its_neighbours_with_it(
    models: dict[str, Any], tmp_path: Path, content: bytes
) -> None:
    async def scenario() -> list[str]:
        jobs = [await desk.submit(replace(OPTIONS, seed=n), content) for n in range(8)]
        await desk.open()
        return [(await desk.wait(job.id, 60)).state for job in jobs]

    desk = desk_of(models, tmp_path / "spool", poison=3)
    desk.spool.jobs = lambda: ([], {})  # type: ignore[method-assign]
    assert run(desk, scenario) == ["done"] * 3 + ["failed"] + ["done"] * 4
    assert desk.batches[8] == 1


def test_results_expire_by_the_clock_from_their_end(
    models: dict[str, Any], tmp_path: Path, content: bytes
) -> None:
    async def scenario() -> None:
        await desk.open()
        job = await desk.submit(OPTIONS, content)
        job.created -= 3600  # a long queue does not shorten the time
        assert (await desk.wait(job.id, 60)).state == "done"
        await asyncio.sleep(0.1)
        assert desk.job(job.id).state == "done"
        await asyncio.sleep(2)
        assert not desk.tickets
        assert not list((tmp_path / "spool").iterdir())

    desk = desk_of(models, tmp_path / "spool", replace(LIMITS, keep=1.0))
    run(desk, scenario)


@pytest.mark.parametrize("bound", [{"keep_jobs": 2}, {"keep_bytes": 2500}])
def test_kept_results_are_bounded_in_number_and_size(
    models: dict[str, Any], tmp_path: Path, content: bytes, bound: dict[str, int]
) -> None:
    async def scenario() -> None:
        await desk.open()
        jobs = [await desk.submit(replace(OPTIONS, seed=n), content) for n in range(4)]
        for job in jobs:
            if job.id in desk.tickets:
                await desk.wait(job.id, 60)
        assert 1 <= len(desk.tickets) <= 2
        assert {path.name for path in (tmp_path / "spool").iterdir()} == set(desk.tickets)

    desk = desk_of(models, tmp_path / "spool", replace(LIMITS, batch_size=1, **bound))
    run(desk, scenario)


def test_the_store_is_readable_by_its_owner_only(
    models: dict[str, Any], tmp_path: Path, content: bytes
) -> None:
    async def scenario() -> None:
        await desk.open()
        await desk.wait((await desk.submit(OPTIONS, content)).id, 60)

    (tmp_path / "spool").mkdir(mode=0o755)
    desk = desk_of(models, tmp_path / "spool")
    run(desk, scenario)
    paths = [tmp_path / "spool", *(tmp_path / "spool").rglob("*")]
    assert len(paths) > 4
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_body_that_does_not_arrive_is_given_up(models: dict[str, Any], tmp_path: Path) -> None:
    async def slow() -> bytes:
        await asyncio.sleep(60)
        return b""

    app = Serving(models, tmp_path / "spool", replace(LIMITS, receive=0.2)).in_process()
    sent: list[Any] = []

    async def scenario() -> None:
        query = b"model=plain&task=denoise&noise=0.05"
        scope = {
            "type": "http", "method": "POST", "path": "/v1/restore", "query_string": query,
            "headers": [(b"host", b"127.0.0.1")],
            "http_version": "1.1", "scheme": "http", "server": ("x", 80), "client": ("x", 1), "root_path": "",
        }  # fmt: skip

        async def send(message: Any) -> None:
            sent.append(message)

        await asyncio.wait_for(app(scope, slow, send), 30)

    asyncio.run(scenario())
    assert sent[0]["status"] == 408


def test_a_full_queue_is_reported_before_the_body_is_read(
    models: dict[str, Any], tmp_path: Path, content: bytes
) -> None:
    async def unread() -> bytes:
        raise AssertionError("the body was read")

    async def scenario() -> None:
        await desk.submit(OPTIONS, content)
        with pytest.raises(Refused) as refusal:
            await desk.submit(OPTIONS, unread)
        assert refusal.value.status == 429

    desk = desk_of(models, tmp_path / "spool", replace(LIMITS, queue=1))
    run(desk, scenario)


@pytest.mark.parametrize("first", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_headers_that_do_not_arrive_close_the_connection(first: bytes) -> None:
    uvicorn = pytest.importorskip("uvicorn")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def scenario() -> bytes:
        config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", http=timed_protocol(0.3))
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname()[:2])
        writer.write(first + b"GET /healthz HTTP/1.1\r\nX: ")
        answer = await asyncio.wait_for(reader.read(), 10)  # until the server closes the connection
        writer.close()
        server.should_exit = True
        await serving
        return answer

    assert asyncio.run(scenario()).count(b"204") == bool(first)


def test_a_length_that_is_stated_twice_closes_the_connection(models: dict[str, Any], tmp_path: Path) -> None:
    """What follows such a request on its connection is not answered as a second request."""
    uvicorn = pytest.importorskip("uvicorn")
    app = Serving(models, tmp_path / "spool", LIMITS).in_process()
    inner = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    lengths = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    words = b"POST /v1/restore?model=plain&task=denoise HTTP/1.1\r\nHost: 127.0.0.1\r\n" + lengths + inner

    async def scenario() -> bytes:
        config = uvicorn.Config(app, port=0, log_level="error", http=timed_protocol(10))
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname()[:2])
        writer.write(words)
        answer = await asyncio.wait_for(reader.read(), 30)  # until the server closes the connection
        writer.close()
        server.should_exit = True
        await serving
        return answer

    answer = asyncio.run(scenario())
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


def peak_of(script: str, *words: object) -> float:
    """Megabytes that a script needs at most, beyond those of its imports; its output must be empty."""
    whole = f"""
import resource, sys
from lavps.apps.service import Limits, ModelPool, Options, Refused
from lavps.apps.service.guard import timed_protocol
from lavps.apps.service.pool import Request
from lavps.io.decode import read_image
from lavps.io.image import ImageError
import numpy, torch, imagecodecs, tifffile
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{script}
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    output = subprocess.run(
        [sys.executable, "-c", whole, *map(str, words)], capture_output=True, text=True, check=True
    ).stdout
    return float(output)


def test_a_small_file_with_a_large_result_allocates_nothing(models: dict[str, Any], tmp_path: Path) -> None:
    Image.new("RGB", (1024, 1024)).save(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size < 4096
    script = """
pool = ModelPool({"plain": (sys.argv[1], None)}, Limits())
try:
    pool.measured(Request("0" * 32, open(sys.argv[2], "rb").read(), Options("plain", "sr8")))
except Refused as refusal:
    assert refusal.status == 413, refusal
else:
    raise AssertionError("accepted")
"""
    assert peak_of(script, models["plain"][0], tmp_path / "a.png") < 200


@pytest.mark.parametrize("bits", [8, 16])
def test_a_small_file_with_large_tiles_allocates_nothing(tmp_path: Path, bits: int) -> None:
    (tmp_path / "a.tif").write_bytes(tiled_tiff(16384, bits))
    script = """
try:
    read_image(open(sys.argv[1], "rb").read())
except ImageError as error:
    assert "tiles of 16384 x 16384 pixels" in str(error), error
else:
    raise AssertionError("accepted")
"""
    assert peak_of(script, tmp_path / "a.tif") < 200


def tiled_tiff(side: int, bits: int) -> bytes:
    """A TIFF of 8 x 8 pixels, in tiles of this side."""
    strip, start = zlib.compress(bytes(100_000)), 8 + 2 + 12 * 11 + 4
    longs = {256: 8, 257: 8, 322: side, 323: side, 324: start + 6, 325: len(strip)}
    shorts = {259: 8, 262: 2, 277: 3, 284: 1}
    entries = {tag: struct.pack("<HHII", tag, 4, 1, value) for tag, value in longs.items()}
    entries |= {tag: struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in shorts.items()}
    entries[258] = struct.pack("<HHII", 258, 3, 3, start)
    directory = b"".join(entries[tag] for tag in sorted(entries))
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + directory + bytes(4)
    return head + struct.pack("<HHH", bits, bits, bits) + strip


def test_a_manifest_cannot_claim_a_huge_image(tmp_path: Path) -> None:
    draw = OperatorDraw(0, 0, (3, 100_000, 100_000))
    record = DegradedRecord("denoise", 0.05, draw)
    content = save(tmp_path / "a.png", picture(8, 8)).read_bytes()
    with pytest.raises(ImageTooLarge, match="100000 x 100000 pixels"):
        MeasurementSpec().read_content(content, record)


def test_few_measurements_are_decoded_at_a_time(
    models: dict[str, Any], tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, kind = [], [0], ModelPool.kind

    def counted(pool: ModelPool, request: Request) -> Any:
        running.append(1)
        most[0] = max(most[0], len(running))
        time.sleep(0.05)
        running.pop()
        return kind(pool, request)

    async def scenario() -> None:
        await asyncio.gather(*(desk.submit(OPTIONS, content) for _ in range(12)))

    monkeypatch.setattr(ModelPool, "kind", counted)
    desk = desk_of(models, tmp_path / "spool")
    run(desk, scenario)
    assert 1 <= most[0] <= 2
