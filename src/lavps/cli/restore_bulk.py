"""``lavps restore-bulk``: folders, shards or tables of measurements, restored exactly once on Ray.

Exit codes: 0 all images are restored; 1 nothing could be begun, or too many failed; 3 some failed, each with
a reason in the manifest; 130 interrupted. The same command, given again, does what is missing.
"""

from __future__ import annotations

__all__ = ["RestoreBulk"]

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from ..restoration.bulk import Bulk, Cluster, Recipe, Tally, TooManyFailures
from ..restoration.bulk.report import write_report
from ..restoration.bulk.sources import Kind
from ..restoration.bulk.stores import is_url
from ..restoration.job import Job
from ..restoration.measuring import Measuring
from ..restoration.presets import Quality
from .failures import fatal
from .listing import absolute

_SECONDS = 10.0  # between lines where there is no terminal


@dataclass(frozen=True, kw_only=True)
class RestoreBulk:
    """Restore any number of measured images, exactly once, on this machine or a Ray cluster.

    Killed at any moment, the same command does what is missing and gives what an uninterrupted run gives.
    """

    # folder, glob, tar shards (WebDataset) or Parquet; a path, or any URL that fsspec knows (s3://...)
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    # folder or URL of what is written
    destination: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DESTINATION")]
    prior: str  # model folder or Hub id of the prior, readable on every machine
    # sr4, inpaint, deblur, denoise, ... or file.py:attribute; left out: what a manifest of lavps degrade says
    task: Annotated[str | None, tyro.conf.arg(aliases=["--operator"])] = None
    mask: Path | None = None  # for inpaint: white where known; left out: what is transparent is missing
    kernel: Path | None = None  # for deblur: picture of a point of light, or .npy
    noise: float | None = None  # standard deviation; 0.05 is 6.4 grey levels of 255, and the default
    inference_model: str | None = None  # model folder or Hub id of an inference model of this prior
    samples: int = 1  # of every image; from 2 on with their mean and uncertainty
    seed: int = 0  # of the sampler's noise
    own_noise: bool = False  # every image has noise of its own, from its content; else that of lavps restore
    quality: Quality | None = None  # fast, balanced (default) or best
    format: Kind | None = None  # of what is written: files, tar, parquet; default as the source
    column: str = ""  # of the images in Parquet; default the first that holds bytes
    batch: int = 16  # images of one size at a time, on every worker
    tile_batch: int = 16  # windows at a time, for images of another size than the prior's
    workers: int | None = None  # processes with a model each; default one a GPU or processor; 0: without Ray
    cpus: int = 1  # processors a worker
    gpus: float | None = None  # GPUs a worker, 0.25 for four on one; default 1 with --device cuda
    address: str | None = None  # of a Ray cluster ("auto" on a node of it); default this machine alone
    max_failure_rate: float = 1.0  # stop where a larger share of the images failed
    label: int | None = None  # the class, for a class-conditional prior of another library
    device: str = "auto"  # cpu, cuda, mps; auto takes cuda where there is one

    def run(self) -> None:
        """Restore what is not there yet, and write the report."""
        with fatal("restore-bulk"):
            bulk = self.bulk()
            line = _Line()
            try:
                tally = bulk.run(line.show)
            except TooManyFailures as reason:
                line.end()
                raise ValueError(f"{reason}. What is done is kept: give the command again to go on") from None
            except KeyboardInterrupt:
                line.end()
                raise KeyboardInterrupt("interrupted: the same command goes on from here") from None
            line.end()
            page = write_report(bulk, tally)
        self._conclude(tally, page)

    def bulk(self) -> Bulk:
        """What is asked, in plain values; nothing is loaded."""
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        how = Measuring(
            _script(self.task),
            self.noise,
            self.mask and self.mask.resolve(),
            self.kernel and self.kernel.resolve(),
        )
        job = Job(
            absolute(self.prior),
            self.inference_model and absolute(self.inference_model),
            how,
            self.samples,
            self.seed,
            quality=self.quality,
            tile_batch=self.tile_batch,
            device=device,
            label=self.label,
        )
        how.check()
        return Bulk(
            self.source if is_url(self.source) else os.path.abspath(self.source),
            self.destination if is_url(self.destination) else os.path.abspath(self.destination),
            Recipe.of(job, self.own_noise),
            self.format,
            self.batch,
            self.max_failure_rate,
            Cluster(self.workers, self.cpus, self.gpus, self.address),
            self.column,
        )

    def _conclude(self, tally: Tally, page: str) -> None:
        done = tally.fresh + tally.skipped
        print(f"{done} of {tally.items} images are restored, {tally.fresh} of them now; the report is {page}")
        if tally.distrusted:
            print(f"{tally.distrusted} do not explain their measurements: see the report before you use them")
        for _, record in tally.failures[:20]:
            print(f"{record.name}: {record.reason}", file=sys.stderr)
        if tally.failed > 20:
            print(f"and {tally.failed - 20} more: all are in the manifest", file=sys.stderr)
        if tally.failed:
            raise SystemExit(3)


def _script(task: str | None) -> str | None:
    """A task whose script, if it has one, every process finds."""
    file, colon, attribute = (task or "").rpartition(":")
    return f"{absolute(file)}:{attribute}" if colon else task


class _Line:
    """The state of the run: one line that is written over in a terminal, one every 10 seconds elsewhere."""

    def __init__(self) -> None:
        self.over, self.last, self.length = sys.stderr.isatty(), 0.0, 0

    def show(self, tally: Tally) -> None:
        """Show it, if it is time."""
        now = time.monotonic()
        if now - self.last < (0.2 if self.over else _SECONDS):
            return
        self.last, text = now, tally.line()
        if self.over:
            print("\r" + text.ljust(self.length), end="", file=sys.stderr, flush=True)
            self.length = len(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line."""
        if self.length:
            print(file=sys.stderr)
