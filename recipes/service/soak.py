"""Jobs of several clients while workers are killed, the disk is filled and the folders of jobs are deleted."""

from __future__ import annotations

import http.client
import io
import json
import math
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from PIL import Image

from lavps.apps.service import Options, Refused

from .running import RunningService

_END = 300.0  # seconds after the last fault within which every accepted job must end
_EVALUATIONS = 20
_UNREACHABLE = (OSError, http.client.HTTPException, ValueError)


class Soak:
    """A soak and its counts.

    Args:
        service: Service under test.
        content: Image file that is restored.
        disk: Small file system that holds the job store and is filled; None if it must not be.
        pauses: Shortest and longest pause between two faults in seconds.
    """

    def __init__(
        self, service: RunningService, content: bytes, disk: Path | None, pauses: tuple[float, float]
    ) -> None:
        self.service, self.content, self.disk, self.pauses = service, content, disk, pauses
        self.faults, self.refused, self.ends, self.reasons = Counter(), Counter(), Counter(), Counter()
        self.accepted, self.deleted, self.stop = 0, set[str](), threading.Event()
        self.longest, self._last = 0.0, math.inf  # seconds of the slowest job, and time of the last fault
        self._chance, self._lock = random.Random(0), threading.Lock()

    def run(self, seconds: float, clients: int = 8) -> dict[str, Any]:
        """Run for some time; return the counts."""
        threads = [threading.Thread(target=self._client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        start = time.monotonic()
        while (left := start + seconds - time.monotonic()) > 0:
            self.stop.wait(min(self._chance.uniform(*self.pauses), left))
            self._fault()
        self._last = time.monotonic()
        self.stop.set()
        for thread in threads:
            thread.join()
        counts = {name: dict(getattr(self, name)) for name in ("faults", "refused", "ends", "reasons")}
        return counts | {
            "seconds": seconds,
            "accepted": self.accepted,
            "longest": self.longest,
            "healthy": self.service.client.healthy(),
        }

    def _fault(self) -> None:
        names = list(self.service.processes())
        faults: list[tuple[str, Callable[[], object]]] = [("folder deleted", self._delete)]
        faults += [(f"{name} killed", lambda name=name: self.service.kill(name)) for name in names]
        faults += [("disk filled", self._fill)] if self.disk else []
        name, cause = self._chance.choice(faults)
        if cause() is not False:
            self.faults[name] += 1

    def _fill(self) -> None:
        assert self.disk is not None
        filler = self.disk / "filler"
        try:
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            self.stop.wait(self._chance.uniform(2, 6))
        finally:
            filler.unlink()

    def _delete(self) -> bool:
        waiting = []
        for folder in self.service.spool.iterdir():
            with suppress(OSError, ValueError):
                state = json.loads((folder / "job.json").read_text())["state"]
                waiting += [folder] if state == "queued" else []
        if not waiting:
            return False
        folder = self._chance.choice(waiting)
        self.deleted.add(folder.name)
        shutil.rmtree(folder, ignore_errors=True)
        return True

    def _client(self, number: int) -> None:
        seed = 1000 * number
        while not self.stop.is_set():
            seed += 1
            try:
                options = Options("tiny", "denoise", 0.05, seed=seed, evaluations=_EVALUATIONS)
                job = self.service.client.submit(self.content, options)
            except Refused as refusal:
                self._count(self.refused, str(refusal.status))
                self.stop.wait(0.5)
            except _UNREACHABLE:
                self._count(self.refused, "unreachable")
                self.stop.wait(0.5)
            else:
                self.accepted += 1
                self._count(self.ends, self._end(job["id"]))

    def _end(self, id: str) -> str:
        """Wait for a job to end; return how it did."""
        start = time.monotonic()
        while time.monotonic() < self._last + _END:
            with suppress(*_UNREACHABLE):
                if outcome := self._outcome(id):
                    self.longest = max(self.longest, time.monotonic() - start)
                    return outcome
            time.sleep(0.2)
        return "not ended"

    def _outcome(self, id: str) -> str | None:
        """Return how a job ended; None if it has not, or if the service starts again."""
        try:
            job = self.service.client.job(id, wait=5)
            if job["state"] == "failed":
                self._count(self.reasons, job["reason"])
                known = id in self.deleted or "result is no longer" not in job["reason"]
                return "failed" if known else "done without files"
            if job["state"] == "done":
                picture = self.service.client._send("GET", job["links"]["0"])
                Image.open(io.BytesIO(picture)).load()
                return "done"
        except Refused as refusal:
            if "no such job" in refusal.reason:
                return "unknown, folder deleted" if id in self.deleted else "lost"
            if "no image" in refusal.reason and id not in self.deleted:
                return "done without files"
        return None

    def _count(self, counter: Counter[str], name: str) -> None:
        with self._lock:
            counter[name] += 1
