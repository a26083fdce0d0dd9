"""The service on Ray Serve: one replica schedules the jobs, any number of replicas sample.

If a sampling replica dies, another one samples its batch again. If the scheduler dies, its successor resumes
the jobs from the job store.
"""

from __future__ import annotations

__all__ = ["Serving"]

import asyncio
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ...extras import require, require_ray, start_ray, warn_of_sockets
from .app import build_app
from .dispatch import WorkerLost, in_this_process
from .jobs import JobStore, Limits
from .pool import ModelPool, Request, Update
from .scheduler import BatchScheduler

APP = "lavps"
_MIDDLEWARES = "lavps.apps.service.guard.proxy_middlewares"  # imported by Ray's HTTP proxy


@dataclass(frozen=True)
class Serving:
    """Configuration of a service, in plain values that pickle."""

    models: dict[str, tuple[str, str | None]]  # Prior and inference model (or None), by name of the model
    spool: Path  # Folder of the job store
    limits: Limits = field(default_factory=Limits)  # Limits of requests
    workers: int = 1  # Number of sampling replicas, each with all models
    gpus: float = 0.0  # Number of GPUs per sampling replica
    device: str = "cpu"  # Device of the models
    token: str | None = None  # Bearer token required of requests
    host: str = "127.0.0.1"  # Address of the HTTP server
    port: int = 8000  # Port of the HTTP server

    def in_process(self) -> Any:
        """Return the application without Ray: models and scheduler in one process."""
        bench = ModelPool(self.models, self.limits, self.device)
        desk = BatchScheduler(bench, in_this_process(bench), JobStore(self.spool), self.limits)
        return build_app(desk, lambda: asyncio.to_thread(bench.probe), self.token)

    def application(self) -> Any:
        """Return the application of Ray Serve."""
        serve = require("ray.serve", "serve")
        resources = {"num_cpus": 1, "num_gpus": self.gpus}

        def front() -> Any:  # Ray Serve accepts a plain function as builder
            return self._front()

        sampler = serve.deployment(
            _Sampler, name="sampler", num_replicas=self.workers, ray_actor_options=resources,
            max_ongoing_requests=2, health_check_timeout_s=120,
        )  # fmt: skip
        desk = serve.deployment(
            serve.ingress(front)(), name="desk", num_replicas=1, max_ongoing_requests=1000,
            ray_actor_options={"num_cpus": 0.5}, health_check_timeout_s=120,
        )  # fmt: skip
        return desk.bind(sampler.bind(replace(self, token=None)))

    def _front(self) -> Any:
        """Build the application of the scheduler, in its replica."""
        serve, exceptions = require("ray.serve", "serve"), require("ray.exceptions", "serve")
        logging.getLogger("lavps.service").setLevel(logging.INFO)
        bind_replica_to_loopback()
        sampler = serve.get_deployment_handle("sampler", app_name=APP)

        async def dispatch(requests: Sequence[Request]) -> AsyncIterator[Update]:
            try:
                async for update in sampler.options(stream=True).run.remote(list(requests)):
                    yield update
            except exceptions.RayActorError as error:
                raise WorkerLost(str(error)) from error

        async def probe() -> None:
            await sampler.probe.remote()

        bench = ModelPool(self.models, self.limits, self.device)
        desk = BatchScheduler(bench, dispatch, JobStore(self.spool), self.limits, self.workers)
        return build_app(desk, probe, self.token)

    def run(self) -> None:
        """Serve until interrupted."""
        os.environ["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] = _MIDDLEWARES
        os.environ.setdefault(
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60"
        )  # 5 is too short on a busy machine
        os.environ.pop("LAVPS_TOKEN", None)  # processes of Ray inherit the environment
        if os.environ.get("RAY_ADDRESS"):
            ray = require_ray("serve")
            if not ray.is_initialized():
                ray.init(address=os.environ["RAY_ADDRESS"], logging_level=logging.ERROR)
        elif "ray" not in sys.modules or not sys.modules["ray"].is_initialized():
            start_ray("serve", num_cpus=self.workers + 2)
        serve = require("ray.serve", "serve")
        serve.start(http_options={"host": self.host, "port": self.port})
        serve.run(self.application(), name=APP, route_prefix="/")
        if not os.environ.get("RAY_ADDRESS"):
            warn_of_sockets(self.port)
        threading.Event().wait()  # until interrupted


def bind_replica_to_loopback() -> None:
    """Bind the server that Ray opens in every replica to loopback, if Ray itself is bound to it.

    The server unpickles what it receives with Ray's token. Ray binds it to all addresses, without an option.
    """
    ray, replica = require_ray("serve"), require("ray.serve._private.replica", "serve")
    bind = getattr(replica, "add_port_to_grpc_server", None)
    if bind is not None and ray.util.get_node_ip_address() == "127.0.0.1":
        replica.add_port_to_grpc_server = lambda server, address: bind(
            server, address.replace("[::]", "127.0.0.1")
        )


class _Sampler:
    """A sampling replica."""

    def __init__(self, serving: Serving) -> None:
        torch.set_num_threads(1)
        bind_replica_to_loopback()
        self.bench = ModelPool(serving.models, serving.limits, serving.device)
        self.bench.probe()

    def run(self, requests: list[Request]) -> Iterator[Update]:
        """Sample the requests of one batch."""
        yield from self.bench.run(requests)

    def probe(self) -> None:
        """Evaluate every model once."""
        self.bench.probe()
