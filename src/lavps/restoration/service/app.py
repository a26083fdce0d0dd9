"""The service over HTTP: an ASGI application around a desk, with OpenAPI at ``/docs``.

It takes images as the body of a request, never a path or a URL, and says nothing of its inside when something
goes wrong.
"""

__all__ = ["build_app"]

import hmac
import logging
import time
from contextlib import asynccontextmanager
from typing import Annotated, Any

from ..extras import require
from ..presets import Quality
from .bench import TASKS
from .desk import Desk
from .jobs import Job, Options, Refused

# No postponed annotations in here: the framework looks at them, and some are made inside of build_app.
_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".tif": "image/tiff", ".webp": "image/webp"}
_HEALTHY = 5.0  # seconds for which a probe holds
_IMAGE = {"schema": {"type": "string", "format": "binary"}}
_KINDS = (*_TYPES.values(), "application/octet-stream")
_BODY = {"requestBody": {"required": True, "content": dict.fromkeys(_KINDS, _IMAGE)}}
_FAILURES = {
    "401": "the token is missing or wrong",
    "404": "there is no such model, job or picture",
    "409": "the job is not done",
    "413": "too many bytes or pixels",
    "415": "the body is no image",
    "422": "the options or the image do not fit",
    "429": "the queue is full: see Retry-After",
}
_log = logging.getLogger("lavps.service")


def build_app(desk: Desk, probe: Any, token: str | None = None) -> Any:
    """The application.

    Args:
        desk: does the work.
        probe: coroutine function that runs the models once, or raises.
        token: that requests must carry; None lets everyone in.
    """
    require("fastapi", "serve")
    from fastapi import FastAPI, Path, Query, Request, Response
    from fastapi.responses import JSONResponse

    limits = desk.limits

    @asynccontextmanager
    async def lifespan(app: Any) -> Any:
        await desk.open()
        yield
        await desk.close()

    def responses(*codes: str) -> dict[int | str, dict[str, Any]]:
        possible = [*codes, "401"] if token else codes
        return {int(code): {"description": _FAILURES[code]} for code in possible}

    app = FastAPI(title="lavps", version="1", lifespan=lifespan, redoc_url=None)
    Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
    Wait = Annotated[float, Query(ge=0, le=limits.wait, description="seconds to wait for the end of the job")]
    healthy: dict[str, float] = {"until": 0.0}

    @app.middleware("http")
    async def guard(request: Request, call_next: Any) -> Any:
        if token and request.url.path != "/healthz":
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                return JSONResponse({"detail": _FAILURES["401"]}, 401, {"WWW-Authenticate": "Bearer"})
        try:
            return await call_next(request)
        except Exception as error:
            _log.error("internal error: %s", type(error).__name__)
            return JSONResponse({"detail": "internal error"}, 500)

    @app.exception_handler(Refused)
    async def refused(request: Request, refusal: Refused) -> Any:
        headers = {} if refusal.wait is None else {"Retry-After": str(refusal.wait)}
        return JSONResponse({"detail": refusal.reason}, refusal.status, headers)

    def known(id: str) -> Job:
        try:
            return desk.job(id)
        except KeyError:
            raise Refused(404, "there is no such job, or its time is over") from None

    def answer(job: Job) -> Response:
        body = job.describe()
        links = {"self": f"/v1/jobs/{job.id}", "preview": f"/v1/jobs/{job.id}/preview"}
        if job.state == "done":
            names = [str(n) for n in range(job.options.samples)]
            names += ["mean", "uncertainty"] if job.options.samples > 1 else []
            links |= {name: f"/v1/jobs/{job.id}/pictures/{name}" for name in names}
        return JSONResponse(
            body | {"links": links}, 200 if job.finished else 202, {"Location": links["self"]}
        )

    async def body_of(request: Request) -> bytes:
        stated = request.headers.get("content-length", "0")
        content = bytearray()
        if stated.isdigit() and int(stated) > limits.most_bytes:
            raise Refused(413, f"an image may have {limits.most_bytes} bytes")
        async for chunk in request.stream():
            content += chunk
            if len(content) > limits.most_bytes:
                raise Refused(413, f"an image may have {limits.most_bytes} bytes")
        if not content:
            raise Refused(415, "the body is empty: send the image itself")
        return bytes(content)

    @app.post(
        "/v1/restore",
        responses=responses("404", "413", "415", "422", "429")
        | {200: {"description": "the job, finished"}, 202: {"description": "the job, accepted"}},
        openapi_extra=_BODY,
    )
    async def restore(
        request: Request,
        model: Annotated[str, Query(max_length=100)],
        task: Annotated[str, Query(max_length=100, description=f"one of {', '.join(TASKS)}")],
        noise: Annotated[float, Query(gt=0, le=10)] = 0.05,
        samples: Annotated[int, Query(ge=1, le=limits.most_samples)] = 1,
        seed: Annotated[int, Query(ge=0, lt=2**63)] = 0,
        quality: Quality = "balanced",
        steps: Annotated[int | None, Query(ge=3, le=limits.most_steps)] = None,
        wait: Wait = 0.0,
    ) -> Response:
        """Restore the image in the body; the answer is a job, finished if it was waited for long enough."""
        options = Options(model, task, noise, samples, seed, quality, steps)
        job = await desk.submit(options, await body_of(request))
        return answer(await desk.wait(job.id, wait) if wait else job)

    @app.get("/v1/jobs/{id}", responses=responses("404", "422") | {202: {"description": "not finished"}})
    async def job(id: Id, wait: Wait = 0.0) -> Response:
        """Where a job stands."""
        known(id)
        return answer(await desk.wait(id, wait))

    @app.delete("/v1/jobs/{id}", responses=responses("404", "422"))
    async def cancel(id: Id) -> Response:
        """End a job that is not finished."""
        known(id)
        return answer(await desk.cancel(id))

    @app.get(
        "/v1/jobs/{id}/preview", responses=responses("404", "422") | {200: {"content": {"image/png": _IMAGE}}}
    )
    async def preview(id: Id) -> Response:
        """How the image looks at this moment."""
        known(id)
        content = desk.preview(id)
        if content is None:
            raise Refused(404, "there is nothing to be seen yet")
        return Response(content, media_type="image/png")

    @app.get(
        "/v1/jobs/{id}/pictures/{name}",
        responses=responses("404", "409", "422") | {200: {"content": {"image/png": _IMAGE}}},
    )
    async def picture(
        id: Id, name: Annotated[str, Path(pattern="^([0-9]{1,3}|mean|uncertainty)$")]
    ) -> Response:
        """A sample by its number, the mean of several, or their uncertainty."""
        found = known(id)
        if found.state != "done":
            raise Refused(409, f"the job is {found.state}")
        content = desk.spool.picture(id, name)
        if content is None:
            raise Refused(404, f"the job has no picture {name}")
        suffix = ".png" if name == "uncertainty" else found.suffix
        return Response(content, media_type=_TYPES.get(suffix, "application/octet-stream"))

    @app.get("/v1/models", responses=responses())
    async def models() -> dict[str, Any]:
        """Models by name, with the shape of their images; other sizes are restored window by window."""
        return {"models": dict(desk.bench.shapes), "tasks": list(TASKS)}

    @app.get("/healthz", responses={503: {"description": "the models do not run"}})
    async def health() -> Response:
        """Whether the models run; they are run to find out."""
        if time.monotonic() > healthy["until"]:
            try:
                await probe()
            except Exception as error:
                _log.error("unhealthy: %s", type(error).__name__)
                return JSONResponse({"status": "unhealthy"}, 503)
            healthy["until"] = time.monotonic() + _HEALTHY
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", responses=responses())
    async def metrics() -> Response:
        """Counts and gauges in Prometheus's text format."""
        return Response(desk.metrics(), media_type="text/plain; version=0.0.4")

    return app
