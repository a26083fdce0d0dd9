"""Jobs in memory, the removal of finished ones, and the log of their events."""

from __future__ import annotations

__all__ = ["Ticket", "expired", "log"]

import asyncio
import json
import logging
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from .jobs import Job, Limits

_log = logging.getLogger("lavps.service")


@dataclass
class Ticket:
    """A job in memory."""

    job: Job  # Job and its state
    kind: Hashable  # Kind of the request; jobs of the same kind can be sampled together
    done: asyncio.Event = field(default_factory=asyncio.Event)  # Event that the end of the job sets
    preview: bytes | None = None  # Current estimate of the image as PNG
    tries: int = 0  # Number of times that the job was sampled
    bytes: int = 0  # Size of its files once finished
    alone: bool = False  # Whether the job is sampled in a batch of its own
    cancelled: bool = False  # Whether the client cancelled the job

    @property
    def ended(self) -> float:
        """Time of the end in seconds since 1970."""
        return self.job.ended or self.job.created


def expired(tickets: Iterable[Ticket], limits: Limits) -> list[Ticket]:
    """Return the finished jobs that are too old, or the oldest beyond the number and size that are kept."""
    finished = sorted((one for one in tickets if one.job.finished), key=lambda one: one.ended, reverse=True)
    oldest, size, found = time.time() - limits.keep, 0, []
    for number, ticket in enumerate(finished):
        size += ticket.bytes
        if ticket.ended < oldest or number >= limits.keep_jobs or size > limits.keep_bytes:
            found.append(ticket)
    return found


def log(event: str, job: Job, **more: object) -> None:
    """Log an event as a line of JSON, without any content of the image."""
    options = job.options
    values = {"event": event, "job": job.id, "model": options.model, "task": options.task, "state": job.state}
    _log.info(json.dumps(values | {"samples": options.samples} | more))
