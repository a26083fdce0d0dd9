"""A typed client of the service that needs only the standard library."""

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

_POLL = 20.0  # seconds for which a request waits for a job to finish


class JobFailed(RuntimeError):  # noqa: N818 - public name
    """An accepted job failed or was cancelled."""


@dataclass(frozen=True)
class Restored:
    """A restored image."""

    id: str  #: Id of the job.
    pictures: dict[str, bytes]  #: Encoded images: samples "0", "1", ...; if several, "mean", "uncertainty".
    chi_square: list[float]  #: Misfit of each sample divided by the noise variance, ideally 1.
    noise: float  #: Standard deviation of the noise, given or estimated.
    acceptance: float | None  #: Acceptance rate of the safeguard; None without an inference model.
    seconds: float  #: Sampling time.


@dataclass(frozen=True)
class Client:
    """A client of one service.

    Args:
        url: URL of the service.
        token: Bearer token of the service.
        timeout: Timeout of a request in seconds.

    Example:
        >>> client = Client("http://127.0.0.1:8000")
        >>> options = Options("faces", "sr4", samples=4)
        >>> restored = client.restore(Path("photo.png").read_bytes(), options)  # doctest: +SKIP
    """

    url: str = "http://127.0.0.1:8000"
    token: str | None = None
    timeout: float = 120.0

    def restore(self, content: bytes, options: Options, retries: int = 0) -> Restored:
        """Restore an image and wait for the result.

        Args:
            content: Content of the image file.
            options: Options of the request.
            retries: Maximum number of retries while the queue is full, at intervals set by the service.

        Raises:
            Refused: The request is not accepted.
            JobFailed: The job failed or was cancelled.
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
        links = {name: link for name, link in job["links"].items() if name not in ("self", "preview")}
        pictures = {name: self._send("GET", link) for name, link in links.items()}
        values = {name: job[name] for name in ("id", "chi_square", "noise", "acceptance", "seconds")}
        return Restored(pictures=pictures, **values)

    def submit(self, content: bytes, options: Options, wait: float = 0.0) -> dict[str, Any]:
        """Submit a job and return its description, after at most ``wait`` seconds."""
        values = {name: value for name, value in asdict(options).items() if value is not None}
        query = urllib.parse.urlencode(values | {"wait": wait})
        return self._json("POST", f"/v1/restore?{query}", content)

    def job(self, id: str, wait: float = 0.0) -> dict[str, Any]:
        """Return the description of a job, after at most ``wait`` seconds."""
        return self._json("GET", f"/v1/jobs/{id}?wait={wait}")

    def cancel(self, id: str) -> dict[str, Any]:
        """Cancel a job and return its description."""
        return self._json("DELETE", f"/v1/jobs/{id}")

    def preview(self, id: str) -> bytes:
        """Return the current estimate of a job's image as PNG."""
        return self._send("GET", f"/v1/jobs/{id}/preview")

    def models(self) -> dict[str, Any]:
        """Return the models and tasks of the service."""
        return self._json("GET", "/v1/models")

    def healthy(self) -> bool:
        """Return whether the service and its models work."""
        try:
            return bool(self._json("GET", "/healthz")["status"] == "ok")
        except (Refused, OSError):
            return False

    def _json(self, method: str, path: str, content: bytes | None = None) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self._send(method, path, content))
        return values

    def _send(self, method: str, path: str, content: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/octet-stream"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url.rstrip("/") + path, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as error:
            wait = error.headers.get("Retry-After")
            try:
                detail = json.loads(error.read())["detail"]
            except (ValueError, KeyError):
                detail = error.reason
            raise Refused(error.code, str(detail), None if wait is None else int(wait)) from None
