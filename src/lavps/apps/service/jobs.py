"""Jobs of the service: options, limits, state, and storage on disk.

A job is written to disk before it is acknowledged, so no accepted job is lost if the process dies. Only the
user of the service can read the store.
"""

from __future__ import annotations

__all__ = ["Job", "JobStore", "Limits", "Options", "Refused", "State"]

import json
import os
import re
import secrets
import shutil
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from ...io.atomic import atomically
from ...restoration.presets import Quality

State = Literal["queued", "running", "done", "failed", "cancelled"]
_ID = re.compile(r"[0-9a-f]{32}")
_QUARANTINE = "quarantine"
_MAX_QUARANTINED = 100


class Refused(Exception):  # noqa: N818 - public name
    """A request that is not accepted.

    Attributes:
        status: HTTP status code.
        reason: Explanation for the client.
        wait: Seconds until a retry is useful; None if it is not.
    """

    def __init__(self, status: int, reason: str, wait: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.wait = status, reason, wait


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together."""

    max_bytes: int = 16 << 20  # Maximum size of an image file in bytes
    max_pixels: int = 1 << 20  # Maximum number of pixels of a restored image
    max_evaluations: int = 200  # Maximum number of denoiser evaluations per sample
    max_samples: int = 8  # Maximum number of samples per image
    max_seconds: float = 300.0  # Maximum sampling time of a job in seconds
    queue: int = 64  # Maximum number of waiting jobs; further requests are answered with 429
    batch_size: int = 8  # Maximum number of jobs sampled together
    patience: float = 0.02  # Seconds for which a job waits for others to be sampled with it
    keep: float = 3600.0  # Seconds for which results are kept, from the end of the job
    keep_jobs: int = 1000  # Maximum number of finished jobs kept; the oldest are removed
    keep_bytes: int = 4 << 30  # Maximum size of the finished jobs kept, in bytes; the oldest are removed
    receive: float = 30.0  # Maximum time in seconds in which the headers or the body of a request may arrive
    wait: float = 60.0  # Maximum time in seconds for which one request may wait for a job to finish


@dataclass(frozen=True)
class Options:
    """Options of a request.

    Attributes:
        model: Name of the model.
        task: Measurement operator: sr4, denoise, inpaint (transparent where missing), ...
        noise: Standard deviation of the noise, with images in [-1, 1]; default an estimate from the image.
        samples: Number of samples to draw.
        seed: Seed of the sampler; the same request with the same seed has the same result.
        quality: Preset: fast, balanced or best; default balanced.
        evaluations: Maximum number of denoiser evaluations per sample, instead of a quality.

    Example:
        >>> Options("faces", "sr4", noise=0.05, samples=4).noise
        0.05
    """

    model: str
    task: str
    noise: float | None = None
    samples: int = 1
    seed: int = 0
    quality: Quality | None = None
    evaluations: int | None = None


@dataclass
class Job:
    """A request and its state."""

    id: str  # Random identifier, which cannot be guessed
    options: Options  # Options of the request
    state: State = "queued"  # State of the job
    step: int = 0  # Number of completed sampler steps
    total: int = 0  # Total number of sampler steps
    reason: str = ""  # Reason of a failure
    noise: float | None = None  # Standard deviation of the noise, given or estimated, once done
    chi_square: list[float] = field(default_factory=list)  # Misfit of each sample once done, ideally 1
    acceptance: float | None = None  # Acceptance rate of the safeguard once done
    batch: int = 0  # Number of jobs sampled together
    created: float = field(default_factory=time.time)  # Time of acceptance in seconds since 1970
    ended: float = 0.0  # Time of the end in seconds since 1970; 0 if not finished
    seconds: float = 0.0  # Sampling time
    suffix: str = ".png"  # Suffix of the resulting image files

    @classmethod
    def new(cls, options: Options) -> Job:
        """Return a job with a new id."""
        return cls(secrets.token_hex(16), options)

    @property
    def finished(self) -> bool:
        """Whether the state is final."""
        return self.state in ("done", "failed", "cancelled")

    @property
    def pictures(self) -> list[str]:
        """Names of the resulting images."""
        names = [str(number) for number in range(self.options.samples)]
        return [*names, "mean", "uncertainty"] if self.options.samples > 1 else names

    def describe(self) -> dict[str, Any]:
        """Return the job in JSON values."""
        return asdict(self)


class JobStore:
    """Jobs on disk: measurement, state and results.

    Args:
        folder: Folder of the jobs, created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._create()

    def _create(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)

    def _folder(self, job: str) -> Path:
        if not _ID.fullmatch(job):
            raise KeyError(job)
        return self.folder / job

    def accept(self, job: Job, content: bytes) -> None:
        """Write a job to disk; if that fails, nothing of it remains."""
        try:
            self._create()
            self._folder(job.id).mkdir(mode=0o700)
            _write(self._folder(job.id) / "measurement", content)
            self.update(job)
        except BaseException:
            self.forget(job.id)
            raise

    def update(self, job: Job) -> None:
        """Write the state of a job."""
        _write(self._folder(job.id) / "job.json", json.dumps(asdict(job)).encode())

    def content(self, job: str) -> bytes:
        """Return the measurement of a job."""
        return (self._folder(job) / "measurement").read_bytes()

    def finish(self, job: Job, pictures: dict[str, bytes]) -> None:
        """Write the results of a job, then its state; if that fails, no result remains."""
        files = {self._folder(job.id) / f"result-{name}": picture for name, picture in pictures.items()}
        try:
            for file, picture in files.items():
                _write(file, picture)
            self.update(job)
        except BaseException:
            for file in files:
                file.unlink(missing_ok=True)
            raise

    def complete(self, job: Job) -> bool:
        """Return whether all images of a finished job are there."""
        return all((self._folder(job.id) / f"result-{name}").is_file() for name in job.pictures)

    def size(self, job: str) -> int:
        """Return the size of a job's files in bytes."""
        return sum(file.stat().st_size for file in self._folder(job).glob("*"))

    def picture(self, job: str, name: str) -> bytes | None:
        """Return an image of the result; None if there is none."""
        file = self._folder(job) / f"result-{name}"
        return file.read_bytes() if file.is_file() else None

    def forget(self, job: str) -> None:
        """Remove a job."""
        shutil.rmtree(self._folder(job), ignore_errors=True)

    def quarantine(self, job: str) -> None:
        """Move a damaged job to a folder of its own, which keeps a bounded number of them.

        The job stays where it is if the disk is full.
        """
        kept = self.folder / _QUARANTINE
        try:
            kept.mkdir(mode=0o700, exist_ok=True)
            (self.folder / job).rename(kept / f"{job}-{secrets.token_hex(4)}")
        except OSError:
            return
        oldest_first = sorted(kept.iterdir(), key=lambda path: path.lstat().st_mtime)
        for old in oldest_first[:-_MAX_QUARANTINED]:
            shutil.rmtree(old, ignore_errors=True)

    def jobs(self) -> tuple[list[Job], dict[str, str]]:
        """Return all jobs, oldest first, and the reasons of the damaged ones by id.

        Damaged jobs are quarantined. A job without a state was never acknowledged, and is removed.
        """
        found, damaged = [], {}
        for folder in sorted(self.folder.iterdir()):
            if not _ID.fullmatch(folder.name):
                continue
            try:
                found.append(_decoded(folder))
            except FileNotFoundError:
                self.forget(folder.name)
            except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
                damaged[folder.name] = f"{type(error).__name__}: {error}"
                self.quarantine(folder.name)
        return sorted(found, key=lambda job: job.created), damaged


def _decoded(folder: Path) -> Job:
    """Read the state of a job; raises an error if a field is missing, unknown or of another type."""
    values = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    job = Job(**values | {"options": Options(**values["options"])})
    options = Options("", "", noise=1.0, quality="fast", evaluations=1)
    example = Job("", options, noise=1.0, acceptance=1.0)
    for part, like in ((job, example), (job.options, example.options)):
        for entry in fields(part):
            value, kind = getattr(part, entry.name), type(getattr(like, entry.name))
            if not isinstance(value, (int, float) if kind is float else kind) and value is not entry.default:
                raise TypeError(f"{entry.name} is {value!r}")
    if job.id != folder.name or job.state not in get_args(State):
        raise ValueError(f"the id is {job.id!r} and the state {job.state!r}")
    return job


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically and durably, readable by its owner only."""

    def write(partial: Path) -> None:
        partial.touch(mode=0o600)
        partial.write_bytes(content)

    atomically(path, write)
    if os.name == "posix":  # the rename itself
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
