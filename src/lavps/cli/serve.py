"""``lavps serve``: restoration over HTTP, on Ray Serve."""

from __future__ import annotations

__all__ = ["Serve"]

import logging
import os
import sys
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated

import tyro

from ..apps.service.guard import is_loopback, timed_protocol
from ..apps.service.jobs import Limits
from ..apps.service.serving import Serving
from ..checkpoints.hub import local_copy
from ..devices import resolve_device
from ..extras import require
from .failures import fatal
from .listing import absolute
from .options import Device, Folder, N, argument


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serve models over HTTP: POST /v1/restore, jobs with progress and previews, /docs for the rest.

    If the variable LAVPS_TOKEN is set, requests must carry it as their token. It is required for addresses
    other than this machine's own.
    """

    # Models by name: faces=zoo/synthfaces64, or with an inference model faces=PRIOR,MODEL.
    models: Annotated[tuple[str, ...], argument(metavar="NAME=PRIOR[,MODEL] ...")]
    host: Annotated[str, argument(metavar="ADDRESS")] = "127.0.0.1"  # Address of the server.
    port: N[int] = 8000  # Port of the server.
    workers: N[int] = 1  # Number of replicas, each with all models; 0 samples in this process, without Ray.
    gpus: N[float | None] = None  # GPUs per replica; default 1 with --device cuda.
    spool: Folder[Path] = Path("lavps-jobs")  # Folder of accepted jobs and their results.
    limits: Annotated[Limits, tyro.conf.arg(name="")] = field(default_factory=Limits)
    device: Device[str] = "auto"  # cpu, cuda, mps, xpu, or auto: the first available of cuda, mps, xpu, cpu.

    def run(self) -> None:
        """Serve until interrupted."""
        with fatal("serve"):
            serving = self.serving()
            for path in chain.from_iterable(serving.models.values()):
                if path is not None:  # before Ray starts, whose errors are long
                    local_copy(path)
            logging.basicConfig(stream=sys.stderr, format="%(message)s")
            logging.getLogger("lavps.service").setLevel(logging.INFO)
            if self.workers == 0:
                uvicorn, app = require("uvicorn", "serve"), serving.in_process()
                http = timed_protocol(self.limits.receive)
                uvicorn.run(app, host=self.host, port=self.port, log_level="warning", http=http)
            else:
                serving.run()

    def serving(self) -> Serving:
        """Return the options in plain values; nothing is loaded."""
        token = os.environ.get("LAVPS_TOKEN") or None
        if token is None and not is_loopback(self.host):
            raise ValueError(
                f"{self.host} is reachable from other machines: set LAVPS_TOKEN to a secret that requests "
                "must carry, or use --host 127.0.0.1"
            )
        device = resolve_device(self.device)
        gpus = self.gpus if self.gpus is not None else float(device.startswith("cuda"))
        return Serving(
            dict(_model(text) for text in self.models), self.spool.resolve(), self.limits, self.workers, gpus,
            device, token, self.host, self.port,
        )  # fmt: skip


def _model(text: str) -> tuple[str, tuple[str, str | None]]:
    name, equals, paths = text.partition("=")
    prior, _, warm = paths.partition(",")
    if not equals or not name or not prior:
        raise ValueError(f"a model is NAME=PRIOR or NAME=PRIOR,INFERENCE_MODEL, got {text!r}")
    return name, (absolute(prior), absolute(warm) if warm else None)
