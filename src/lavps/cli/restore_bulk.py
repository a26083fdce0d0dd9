"""``lavps restore-bulk``: folders, shards or tables of measurements, restored exactly once on Ray.

Exit codes: 0 all images are restored; 1 the command could not start, or too many failed; 3 some failed, each
with a reason in the manifest; 130 interrupted. The same command, run again, restores what is missing.
"""

from __future__ import annotations

__all__ = ["RestoreBulk"]

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated

import tyro

from ..apps.bulk import Bulk, Cluster, Recipe, RunStats, TooManyFailures
from ..apps.bulk.report import write_report
from ..apps.bulk.sources import Kind
from ..apps.bulk.stores import absolute_place
from ..extras import require
from .failures import fatal
from .listing import absolute
from .options import N, Option, RestorationOptions, argument

_SECONDS = 10.0  # interval between progress lines without a terminal


@dataclass(frozen=True, kw_only=True)
class RestoreBulk(RestorationOptions):
    """Restore any number of measured images, exactly once, on this machine or a Ray cluster.

    If the process is killed, the same command restores the remaining images, with the same results.
    """

    # Folder, glob, tar shards (WebDataset) or Parquet: a path, or a URL that fsspec supports (s3://...).
    source: Annotated[str, tyro.conf.Positional, argument(metavar="SOURCE")]
    # Output folder, or URL.
    destination: Annotated[str, tyro.conf.Positional, argument(metavar="DESTINATION")]
    own_noise: bool = False  # Sampler noise drawn per image, from its content; else as in lavps restore.
    format: Option[Kind | None] = None  # Format of the output; default that of the source.
    # Column of the images in Parquet; default the first that holds bytes.
    column: Annotated[str, argument(metavar="NAME")] = ""
    batch_size: N[int] = 16  # Images of one size per batch and worker.
    cluster: Annotated[Cluster, tyro.conf.arg(name="")] = field(default_factory=Cluster)
    # Largest share of failed images; the run stops above it.
    max_failure_rate: Annotated[float, argument(metavar="SHARE")] = 1.0

    # Replacement of results that an earlier run wrote to the same folder with other settings.
    overwrite: bool = False

    def run(self) -> None:
        """Restore the missing images, and write the report."""
        with fatal("restore-bulk"), _terminable():
            require("jinja2", "bulk")  # for the report: fail now, not after the run
            bulk = self.bulk()
            line = _Line()
            try:
                tally = bulk.run(line.show)
            except TooManyFailures as reason:
                raise ValueError(
                    f"{reason}. Restored images are kept: run the command again to continue"
                ) from None
            except KeyboardInterrupt:
                raise KeyboardInterrupt("interrupted: run the same command to continue") from None
            finally:
                line.end()
            page = write_report(bulk, tally)
        self._conclude(tally, page)

    def bulk(self) -> Bulk:
        """Return the options in plain values, with paths that are valid in every process."""
        options = replace(
            self,
            prior=absolute(self.prior),
            inference_model=self.inference_model and absolute(self.inference_model),
            task=_script(self.task),
            mask=self.mask and self.mask.resolve(),
            kernel=self.kernel and self.kernel.resolve(),
        )
        job = options.job()
        job.measuring.check()
        return Bulk(
            absolute_place(self.source),
            absolute_place(self.destination),
            Recipe.from_config(job, self.own_noise),
            self.format,
            self.batch_size,
            self.max_failure_rate,
            self.cluster,
            self.column,
            self.overwrite,
        )

    def _conclude(self, tally: RunStats, page: str) -> None:
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


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)


def _script(task: str | None) -> str | None:
    """Return the task with an absolute path to its script, if it has one."""
    file, colon, attribute = (task or "").rpartition(":")
    return f"{absolute(file)}:{attribute}" if colon else task


class _Line:
    """Progress of the run: one line, overwritten in a terminal and repeated every 10 seconds elsewhere."""

    def __init__(self) -> None:
        self.over, self.last, self.length = sys.stderr.isatty(), 0.0, 0

    def show(self, tally: RunStats) -> None:
        """Print the progress if the interval has passed."""
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
        """End the line."""
        if self.length:
            print(file=sys.stderr)
