"""The service on Ray Serve: one replica at the desk, any number that sample.

A replica that samples and dies has its batch sampled again by another; a desk that dies finds its jobs in the
spool.
"""

from __future__ import annotations

__all__ = ["Serving"]

import logging
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..extras import require, require_ray
from .app import build_app
from .bench import Bench, Request, Update
from .desk import Desk, WorkerLost
from .jobs import Limits, Spool

APP = "lavps"


@dataclass(frozen=True)
class Serving:
    """What is served, in plain values that pickle.

    Attributes:
        models: name to (prior, inference model or None).
        spool: folder of the jobs.
        limits: of requests.
        workers: replicas that sample, each with all models.
        gpus: of each.
        device: where to compute.
        token: that requests must carry.
        host: address to listen at.
        port: to listen at.
    """

    models: dict[str, tuple[str, str | None]]
    spool: Path
    limits: Limits = field(default_factory=Limits)
    workers: int = 1
    gpus: float = 0.0
    device: str = "cpu"
    token: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000

    def in_process(self) -> Any:
        """The application without Ray: models and desk in one process."""
        from .desk import in_this_process

        bench = Bench(self.models, self.limits, self.device)
        desk = Desk(bench, in_this_process(bench), Spool(self.spool), self.limits)

        async def probe() -> None:
            import asyncio

            await asyncio.to_thread(bench.probe)

        return build_app(desk, probe, self.token)

    def application(self) -> Any:
        """The application of Ray Serve."""
        serve = require("ray.serve", "serve")
        resources = {"num_cpus": 1, "num_gpus": self.gpus}

        def front() -> Any:  # a plain function, by which it is known for a builder
            return self._front()

        sampler = serve.deployment(
            _Sampler, name="sampler", num_replicas=self.workers, ray_actor_options=resources,
            max_ongoing_requests=2, health_check_timeout_s=120,
        )  # fmt: skip
        desk = serve.deployment(
            serve.ingress(front)(), name="desk", num_replicas=1, max_ongoing_requests=1000,
            ray_actor_options={"num_cpus": 0.5}, health_check_timeout_s=120,
        )  # fmt: skip
        return desk.bind(sampler.bind(self))

    def _front(self) -> Any:
        """The desk, made in its replica."""
        serve, exceptions = require("ray.serve", "serve"), require("ray.exceptions", "serve")
        logging.getLogger("lavps.service").setLevel(logging.INFO)
        sampler = serve.get_deployment_handle("sampler", app_name=APP)

        async def dispatch(requests: Sequence[Request]) -> AsyncIterator[Update]:
            try:
                async for update in sampler.options(stream=True).run.remote(list(requests)):
                    yield update
            except exceptions.RayActorError as error:
                raise WorkerLost(str(error)) from error

        async def probe() -> None:
            await sampler.probe.remote()

        desk = Desk(
            Bench(self.models, self.limits, self.device),
            dispatch,
            Spool(self.spool),
            self.limits,
            self.workers,
        )
        return build_app(desk, probe, self.token)

    def run(self) -> None:
        """Serve until interrupted."""
        ray, serve = require_ray("serve"), require("ray.serve", "serve")
        if not ray.is_initialized():
            address = os.environ.get("RAY_ADDRESS")
            own = {} if address else {"num_cpus": self.workers + 2, "include_dashboard": False}
            ray.init(address=address, logging_level=logging.ERROR, **own)
        serve.start(http_options={"host": self.host, "port": self.port})
        serve.run(self.application(), name=APP, route_prefix="/", blocking=True)


class _Sampler:
    """A replica with the models."""

    def __init__(self, serving: Serving) -> None:
        import torch

        torch.set_num_threads(1)
        self.bench = Bench(serving.models, serving.limits, serving.device)
        self.bench.probe()

    def run(self, requests: list[Request]) -> Iterator[Update]:
        """Sample a batch."""
        yield from self.bench.run(requests)

    def probe(self) -> None:
        """Run every model once."""
        self.bench.probe()
