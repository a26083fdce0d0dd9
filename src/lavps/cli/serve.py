"""``lavps serve``: restoration over HTTP, on Ray Serve."""

from __future__ import annotations

__all__ = ["Serve"]

import ipaddress
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from ..restoration.extras import require
from ..restoration.service.jobs import Limits
from ..restoration.service.serving import Serving
from .failures import fatal
from .listing import absolute


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serve models over HTTP: POST /v1/restore, jobs with progress and previews, /docs for the rest.

    The token of requests, if any, is read from the variable LAVPS_TOKEN; addresses other than this machine's
    own are refused without one.
    """

    # models by name: faces=zoo/faces64, or with an inference model faces=zoo/faces64,zoo/faces64-sr4
    models: tuple[str, ...]
    host: str = "127.0.0.1"  # address to listen at
    port: int = 8000  # to listen at
    workers: int = 1  # replicas that sample, each with all models; 0: in this process, without Ray
    gpus: float | None = None  # of each replica; default 1 with --device cuda
    spool: Path = Path("lavps-jobs")  # folder of accepted jobs and their results
    queue: int = 64  # jobs that may wait; more are answered with 429
    batch: int = 8  # jobs that are sampled together
    max_bytes: int = 16 << 20  # of an image file
    max_pixels: int = 1 << 20  # of a restored image
    max_steps: int = 200  # of the sampler
    max_samples: int = 8  # of an image
    max_seconds: float = 300.0  # of a job
    keep: float = 3600.0  # seconds for which results are kept
    device: str = "auto"  # cpu, cuda, mps; auto takes cuda where there is one

    def run(self) -> None:
        """Serve until interrupted."""
        with fatal("serve"):
            serving = self.serving()
            logging.basicConfig(stream=sys.stderr, format="%(message)s")
            logging.getLogger("lavps.service").setLevel(logging.INFO)
            if self.workers == 0:
                app = serving.in_process()
                require("uvicorn", "serve").run(app, host=self.host, port=self.port, log_level="warning")
            else:
                serving.run()

    def serving(self) -> Serving:
        """What is asked, in plain values; nothing is loaded."""
        token = os.environ.get("LAVPS_TOKEN") or None
        if token is None and not _is_loopback(self.host):
            raise ValueError(
                f"{self.host} can be reached from elsewhere: set LAVPS_TOKEN to a secret that requests must "
                "carry, or listen at 127.0.0.1"
            )
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        limits = Limits(
            self.max_bytes, self.max_pixels, self.max_steps, self.max_samples, self.max_seconds, self.queue,
            self.batch, keep=self.keep,
        )  # fmt: skip
        gpus = self.gpus if self.gpus is not None else float(device.startswith("cuda"))
        return Serving(
            dict(_model(text) for text in self.models), self.spool.resolve(), limits, self.workers, gpus,
            device, token, self.host, self.port,
        )  # fmt: skip


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _model(text: str) -> tuple[str, tuple[str, str | None]]:
    name, equals, places = text.partition("=")
    prior, _, warm = places.partition(",")
    if not equals or not name or not prior:
        raise ValueError(f"a model is NAME=PRIOR or NAME=PRIOR,INFERENCE_MODEL, got {text!r}")
    return name, (absolute(prior), absolute(warm) if warm else None)
