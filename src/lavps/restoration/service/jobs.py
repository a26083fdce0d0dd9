"""A request of the service: what is asked, what became of it, and where it is kept while it is not done.

An accepted job is on disk before its sender hears of it: a process that dies takes no job with it.
"""

from __future__ import annotations

__all__ = ["Job", "Limits", "Options", "Refused", "Spool", "State"]

import json
import re
import secrets
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..presets import Quality
from ..writing import write_atomically

State = Literal["queued", "running", "done", "failed", "cancelled"]
_ID = re.compile(r"[0-9a-f]{32}")


class Refused(Exception):  # noqa: N818 - an answer, not an accident
    """A request that is not accepted.

    Attributes:
        status: of HTTP.
        reason: for its sender.
        wait: seconds after which another try makes sense.
    """

    def __init__(self, status: int, reason: str, wait: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.wait = status, reason, wait


@dataclass(frozen=True)
class Limits:
    """What one request, and all together, may ask for.

    Attributes:
        most_bytes: of a measurement.
        most_pixels: of a restored image.
        most_steps: of the sampler.
        most_samples: of a measurement.
        most_seconds: of sampling; a job that takes longer is ended.
        queue: jobs that wait.
        batch: jobs that are sampled together.
        patience: seconds that a job waits for others of its kind.
        keep: seconds for which results are kept.
        wait: seconds that an answer may be waited for in one request.
    """

    most_bytes: int = 16 << 20
    most_pixels: int = 1 << 20
    most_steps: int = 200
    most_samples: int = 8
    most_seconds: float = 300.0
    queue: int = 64
    batch: int = 8
    patience: float = 0.02
    keep: float = 3600.0
    wait: float = 60.0


@dataclass(frozen=True)
class Options:
    """What is asked of a measurement.

    Attributes:
        model: name of the model.
        task: how the image was measured: sr4, denoise, inpaint (transparent where missing), ...
        noise: standard deviation, black being -1 and white +1.
        samples: pictures to draw.
        seed: of the sampler's noise; the same request with the same seed has the same answer.
        quality: fast, balanced or best.
        steps: of the sampler, instead of the quality's.
    """

    model: str
    task: str
    noise: float = 0.05
    samples: int = 1
    seed: int = 0
    quality: Quality = "balanced"
    steps: int | None = None


@dataclass
class Job:
    """A request on its way.

    Attributes:
        id: by which it is asked for; not to be guessed.
        options: what is asked.
        state: where it stands.
        step: of the sampler.
        total: steps there will be.
        reason: why it failed.
        chi_square: misfit of every sample, once done.
        acceptance: share of warm starts kept, once done.
        batch: jobs it was sampled with.
        created: seconds since 1970.
        seconds: of sampling.
        suffix: of its pictures' names.
    """

    id: str
    options: Options
    state: State = "queued"
    step: int = 0
    total: int = 0
    reason: str = ""
    chi_square: list[float] = field(default_factory=list)
    acceptance: float | None = None
    batch: int = 0
    created: float = field(default_factory=time.time)
    seconds: float = 0.0
    suffix: str = ".png"

    @classmethod
    def new(cls, options: Options) -> Job:
        """A job with an id of its own."""
        return cls(secrets.token_hex(16), options)

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ("done", "failed", "cancelled")

    def describe(self) -> dict[str, Any]:
        """Plain JSON values, for its sender."""
        return asdict(self)


class Spool:
    """Jobs on disk: what came in, where it stands, what came out.

    Args:
        folder: made if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _of(self, job: str) -> Path:
        if not _ID.fullmatch(job):
            raise KeyError(job)
        return self.folder / job

    def accept(self, job: Job, content: bytes) -> None:
        """Keep a job; when this returns it is safe."""
        self._of(job.id).mkdir()
        write_atomically(self._of(job.id) / "measurement", content)
        self.update(job)

    def update(self, job: Job) -> None:
        """Keep where a job stands."""
        write_atomically(self._of(job.id) / "job.json", json.dumps(asdict(job)).encode())

    def content(self, job: str) -> bytes:
        """What came in."""
        return (self._of(job) / "measurement").read_bytes()

    def finish(self, job: Job, pictures: dict[str, bytes]) -> None:
        """Keep what came out, and only then that it did."""
        for name, picture in pictures.items():
            write_atomically(self._of(job.id) / f"result-{name}", picture)
        self.update(job)

    def picture(self, job: str, name: str) -> bytes | None:
        """A picture that came out."""
        file = self._of(job) / f"result-{name}"
        return file.read_bytes() if file.is_file() else None

    def forget(self, job: str) -> None:
        """Remove all of a job."""
        shutil.rmtree(self._of(job), ignore_errors=True)

    def jobs(self) -> list[Job]:
        """All that are kept, oldest first; what was half accepted is removed."""
        found = []
        for folder in sorted(self.folder.iterdir()):
            if not _ID.fullmatch(folder.name):
                continue
            try:
                values = json.loads((folder / "job.json").read_text(encoding="utf-8"))
                found.append(Job(**values | {"options": Options(**values["options"])}))
            except (OSError, ValueError, TypeError, KeyError):
                shutil.rmtree(folder, ignore_errors=True)
        return sorted(found, key=lambda job: job.created)
