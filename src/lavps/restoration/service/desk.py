"""The desk of the service: takes requests in, lets those of one kind be sampled together, keeps the answers.

It knows neither HTTP nor Ray: batches go to a ``dispatch`` function, which may be lost on the way
(:class:`WorkerLost`) and is then asked again.
"""

from __future__ import annotations

__all__ = ["Desk", "WorkerLost", "in_this_process"]

import asyncio
import json
import logging
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from .bench import Bench, Request, Update
from .jobs import Job, Limits, Options, Refused, Spool

Dispatch = Callable[[Sequence[Request]], AsyncIterator[Update]]
_TRIES = 3
_log = logging.getLogger("lavps.service")


class WorkerLost(RuntimeError):  # noqa: N818 - what happened
    """The process that sampled a batch is gone."""


@dataclass
class _Ticket:
    """A job at the desk."""

    job: Job
    kind: Hashable
    done: asyncio.Event = field(default_factory=asyncio.Event)
    preview: bytes | None = None
    tries: int = 0
    alone: bool = False
    cancelled: bool = False


def in_this_process(bench: Bench) -> Dispatch:
    """A dispatch that samples in a thread of this process."""

    async def dispatch(requests: Sequence[Request]) -> AsyncIterator[Update]:
        updates = bench.run(requests)
        while (update := await asyncio.to_thread(next, updates, None)) is not None:
            yield update

    return dispatch


class Desk:
    """Jobs, from their acceptance to their answers.

    Args:
        bench: which requests are possible; its models are not loaded for that.
        dispatch: samples a batch.
        spool: where jobs are kept.
        limits: of requests and of the queue.
        workers: batches at a time.
    """

    def __init__(
        self, bench: Bench, dispatch: Dispatch, spool: Spool, limits: Limits | None = None, workers: int = 1
    ) -> None:
        self.bench, self.dispatch, self.spool = bench, dispatch, spool
        self.limits, self.workers = limits or Limits(), workers
        self.tickets: dict[str, _Ticket] = {}
        self.queue: deque[_Ticket] = deque()
        self.counts: Counter[str] = Counter()
        self.batches: Counter[int] = Counter()
        self.batch_seconds, self._entering = 1.0, 0
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._arrived = asyncio.Event()

    async def open(self) -> None:
        """Take up what an earlier process left, and begin."""
        for job in await asyncio.to_thread(self.spool.jobs):
            if job.finished:
                self.tickets[job.id] = ticket = _Ticket(job, None)
                ticket.done.set()
                continue
            request = Request(job.id, await asyncio.to_thread(self.spool.content, job.id), job.options)
            try:
                kind = await asyncio.to_thread(self.bench.kind, request)
            except Refused as refusal:
                self.tickets[job.id] = ticket = _Ticket(job, None)
                self._end(ticket, "failed", refusal.reason)
                continue
            job.state, job.step = "queued", 0
            self._enqueue(_Ticket(job, kind))
            log("resumed", job)
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self.workers)]

    async def close(self) -> None:
        """Stop; what is not done stays in the spool."""
        # A cancellation that comes just as a batch ends is lost in wait_for (before Python 3.12).
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def submit(self, options: Options, content: bytes) -> Job:
        """Accept a job: when this returns it is safe.

        Raises:
            Refused: it is not accepted.
        """
        self._expire()
        waiting = len(self.queue) + self._entering
        if waiting >= self.limits.queue:
            self.counts["refused"] += 1
            raise Refused(429, f"{waiting} jobs are waiting already: try again later", self.retry_after())
        self._entering += 1
        try:
            job = Job.new(options)
            kind = await asyncio.to_thread(self.bench.kind, Request(job.id, content, options))
            await asyncio.to_thread(self.spool.accept, job, content)
        finally:
            self._entering -= 1
        self._enqueue(_Ticket(job, kind))
        self.counts["accepted"] += 1
        log("accepted", job, bytes=len(content))
        return job

    def _enqueue(self, ticket: _Ticket, first: bool = False) -> None:
        self.tickets[ticket.job.id] = ticket
        (self.queue.appendleft if first else self.queue.append)(ticket)
        self._arrived.set()

    def retry_after(self) -> int:
        """Seconds until there is room again, about."""
        rounds = math.ceil((len(self.queue) + 1) / self.limits.batch / self.workers)
        return min(max(math.ceil(rounds * self.batch_seconds), 1), 60)

    def job(self, id: str) -> Job:
        """A job by its id; KeyError where there is none."""
        return self.tickets[id].job

    def preview(self, id: str) -> bytes | None:
        """How a job looks at this moment."""
        return self.tickets[id].preview or self.spool.picture(id, "preview")

    async def wait(self, id: str, seconds: float) -> Job:
        """A job, once it is finished or the time is over."""
        ticket = self.tickets[id]
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ticket.done.wait(), min(seconds, self.limits.wait))
        return ticket.job

    async def cancel(self, id: str) -> Job:
        """End a job that is not finished."""
        ticket = self.tickets[id]
        if ticket.job.finished:
            return ticket.job
        ticket.cancelled = True
        if ticket in self.queue:
            self.queue.remove(ticket)
        self._end(ticket, "cancelled", "")
        return ticket.job

    async def _work(self) -> None:
        while not self._closing:
            await self._arrived.wait()
            if not self.queue:
                self._arrived.clear()
                continue
            await asyncio.sleep(self.limits.patience)
            batch = self._take()
            if batch:
                await self._sample(batch)

    def _take(self) -> list[_Ticket]:
        """The first job, and those behind it that can be sampled with it."""
        if not self.queue:
            return []
        first = self.queue[0]
        most = 1 if first.alone else self.limits.batch
        batch = [first, *(t for t in self.queue if t is not first and t.kind == first.kind and not t.alone)][
            :most
        ]
        for ticket in batch:
            self.queue.remove(ticket)
            ticket.job.state, ticket.job.batch = "running", len(batch)
        return batch

    async def _sample(self, batch: list[_Ticket]) -> None:
        start = time.monotonic()
        requests = [
            Request(t.job.id, await asyncio.to_thread(self.spool.content, t.job.id), t.job.options)
            for t in batch
        ]
        self.batches[len(batch)] += 1
        try:
            await asyncio.wait_for(self._follow(batch, requests, start), self.limits.most_seconds)
        except asyncio.TimeoutError:
            self._end_all(batch, f"it took longer than {self.limits.most_seconds:g} s")
        except WorkerLost:
            self.counts["lost"] += 1
            for ticket in reversed(batch):
                self._again(ticket)
        except Exception as error:  # of one request, perhaps: it must not take the others with it
            log("error", batch[0].job, error=type(error).__name__)
            if len(batch) == 1:
                known = isinstance(error, (ArithmeticError, MemoryError, Refused))
                self._end_all(batch, str(error) if known else "sampling failed")
            for ticket in reversed(batch if len(batch) > 1 else []):
                ticket.alone = True
                self._again(ticket)
        spent = time.monotonic() - start
        self.batch_seconds += 0.3 * (spent - self.batch_seconds)

    async def _follow(self, batch: list[_Ticket], requests: list[Request], start: float) -> None:
        updates = self.dispatch(requests)
        async for update in updates:
            for place, ticket in enumerate(batch):
                ticket.job.step, ticket.job.total = update.step, update.total
                ticket.preview = update.previews[place] if update.previews else ticket.preview
            if all(ticket.cancelled for ticket in batch):
                await updates.aclose()  # type: ignore[attr-defined]
                return
            for ticket, answer in zip(batch, update.answers, strict=False):
                if ticket.cancelled:
                    continue
                job = ticket.job
                job.chi_square, job.acceptance = list(answer.chi_square), answer.acceptance
                job.seconds, job.suffix, ticket.preview = time.monotonic() - start, answer.suffix, None
                job.state = "done"
                await asyncio.to_thread(self.spool.finish, job, answer.pictures)
                self._end(ticket, "done", "", kept=True)

    def _again(self, ticket: _Ticket) -> None:
        ticket.tries += 1
        if ticket.cancelled:
            return
        if ticket.tries >= _TRIES:
            self._end(ticket, "failed", "sampling failed several times")
            return
        ticket.job.state, ticket.job.step = "queued", 0
        self._enqueue(ticket, first=True)

    def _end_all(self, batch: list[_Ticket], reason: str) -> None:
        for ticket in batch:
            if not ticket.job.finished:
                self._end(ticket, "failed", reason)

    def _end(self, ticket: _Ticket, state: str, reason: str, kept: bool = False) -> None:
        ticket.job.state, ticket.job.reason = state, reason  # type: ignore[assignment]
        if not kept:
            self.spool.update(ticket.job)
        self.counts[state] += 1
        ticket.done.set()
        log(state, ticket.job, seconds=round(ticket.job.seconds, 3))

    def _expire(self) -> None:
        oldest = time.time() - self.limits.keep
        for id, ticket in list(self.tickets.items()):
            if ticket.job.finished and ticket.job.created < oldest:
                del self.tickets[id]
                self.spool.forget(id)

    def metrics(self) -> str:
        """In Prometheus's text format."""
        lines = ["# TYPE lavps_jobs_total counter"]
        states = ("accepted", "refused", "done", "failed", "cancelled")
        lines += [f'lavps_jobs_total{{state="{state}"}} {self.counts[state]}' for state in states]
        running = sum(ticket.job.state == "running" for ticket in self.tickets.values())
        lines += [
            "# TYPE lavps_workers_lost_total counter", f"lavps_workers_lost_total {self.counts['lost']}",
            "# TYPE lavps_queue_length gauge", f"lavps_queue_length {len(self.queue)}",
            "# TYPE lavps_running gauge", f"lavps_running {running}",
            "# TYPE lavps_batch_seconds gauge", f"lavps_batch_seconds {self.batch_seconds:.4f}",
            "# TYPE lavps_batches_total counter",
        ]  # fmt: skip
        lines += [f'lavps_batches_total{{size="{size}"}} {n}' for size, n in sorted(self.batches.items())]
        return "\n".join(lines) + "\n"


def log(event: str, job: Job, **more: object) -> None:
    """A line of JSON without anything of the image."""
    options = job.options
    values = {"event": event, "job": job.id, "model": options.model, "task": options.task, "state": job.state}
    _log.info(json.dumps(values | {"samples": options.samples} | more))
