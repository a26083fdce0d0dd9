"""A typed client of the service, with nothing but the standard library.

.. code-block:: python

    client = Client("http://127.0.0.1:8000")
    restored = client.restore(Path("photo.png").read_bytes(), Options("faces", "sr4", samples=4))
    Path("restored.png").write_bytes(restored.pictures["mean"])
"""

from __future__ import annotations

__all__ = ["Client", "JobFailed", "Restored"]

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import asdict, dataclass
from typing import Any

from .jobs import Options, Refused

_POLL = 20.0  # seconds that a request waits for the end of a job


class JobFailed(RuntimeError):  # noqa: N818 - what happened
    """A job was accepted and failed, or was cancelled."""


@dataclass(frozen=True)
class Restored:
    """An answer.

    Attributes:
        id: of the job.
        pictures: content by name: "0", "1", ...; of several samples also "mean" and "uncertainty".
        chi_square: misfit of every sample, 1 being ideal.
        acceptance: share of warm starts kept, where there is an inference model.
        seconds: of sampling.
    """

    id: str
    pictures: dict[str, bytes]
    chi_square: list[float]
    acceptance: float | None
    seconds: float


@dataclass(frozen=True)
class Client:
    """A service at an address.

    Args:
        url: where it listens.
        token: it wants.
        timeout: seconds without an answer after which a request is given up.
    """

    url: str = "http://127.0.0.1:8000"
    token: str | None = None
    timeout: float = 120.0

    def restore(self, content: bytes, options: Options, retries: int = 0) -> Restored:
        """Restore an image file's content, waiting for the end.

        Args:
            content: of the file.
            options: what is asked.
            retries: how often to come back when the queue is full, after the time that the service says.

        Raises:
            Refused: the request is not accepted; says why.
            JobFailed: it was, and failed.
        """
        for attempt in range(retries + 1):
            try:
                job = self.submit(content, options, wait=_POLL)
                break
            except Refused as refusal:
                if refusal.status != 429 or attempt == retries:
                    raise
                time.sleep(refusal.wait or 1)
        while job["state"] in ("queued", "running"):
            job = self.job(job["id"], wait=_POLL)
        if job["state"] != "done":
            raise JobFailed(f"the job is {job['state']}: {job['reason']}")
        links = {name: link for name, link in job["links"].items() if "/pictures/" in link}
        pictures = {name: self._get(link) for name, link in links.items()}
        return Restored(job["id"], pictures, job["chi_square"], job["acceptance"], job["seconds"])

    def submit(self, content: bytes, options: Options, wait: float = 0.0) -> dict[str, Any]:
        """Hand in a job and return its description, after at most ``wait`` seconds."""
        asked = {name: value for name, value in asdict(options).items() if value is not None}
        query = urllib.parse.urlencode(asked | {"wait": wait})
        return self._json("POST", f"/v1/restore?{query}", content)

    def job(self, id: str, wait: float = 0.0) -> dict[str, Any]:
        """Where a job stands."""
        return self._json("GET", f"/v1/jobs/{id}?wait={wait}")

    def cancel(self, id: str) -> dict[str, Any]:
        """End a job."""
        return self._json("DELETE", f"/v1/jobs/{id}")

    def preview(self, id: str) -> bytes:
        """A PNG of how a job looks at this moment."""
        return self._get(f"/v1/jobs/{id}/preview")

    def models(self) -> dict[str, Any]:
        """Models and tasks."""
        return self._json("GET", "/v1/models")

    def healthy(self) -> bool:
        """Whether the models run."""
        try:
            return bool(self._json("GET", "/healthz")["status"] == "ok")
        except (Refused, OSError):
            return False

    def _get(self, path: str) -> bytes:
        return self._send("GET", path)

    def _json(self, method: str, path: str, content: bytes | None = None) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self._send(method, path, content))
        return values

    def _send(self, method: str, path: str, content: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/octet-stream"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url.rstrip("/") + path, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                received: bytes = answer.read()
                return received
        except urllib.error.HTTPError as error:
            wait = error.headers.get("Retry-After")
            try:
                detail = json.loads(error.read())["detail"]
            except (ValueError, KeyError):
                detail = error.reason
            raise Refused(error.code, str(detail), None if wait is None else int(wait)) from None
