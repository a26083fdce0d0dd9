"""The service as an ASGI application: answers are the library's, limits hold, no accepted job is lost."""

from __future__ import annotations

import asyncio
import io
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lavps
from lavps.apps.service import BatchScheduler, Client, JobStore, Limits, ModelPool, Options, Refused
from lavps.apps.service.app import build_app
from lavps.apps.service.dispatch import WorkerLost, in_this_process
from lavps.apps.service.guard import proxy_middlewares
from lavps.apps.service.pool import Request, Update
from lavps.apps.service.serving import Serving
from lavps.checkpoints.folder import ModelConfig, save_model
from lavps.cli.serve import Serve
from lavps.nn import build_seeded
from lavps.restoration import FileRestorer, MeasurementSpec, RestorationConfig
from lavps.restoration.presets import chosen, front_for
from support.bulk_files import broken_files
from support.restoring import TINY, picture, write_model, write_prior

pytest.importorskip("httpx")
TestClient = pytest.importorskip("fastapi.testclient").TestClient
parser = pytest.importorskip("prometheus_client.parser")
HERE = "http://127.0.0.1:8000"
FEW = Limits(queue=8, batch_size=4, wait=60.0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str | None]]:
    folder = tmp_path_factory.mktemp("models")
    prior = write_prior(folder / "prior", front=False)
    warm = write_model(folder / "warm", prior)
    return {"plain": (str(prior), None), "warm": (str(prior), str(warm))}


def encoded(seed: int = 0, height: int = 8, width: int = 8, format: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(height, width, seed=seed)).save(file, format)
    return file.getvalue()


def levels(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content))).astype(int)


@contextmanager
def serving(
    models: dict[str, tuple[str, str | None]], spool: Path, limits: Limits = FEW, token: str | None = None
) -> Iterator[Any]:
    app = Serving(models, spool, limits, token=token).in_process()
    with TestClient(app, base_url=HERE, raise_server_exceptions=False) as client:
        yield client


def restored_by_the_library(
    models: dict[str, tuple[str, str | None]], content: bytes, options: Options, folder: Path
) -> bytes:
    prior, warm = models[options.model]
    front = front_for(warm or prior, warm is not None, options.task)
    settings = chosen(front, options.quality, options.evaluations).settings
    job = RestorationConfig(
        prior, warm, MeasurementSpec(options.task, options.noise), seed=options.seed, settings=settings
    )
    folder.mkdir(exist_ok=True)
    (folder / "a.png").write_bytes(content)
    (folder / "out").mkdir(exist_ok=True)
    FileRestorer(job).restore(folder / "a.png", folder / "out")
    return (folder / "out" / "a.png").read_bytes()


def query(**options: object) -> dict[str, Any]:
    return {"model": "plain", "task": "denoise", "noise": 0.05, "wait": 60} | options


# --- answers ----------------------------------------------------------------------------------------------


def test_an_answer_is_what_the_library_gives(models: dict[str, Any], tmp_path: Path) -> None:
    with serving(models, tmp_path / "spool") as client:
        for name, seed in (("plain", 3), ("warm", 4)):
            answer = client.post("/v1/restore", params=query(model=name, seed=seed), content=encoded(1))
            assert answer.status_code == 200, answer.text
            job = answer.json()
            assert job["state"] == "done"
            assert job["step"] == job["total"] > 0
            assert (job["acceptance"] is None) == (name == "plain")
            assert len(job["chi_square"]) == 1
            given = client.get(job["links"]["0"])
            assert given.headers["content-type"] == "image/png"
            options = Options(name, "denoise", 0.05, seed=seed)
            assert given.content == restored_by_the_library(models, encoded(1), options, tmp_path / name)
        assert client.get("/v1/models").json()["models"] == {"plain": [3, 8, 8], "warm": [3, 8, 8]}


def test_requests_that_are_sampled_together_have_the_answers_they_have_alone(
    models: dict[str, Any], tmp_path: Path
) -> None:
    with serving(models, tmp_path / "spool", replace(FEW, patience=5.0)) as client:
        jobs = [
            client.post(
                "/v1/restore", params=query(seed=n, noise=0.05 + n / 50, wait=0), content=encoded(n)
            ).json()
            for n in range(4)
        ]
        done = [client.get(f"/v1/jobs/{job['id']}", params={"wait": 60}).json() for job in jobs]
        assert {job["batch"] for job in done} == {4}
        assert 'lavps_batches_total{size="4"} 1' in client.get("/metrics").text
        for n, job in enumerate(done):
            options = Options("plain", "denoise", 0.05 + n / 50, seed=n)
            alone = restored_by_the_library(models, encoded(n), options, tmp_path / str(n))
            assert np.abs(levels(client.get(job["links"]["0"]).content) - levels(alone)).max() <= 1


@pytest.mark.parametrize("evaluations", [1, 5, 12])
def test_an_answer_takes_the_evaluations_that_were_asked_for(tmp_path: Path, evaluations: int) -> None:
    prior = write_prior(tmp_path / "prior", front=False)
    warm = write_model(tmp_path / "warm", prior, front=False)
    models = {"plain": (str(prior), None), "warm": (str(prior), str(warm))}
    with serving(models, tmp_path / "spool") as client:
        for name, task in (("plain", "denoise"), ("warm", "denoise"), ("warm", "jpeg")):
            asked = query(model=name, task=task, evaluations=evaluations)
            answer = client.post("/v1/restore", params=asked, content=encoded(1))
            if name == "warm" and evaluations == 1:
                assert answer.status_code == 422
                assert "too few" in answer.text
                continue
            assert answer.status_code == 200, answer.text
            job = answer.json()
            assert job["state"] == "done"
            options = Options(name, task, 0.05, evaluations=evaluations)
            settings = ModelPool(models, FEW).settings(options)
            assert settings.counts.forwards <= evaluations
            assert name == "warm" or settings.counts.forwards == job["total"] == evaluations
            alone = restored_by_the_library(models, encoded(1), options, tmp_path / name)
            assert client.get(job["links"]["0"]).content == alone


@pytest.mark.parametrize("evaluations", [-1, 0, 201, 10**12])
def test_a_number_of_evaluations_outside_the_limits_is_refused(
    models: dict[str, Any], evaluations: int
) -> None:
    request = Request("0" * 32, encoded(), Options("plain", "denoise", 0.05, evaluations=evaluations))
    with pytest.raises(Refused, match="evaluations must lie between 1 and 200") as refusal:
        ModelPool(models, Limits()).measured(request)
    assert refusal.value.status == 422


def test_a_quality_and_a_number_of_evaluations_are_refused(models: dict[str, Any], tmp_path: Path) -> None:
    with serving(models, tmp_path / "spool") as client:
        answer = client.post("/v1/restore", params=query(quality="fast", evaluations=8), content=encoded())
    assert answer.status_code == 422
    assert "not both" in answer.text


def test_several_samples_come_with_mean_and_uncertainty(models: dict[str, Any], tmp_path: Path) -> None:
    with serving(models, tmp_path / "spool") as client:
        job = client.post("/v1/restore", params=query(samples=3), content=encoded(0, format="JPEG")).json()
        assert set(job["links"]) == {"self", "preview", "0", "1", "2", "mean", "uncertainty"}
        kinds = {
            name: client.get(link).headers["content-type"]
            for name, link in job["links"].items()
            if name != "self"
        }
        assert kinds["0"] == kinds["mean"] == "image/jpeg"
        assert kinds["uncertainty"] == kinds["preview"] == "image/png"
        assert client.get(f"/v1/jobs/{job['id']}/pictures/3").status_code == 404


# --- limits and refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "content", "status"),
    [
        ({"model": "nobody"}, encoded(), 404),
        ({"task": "camera.py:operator"}, encoded(), 422),
        ({"task": "/etc/passwd"}, encoded(), 422),
        ({"task": "random-pixels"}, encoded(), 422),
        ({"task": "inpaint"}, encoded(), 422),
        ({"samples": 9}, encoded(), 422),
        ({"samples": 0}, encoded(), 422),
        ({"evaluations": 100_000}, encoded(), 422),
        ({"noise": 0}, encoded(), 422),
        ({"noise": "nan"}, encoded(), 422),
        ({"seed": -1}, encoded(), 422),
        ({"quality": "perfect"}, encoded(), 422),
        ({"wait": 1e9}, encoded(), 422),
        ({}, b"", 415),
        ({}, b"https://example.org/a.png", 415),
        ({}, encoded(height=40, width=40), 413),
        ({"task": "sr8"}, encoded(height=8, width=8), 413),
        ({}, bytes(5000), 413),
    ],
)
def test_what_is_too_much_or_wrong_is_refused(
    models: dict[str, Any], tmp_path: Path, options: dict[str, Any], content: bytes, status: int
) -> None:
    limits = Limits(max_bytes=4096, max_pixels=32 * 32)
    with serving(models, tmp_path / "spool", limits) as client:
        answer = client.post("/v1/restore", params=query(**options), content=content)
        assert answer.status_code == status, answer.text
        assert answer.json()["detail"]
        assert not list((tmp_path / "spool").iterdir())


def noisy(format: str) -> bytes:
    """A grey image of 24 x 24 pixels with noise of standard deviation 0.1."""
    pixels = 128 + np.random.default_rng(0).normal(0, 12.75, (24, 24, 3))
    file = io.BytesIO()
    Image.fromarray(np.rint(pixels).astype(np.uint8)).save(file, format)
    return file.getvalue()


def test_noise_that_is_not_sent_is_estimated_and_reported(models: dict[str, Any], tmp_path: Path) -> None:
    unknown = {name: value for name, value in query(quality="fast").items() if name != "noise"}
    with serving(models, tmp_path / "spool") as client:
        job = client.post("/v1/restore", params=unknown, content=noisy("PNG")).json()
        assert job["state"] == "done", job
        assert job["options"]["noise"] is None
        assert job["noise"] == pytest.approx(0.1, rel=0.1)
        same = unknown | {"noise": job["noise"]}
        given = client.post("/v1/restore", params=same, content=noisy("PNG")).json()
        assert given["noise"] == job["noise"]
        assert client.get(given["links"]["0"]).content == client.get(job["links"]["0"]).content
    with serving(models, tmp_path / "spool") as client:  # read from disk
        assert client.get(job["links"]["self"]).json() == job


@pytest.mark.parametrize("kind", ["too small", "JPEG file", "JPEG task"])
def test_noise_that_cannot_be_estimated_is_requested(
    models: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    content = {"too small": encoded(height=3, width=3), "JPEG file": noisy("JPEG")}.get(kind, noisy("PNG"))
    options = query(task="jpeg" if kind == "JPEG task" else "denoise", quality="fast")
    unknown = {name: value for name, value in options.items() if name != "noise"}
    with serving(models, tmp_path / "spool") as client:
        answer = client.post("/v1/restore", params=unknown, content=content)
        assert answer.status_code == 422
        assert answer.json()["detail"].endswith(": send its standard deviation, such as noise=0.05")
        assert "--noise" not in answer.json()["detail"]
        assert client.post("/v1/restore", params=options, content=content).json()["state"] == "done"


def test_a_body_without_a_length_is_cut_off(models: dict[str, Any], tmp_path: Path) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield bytes(1000)

    with serving(models, tmp_path / "spool", Limits(max_bytes=4096)) as client:
        assert client.post("/v1/restore", params=query(), content=endless()).status_code == 413


def test_a_full_queue_answers_429_and_says_when_to_come_back(models: dict[str, Any], tmp_path: Path) -> None:
    with serving(models, tmp_path / "spool", Limits(queue=2, batch_size=1, max_evaluations=500)) as client:
        answers = [
            client.post("/v1/restore", params=query(evaluations=200, wait=0), content=encoded(n))
            for n in range(8)
        ]
        codes = [answer.status_code for answer in answers]
        assert set(codes) == {202, 429}
        refused = answers[codes.index(429)]
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        for answer in answers:
            if answer.status_code == 202:
                assert client.delete(answer.headers["location"]).json()["state"] == "cancelled"
        assert f'state="refused"}} {codes.count(429)}' in client.get("/metrics").text


def test_jobs_can_be_watched_and_cancelled(models: dict[str, Any], tmp_path: Path) -> None:
    with serving(models, tmp_path / "spool", Limits(batch_size=1, max_evaluations=5000)) as client:
        job = client.post("/v1/restore", params=query(evaluations=800, wait=0), content=encoded()).json()
        end = time.monotonic() + 100
        while (now := client.get(f"/v1/jobs/{job['id']}")).json()["step"] < 110 and time.monotonic() < end:
            time.sleep(0.05)
        assert now.status_code == 202
        assert now.json()["total"] == 800
        assert levels(client.get(job["links"]["preview"]).content).shape == (8, 8, 3)
        assert client.get(f"/v1/jobs/{job['id']}/pictures/0").status_code == 409
        assert client.delete(f"/v1/jobs/{job['id']}").json()["state"] == "cancelled"
        # The worker is free again at once.
        after = client.post("/v1/restore", params=query(), content=encoded()).json()
        assert after["state"] == "done"
        assert client.get("/v1/jobs/" + "0" * 32).status_code == 404
        assert client.get("/v1/jobs/..%2f..%2fetc").status_code in (404, 422)


def test_a_job_that_takes_too_long_is_ended(models: dict[str, Any], tmp_path: Path) -> None:
    with serving(models, tmp_path / "spool", Limits(max_evaluations=100_000, max_seconds=0.3)) as client:
        job = client.post("/v1/restore", params=query(evaluations=50_000), content=encoded()).json()
        assert job["state"] == "failed"
        assert "longer than 0.3 s" in job["reason"]


def test_malformed_images_are_answered_and_never_crash(models: dict[str, Any], tmp_path: Path) -> None:
    chance = random.Random(0)
    seeds = [encoded(n, format=format) for n, format in enumerate(("PNG", "JPEG", "TIFF", "WEBP"))]
    cases = [*broken_files().values()]
    for number in range(500):
        content = bytearray(seeds[number % 4])
        for _ in range(chance.randint(1, 12)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        here, length = chance.randrange(len(content)), chance.randint(1, 64)
        if number % 5 == 0:
            del content[here:]
        elif number % 5 == 1:
            del content[here : here + length]
        elif number % 5 == 2:
            content[here:here] = chance.randbytes(length)
        cases.append(bytes(content))
    with serving(models, tmp_path / "spool", replace(FEW, queue=len(cases))) as client:
        for content in cases:
            answer = client.post("/v1/restore", params=query(wait=0, quality="fast"), content=content)
            assert answer.status_code in (202, 413, 415, 422), answer.text
            assert "Traceback" not in answer.text
        assert client.get("/healthz").status_code == 200


# --- nothing is lost --------------------------------------------------------------------------------------


def test_accepted_jobs_survive_the_process(models: dict[str, Any], tmp_path: Path) -> None:
    limits = Limits(batch_size=1, max_evaluations=5000)
    with serving(models, tmp_path / "spool", limits) as client:
        jobs = [
            client.post(
                "/v1/restore", params=query(evaluations=60, seed=n, wait=0), content=encoded(n)
            ).json()
            for n in range(3)
        ]
    with serving(models, tmp_path / "spool", limits) as client:
        for n, job in enumerate(jobs):
            done = client.get(f"/v1/jobs/{job['id']}", params={"wait": 60}).json()
            assert done["state"] == "done"
            options = Options("plain", "denoise", 0.05, seed=n, evaluations=60)
            alone = restored_by_the_library(models, encoded(n), options, tmp_path / str(n))
            assert client.get(done["links"]["0"]).content == alone


def desk_with(models: dict[str, Any], spool: Path, faults: list[Exception]) -> BatchScheduler:
    """A desk whose first batches end in these faults."""
    bench = ModelPool(models, FEW)
    sound = in_this_process(bench)

    async def dispatch(requests: Sequence[Request]) -> AsyncIterator[Update]:
        yield Update(1, 9)
        if faults:
            raise faults.pop(0)
        async for update in sound(requests):
            yield update

    return BatchScheduler(bench, dispatch, JobStore(spool), FEW)


@pytest.mark.parametrize(
    ("faults", "state"),
    [
        ([WorkerLost("gone")], "done"),
        ([WorkerLost("gone"), WorkerLost("gone")], "done"),
        ([WorkerLost("gone")] * 3, "failed"),
        ([RuntimeError("secret path /home/x")], "failed"),
    ],
)
def test_a_lost_worker_loses_no_job(
    models: dict[str, Any], tmp_path: Path, faults: list[Exception], state: str
) -> None:
    async def scenario() -> Any:
        desk = desk_with(models, tmp_path / "spool", faults)
        await desk.open()
        job = await desk.submit(Options("plain", "denoise", 0.05), encoded())
        done = await desk.wait(job.id, 60)
        await desk.close()
        return done

    job = asyncio.run(scenario())
    assert job.state == state
    assert "secret" not in job.reason


def test_one_bad_request_of_a_batch_does_not_take_the_others_with_it(
    models: dict[str, Any], tmp_path: Path
) -> None:
    async def scenario() -> list[Any]:
        desk = desk_with(models, tmp_path / "spool", [RuntimeError("somebody's fault")])
        jobs = [await desk.submit(Options("plain", "denoise", 0.05, seed=n), encoded(n)) for n in range(3)]
        await desk.open()
        ended = [await desk.wait(job.id, 60) for job in jobs]
        await desk.close()
        return ended

    assert [job.state for job in asyncio.run(scenario())] == ["done"] * 3


# --- who may, and is it well ------------------------------------------------------------------------------


def test_a_token_is_asked_for(models: dict[str, Any], tmp_path: Path) -> None:
    with serving(models, tmp_path / "spool", token="sesame") as client:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/v1/models", headers={"Authorization": "Bearer sesame"}).status_code == 200
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "path", ["/v1/models", "/metrics", "/docs", "/openapi.json", "/healthz/", "//healthz"]
)
def test_no_header_opens_a_path_without_the_token(
    models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    # Before starlette 1.0.1 the path of a request's URL is taken from the Host header "x/healthz?".
    urls = pytest.importorskip("starlette.datastructures")
    monkeypatch.setattr(urls.URL, "path", "/healthz")
    with serving(models, tmp_path / "spool", token="sesame") as client:
        for headers in (
            {"Host": "x/healthz?"},
            {"X-Forwarded-Prefix": "/healthz", "X-Original-URL": "/healthz"},
            {"Authorization": "bearer sesame"},
            [("Authorization", "Bearer wrong"), ("Authorization", "Bearer sesame")],
        ):
            assert client.get(path, headers=headers).status_code == 401, headers
        with pytest.raises(pytest.importorskip("starlette.websockets").WebSocketDisconnect) as end:
            client.websocket_connect(path).__enter__()
        assert end.value.code == 1008


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},  # a name that was redirected to this machine
        {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "127.0.0.1@evil.example"},
        {"Host": "[::1"},
        {"Host": ""},
        [("Host", "127.0.0.1:8000"), ("Host", "evil.example")],
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},  # a page of another program of this machine
        {"Origin": "http://localhost:8000"},
        [("Origin", HERE), ("Origin", "https://evil.example")],
    ],
)
def test_web_pages_of_other_sites_are_refused_without_a_token(
    models: dict[str, Any], tmp_path: Path, headers: Any
) -> None:
    with serving(models, tmp_path / "spool") as client:
        paths = ("/v1/models", "/metrics", "/openapi.json", "/healthz", "/v1/jobs/" + "0" * 32)
        assert {client.get(path, headers=headers).status_code for path in paths} == {403}
        answer = client.post("/v1/restore", params=query(), content=encoded(), headers=headers)
        assert answer.status_code == 403
        assert not list((tmp_path / "spool").iterdir())
        with pytest.raises(pytest.importorskip("starlette.websockets").WebSocketDisconnect) as end:
            client.websocket_connect("/v1/models", headers=dict(headers)).__enter__()
        assert end.value.code == 1008


def test_the_own_page_of_the_service_may_send_requests(models: dict[str, Any], tmp_path: Path) -> None:
    with serving(models, tmp_path / "spool") as client:
        for host in ("127.0.0.1", "127.0.0.1:8000", "localhost:8000", "LOCALHOST:8000", "[::1]:8000"):
            for headers in ({"Host": host}, {"Host": host, "Origin": f"http://{host}"}):
                assert client.get("/v1/models", headers=headers).status_code == 200, headers


def test_paths_of_ray_itself_are_hidden() -> None:
    starlette = pytest.importorskip("starlette.applications")
    responses = pytest.importorskip("starlette.responses")
    routes = [
        pytest.importorskip("starlette.routing").Route("/{path:path}", lambda request: responses.Response())
    ]
    hidden = TestClient(starlette.Starlette(routes=routes, middleware=proxy_middlewares()))
    assert [hidden.get(path).status_code for path in ("/-/routes", "/-/healthz")] == [404, 404]
    assert hidden.get("/healthz").status_code == 200


def test_addresses_that_others_reach_want_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAVPS_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.168.0.2", "example.org"):
        with pytest.raises(ValueError, match="LAVPS_TOKEN"):
            Serve(models=("a=b",), host=host).serving()
    for host in ("127.0.0.1", "::1", "localhost"):
        assert Serve(models=("a=b",), host=host).serving().token is None
    monkeypatch.setenv("LAVPS_TOKEN", "sesame")
    assert Serve(models=("a=b,c",), host="0.0.0.0").serving().models == {"a": ("b", "c")}
    with pytest.raises(ValueError, match="NAME=PRIOR"):
        Serve(models=("a",)).serving()


def test_health_means_that_the_model_runs(tmp_path: Path) -> None:
    description = TINY | {"in_channels": 3, "out_channels": 3}
    network = build_seeded(description, 0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(float("nan"))
    config = ModelConfig("prior", description, lavps.Flow(), (3, 8, 8), "velocity", "time")
    save_model(tmp_path / "sick", network, config)
    with serving({"sick": (str(tmp_path / "sick"), None)}, tmp_path / "spool") as client:
        answer = client.get("/healthz")
        assert answer.status_code == 503
        assert answer.json() == {"status": "unhealthy"}


@pytest.mark.parametrize("fault", [None, RuntimeError("out of order"), "endless"])
def test_one_probe_answers_all_who_ask_for_health_and_it_ends(
    models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    probes = 0

    async def probe() -> None:
        nonlocal probes
        probes += 1
        await asyncio.sleep(60 if fault == "endless" else 0.2)
        if fault:
            raise fault

    async def scenario() -> list[int]:
        httpx = pytest.importorskip("httpx")
        desk = desk_with(models, tmp_path / "spool", [])
        transport = httpx.ASGITransport(build_app(desk, probe))
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
            answers = await asyncio.gather(*(client.get("/healthz") for _ in range(20)))
        return [answer.status_code for answer in answers]

    monkeypatch.setattr("lavps.apps.service.app._PROBE", 0.5)
    assert asyncio.run(asyncio.wait_for(scenario(), 30)) == [503 if fault else 200] * 20
    assert probes == 1


def test_the_interface_describes_itself(models: dict[str, Any], tmp_path: Path) -> None:
    with serving(models, tmp_path / "spool") as client:
        paths = client.get("/openapi.json").json()["paths"]
        assert {"/v1/restore", "/v1/jobs/{id}", "/healthz", "/metrics"} <= set(paths)
        assert "image/png" in paths["/v1/restore"]["post"]["requestBody"]["content"]
        assert "429" in paths["/v1/restore"]["post"]["responses"]
        enums = {one["name"]: one["schema"].get("enum") for one in paths["/v1/restore"]["post"]["parameters"]}
        assert enums["model"] == ["plain", "warm"]
        assert {"sr4", "denoise", "inpaint"} <= set(enums["task"])
        kinds = {
            path: set(get["get"]["responses"]["200"]["content"])
            for path, get in paths.items()
            if "get" in get
        }
        assert kinds["/metrics"] == {"text/plain"}
        assert kinds["/v1/jobs/{id}/preview"] == {"image/png"}
        assert {"image/png", "image/jpeg", "image/tiff"} <= kinds["/v1/jobs/{id}/pictures/{name}"]


def test_metrics_are_parsed_by_prometheus_and_belong_to_one_service(
    models: dict[str, Any], tmp_path: Path
) -> None:
    with serving(models, tmp_path / "one") as client, serving(models, tmp_path / "two") as other:
        assert client.post("/v1/restore", params=query(), content=encoded()).json()["state"] == "done"
        response = client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = list(parser.text_string_to_metric_families(response.text))
        assert {family.name: family.type for family in families} == {
            "lavps_jobs": "counter",
            "lavps_workers_lost": "counter",
            "lavps_queue_length": "gauge",
            "lavps_running": "gauge",
            "lavps_batch_seconds": "gauge",
            "lavps_batches": "counter",
        }
        jobs = {s.labels["state"]: s.value for s in families[0].samples if s.name == "lavps_jobs_total"}
        assert jobs == {"accepted": 1, "refused": 0, "done": 1, "failed": 0, "cancelled": 0, "quarantined": 0}
        assert 'lavps_jobs_total{state="done"} 0' in other.get("/metrics").text


# --- over a real socket -----------------------------------------------------------------------------------


@contextmanager
def listening(app: Any) -> Iterator[str]:
    uvicorn = pytest.importorskip("uvicorn")
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def test_many_clients_at_once_have_the_right_answers(models: dict[str, Any], tmp_path: Path) -> None:
    app = Serving(models, tmp_path / "spool", Limits(queue=16, batch_size=8), token="sesame").in_process()
    with listening(app) as url:
        client = Client(url, "sesame")
        assert client.healthy()

        def ask(n: int) -> bytes:
            options = Options("plain", "denoise", 0.05, seed=n % 5, quality="fast")
            return client.restore(encoded(n % 3), options, retries=30).pictures["0"]

        with ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(ask, range(48)))
        for n in range(15):
            options = Options("plain", "denoise", 0.05, seed=n % 5, quality="fast")
            alone = levels(restored_by_the_library(models, encoded(n % 3), options, tmp_path / f"{n}"))
            for same in answers[n::15]:
                assert np.abs(levels(same) - alone).max() <= 1
        with pytest.raises(Refused, match="token") as refusal:
            Client(url).models()
        assert refusal.value.status == 401
        slow = client.submit(encoded(), Options("plain", "denoise", 0.05, evaluations=200))
        client.cancel(slow["id"])
        assert client.job(slow["id"])["state"] == "cancelled"
