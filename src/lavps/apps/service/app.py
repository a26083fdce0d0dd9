"""The HTTP interface of the service: an ASGI application, with OpenAPI documentation at ``/docs``.

Images are accepted as request bodies only, never as paths or URLs. Responses reveal no internal errors.
"""

__all__ = ["build_app"]

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from typing import Annotated, Any

from ...extras import require
from ...image_formats import SUFFIXES
from ...restoration.presets import Quality
from .guard import PUBLIC, FramingGuard, LoopbackGuard, TokenGuard
from .jobs import Job, Options, Refused
from .metrics import Metrics
from .pool import TASKS
from .scheduler import BatchScheduler

# No postponed annotations: FastAPI evaluates them, and some are defined inside build_app.
_TYPES = {suffix: f"image/{format.lower()}" for suffix, format in SUFFIXES.items() if format != "NPY"}
_HEALTHY = 5.0  # seconds for which the result of a probe is reused
_PROBE = 10.0  # seconds within which the models must answer a probe
_PICTURE = "/v1/jobs/{id}/pictures/{name}"
_IMAGE = {"schema": {"type": "string", "format": "binary"}}
_PNG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": _IMAGE}}}
_KINDS = (*dict.fromkeys(_TYPES.values()), "application/octet-stream")
_PICTURES: dict[int | str, dict[str, Any]] = {200: {"content": dict.fromkeys(_KINDS, _IMAGE)}}
_BODY = {"requestBody": {"required": True, "content": dict.fromkeys(_KINDS, _IMAGE)}}
_FAILURES = {
    "401": "the token is missing or invalid",
    "403": "a web page of another site sent the request",
    "404": "there is no such model, job or image",
    "408": "the body did not arrive in time",
    "409": "the job is not done",
    "413": "too many bytes or pixels",
    "415": "the body is not an image",
    "422": "the options or the image are invalid",
    "429": "the queue is full: see Retry-After",
    "503": "a model or a worker fails",
    "507": "the disk is full: see Retry-After",
}
_NOISE = "Standard deviation of the noise, with images in [-1, 1]; default an estimate from the image."
_log = logging.getLogger("lavps.service")


def build_app(desk: BatchScheduler, probe: Any, token: str | None = None) -> Any:
    """Build the application.

    Args:
        desk: Scheduler of the jobs.
        probe: Coroutine function that evaluates every model once and raises an error if one fails.
        token: Bearer token required of requests; None accepts all requests from this machine.
    """
    require("fastapi", "serve")
    from fastapi import FastAPI, Path, Query, Request, Response
    from fastapi.responses import JSONResponse, PlainTextResponse

    limits, collected = desk.limits, Metrics(desk)

    @asynccontextmanager
    async def lifespan(app: Any) -> Any:
        await desk.open()
        yield
        await desk.close()

    def responses(*codes: str) -> dict[int | str, dict[str, Any]]:
        return {int(code): {"description": _FAILURES[code]} for code in [*codes, "401" if token else "403"]}

    app = FastAPI(title="lavps", version="1", lifespan=lifespan, redoc_url=None)
    Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
    Wait = Annotated[float, Query(ge=0, le=limits.wait, description="Seconds to wait for the job to finish.")]
    probed: asyncio.Task[float] | None = None

    @app.middleware("http")
    async def reveal_no_errors(request: Request, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except Exception as error:
            _log.error("internal error: %s", type(error).__name__)
            return JSONResponse({"detail": "internal error"}, 500)

    # Added last, so the first to see a request.
    if token:
        app.add_middleware(TokenGuard, token=token)
    else:
        app.add_middleware(LoopbackGuard)
    app.add_middleware(FramingGuard)

    @app.exception_handler(Refused)
    async def refused(request: Request, refusal: Refused) -> Any:
        headers = {} if refusal.wait is None else {"Retry-After": str(refusal.wait)}
        return JSONResponse({"detail": refusal.reason}, refusal.status, headers)

    def known(id: str) -> Job:
        try:
            return desk.job(id)
        except KeyError:
            raise Refused(404, "there is no such job, or it has expired") from None

    def answer(job: Job) -> Response:
        links = {"self": f"/v1/jobs/{job.id}", "preview": f"/v1/jobs/{job.id}/preview"}
        if job.state == "done":
            links |= {name: _PICTURE.format(id=job.id, name=name) for name in job.pictures}
        body, status = job.describe() | {"links": links}, 200 if job.finished else 202
        return JSONResponse(body, status, {"Location": links["self"]})

    async def body_of(request: Request) -> bytes:
        content, length = bytearray(), request.headers.get("content-length", "0")
        too_large = Refused(413, f"an image may have at most {limits.max_bytes} bytes")
        if length.isdigit() and int(length) > limits.max_bytes:
            raise too_large

        async def receive() -> None:
            async for chunk in request.stream():
                content.extend(chunk)
                if len(content) > limits.max_bytes:
                    raise too_large

        try:
            await asyncio.wait_for(receive(), limits.receive)
        except asyncio.TimeoutError:
            raise Refused(408, f"the body did not arrive within {limits.receive:g} s") from None
        if not content:
            raise Refused(415, "the body is empty: send the image itself")
        return bytes(content)

    @app.post(
        "/v1/restore",
        responses=responses("404", "408", "413", "415", "422", "429", "507")
        | {200: {"description": "the finished job"}, 202: {"description": "the accepted job"}},
        openapi_extra=_BODY,
    )
    async def restore(
        request: Request,
        model: Annotated[str, Query(max_length=100, json_schema_extra={"enum": list(desk.bench.models)})],
        task: Annotated[str, Query(max_length=100, json_schema_extra={"enum": list(TASKS)})],
        noise: Annotated[float | None, Query(gt=0, le=10, description=_NOISE)] = None,
        samples: Annotated[int, Query(ge=1, le=limits.max_samples)] = 1,
        seed: Annotated[int, Query(ge=0, lt=2**63)] = 0,
        quality: Quality | None = None,
        evaluations: Annotated[int | None, Query(ge=1, le=limits.max_evaluations)] = None,
        wait: Wait = 0.0,
    ) -> Response:
        """Restore the image in the body; return its job, finished if it ended within the waiting time."""
        options = Options(model, task, noise, samples, seed, quality, evaluations)
        job = await desk.submit(options, lambda: body_of(request))
        return answer(await desk.wait(job.id, wait) if wait else job)

    @app.get("/v1/jobs/{id}", responses=responses("404", "422") | {202: {"description": "not finished"}})
    async def job(id: Id, wait: Wait = 0.0) -> Response:
        """Return the state of a job."""
        known(id)
        return answer(await desk.wait(id, wait))

    @app.delete("/v1/jobs/{id}", responses=responses("404", "422"))
    async def cancel(id: Id) -> Response:
        """Cancel a job that is not finished."""
        known(id)
        return answer(await desk.cancel(id))

    @app.get("/v1/jobs/{id}/preview", response_class=Response, responses=responses("404", "422") | _PNG)
    async def preview(id: Id) -> Response:
        """Return the current estimate of the image."""
        known(id)
        content = desk.preview(id)
        if content is None:
            raise Refused(404, "there is no preview yet")
        return Response(content, media_type="image/png")

    @app.get(_PICTURE, response_class=Response, responses=responses("404", "409", "422") | _PICTURES)
    async def picture(
        id: Id, name: Annotated[str, Path(pattern="^([0-9]{1,3}|mean|uncertainty)$")]
    ) -> Response:
        """Return a sample by its number, or the mean or the uncertainty of several samples."""
        found = known(id)
        if found.state != "done":
            raise Refused(409, f"the job is {found.state}")
        content = desk.spool.picture(id, name)
        if content is None:
            raise Refused(404, f"the job has no image {name}")
        suffix = ".png" if name == "uncertainty" else found.suffix
        return Response(content, media_type=_TYPES.get(suffix, "application/octet-stream"))

    @app.get("/v1/models", responses=responses())
    async def models() -> dict[str, Any]:
        """Return the models with their image shapes; other sizes are restored in overlapping windows."""
        return {"models": dict(desk.bench.shapes), "tasks": list(TASKS)}

    async def probe_once() -> float:
        """Return the time until which the models count as healthy; 0 if one fails."""
        try:
            await asyncio.wait_for(probe(), _PROBE)
        except Exception as error:
            _log.error("unhealthy: %s", type(error).__name__)
            return 0.0
        return time.monotonic() + _HEALTHY

    @app.get(PUBLIC, responses=responses("503"))
    async def health() -> Response:
        """Evaluate the models, and return whether they and the workers work."""
        nonlocal probed
        if not desk.healthy:
            _log.error("unhealthy: a worker task has ended")
            return JSONResponse({"status": "unhealthy"}, 503)
        if probed is None or (probed.done() and probed.result() < time.monotonic()):
            probed = asyncio.create_task(probe_once())  # one for all who wait
        healthy = await asyncio.shield(probed) > 0
        return JSONResponse({"status": "ok"}) if healthy else JSONResponse({"status": "unhealthy"}, 503)

    @app.get("/metrics", response_class=PlainTextResponse, responses=responses())
    async def metrics() -> Response:
        """Return counters and gauges in Prometheus's text format."""
        return Response(collected.encode(), media_type="text/plain; version=0.0.4")

    return app
