"""The scheduler of the service: accepts jobs, samples jobs of the same kind together, and stores the results.

It is independent of HTTP and Ray. Batches are sampled by a ``dispatch`` function; if it raises
:class:`WorkerLost`, each job of the batch is sampled again, alone. An error of one job ends that job only. A
worker task that ends is restarted, and the scheduler is not healthy in between.
"""

from __future__ import annotations

__all__ = ["BatchScheduler"]

import asyncio
import errno
import json
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from .dispatch import Dispatch, WorkerLost
from .jobs import Job, JobStore, Limits, Options, Refused
from .pool import Answer, ModelPool, Request
from .tasks import BackgroundTasks
from .tickets import Ticket, expired, log

_TRIES = 3  # maximum number of times that a job is sampled
_DECODERS = 2  # maximum number of measurements decoded concurrently
_TIDY = 60.0  # maximum number of seconds between two removals of expired jobs
_log = logging.getLogger("lavps.service")


class BatchScheduler:
    """Queue of jobs and their sampling in batches.

    Args:
        bench: Models by name, used to validate requests without loading weights.
        dispatch: Function that samples one batch.
        spool: Job store.
        limits: Limits of requests and of the queue.
        workers: Number of batches sampled concurrently.
    """

    def __init__(
        self, bench: ModelPool, dispatch: Dispatch, spool: JobStore,
        limits: Limits | None = None, workers: int = 1,
    ) -> None:  # fmt: skip
        self.bench, self.dispatch, self.spool = bench, dispatch, spool
        self.limits, self.workers = limits or Limits(), workers
        self.tickets: dict[str, Ticket] = {}
        self.queue: deque[Ticket] = deque()
        self.counts: Counter[str] = Counter()
        self.batches: Counter[int] = Counter()
        self.batch_seconds, self._entering = 1.0, 0
        self._tasks, self._closing = BackgroundTasks(), False
        self._arrived, self._decoders = asyncio.Event(), asyncio.Semaphore(_DECODERS)

    @property
    def healthy(self) -> bool:
        """Whether all worker tasks run."""
        return self._tasks.healthy

    async def open(self) -> None:
        """Resume the jobs of an earlier process, and start sampling; damaged jobs are quarantined."""
        jobs, damaged = await asyncio.to_thread(self.spool.jobs)
        for id, reason in damaged.items():
            self._report_damaged(id, reason)
        for job in jobs:
            await self._resume(Ticket(job, None))
        self._expire()
        for work in (*[self._work] * self.workers, self._tidy):
            self._tasks.start(work)

    async def _resume(self, ticket: Ticket) -> None:
        job = ticket.job
        if job.finished:
            self.tickets[job.id] = ticket
            with suppress(OSError):
                ticket.bytes = await asyncio.to_thread(self.spool.size, job.id)
            ticket.done.set()
            return
        try:
            ticket.kind = await asyncio.to_thread(self.bench.kind, await self._request(job))
        except Refused as refusal:
            self.tickets[job.id] = ticket
            self._end(ticket, "failed", refusal.reason)
        except Exception as error:
            await asyncio.to_thread(self.spool.quarantine, job.id)
            self._report_damaged(job.id, type(error).__name__)
        else:
            job.state, job.step = "queued", 0
            self._enqueue(ticket)
            log("resumed", job)

    def _report_damaged(self, id: str, reason: str) -> None:
        self.counts["quarantined"] += 1
        _log.error(json.dumps({"event": "quarantined", "job": id, "reason": reason}))

    async def close(self) -> None:
        """Stop sampling; unfinished jobs stay in the job store."""
        # Before Python 3.12, wait_for loses a cancellation that arrives just as a batch ends.
        self._closing = True
        await self._tasks.close()

    async def submit(self, options: Options, content: bytes | Callable[[], Awaitable[bytes]]) -> Job:
        """Accept a job, which is on disk when this returns.

        Args:
            options: Options of the request.
            content: Content of the image file, or a function that reads it once the queue has a place.

        Raises:
            Refused: The request is invalid, or the queue or the disk is full.
        """
        waiting = len(self.queue) + self._entering
        if waiting >= self.limits.queue:
            self.counts["refused"] += 1
            raise Refused(429, f"the queue is full with {waiting} jobs: try again later", self.retry_after())
        self._entering += 1
        try:
            content = content if isinstance(content, bytes) else await content()
            job = Job.new(options)
            async with self._decoders:
                kind = await asyncio.to_thread(self.bench.kind, Request(job.id, content, options))
            await asyncio.to_thread(self.spool.accept, job, content)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.counts["refused"] += 1
            raise Refused(507, "the disk of the service is full: try again later", 60) from error
        finally:
            self._entering -= 1
        self._enqueue(Ticket(job, kind))
        self.counts["accepted"] += 1
        log("accepted", job, bytes=len(content))
        return job

    async def _request(self, job: Job) -> Request:
        return Request(job.id, await asyncio.to_thread(self.spool.content, job.id), job.options)

    def _enqueue(self, ticket: Ticket, first: bool = False) -> None:
        self.tickets[ticket.job.id] = ticket
        (self.queue.appendleft if first else self.queue.append)(ticket)
        self._arrived.set()

    def retry_after(self) -> int:
        """Estimate the seconds until the queue is no longer full."""
        rounds = math.ceil((len(self.queue) + 1) / self.limits.batch_size / self.workers)
        return min(max(math.ceil(rounds * self.batch_seconds), 1), 60)

    def job(self, id: str) -> Job:
        """Return a job by its id; raises KeyError if there is none. It fails if its results were deleted."""
        ticket = self.tickets[id]
        if ticket.job.state == "done" and not self.spool.complete(ticket.job):
            self._end(ticket, "failed", "the result is no longer in the job store")
        return ticket.job

    def preview(self, id: str) -> bytes | None:
        """Return the current estimate of a job's image as PNG; None if there is none yet."""
        return self.tickets[id].preview or self.spool.picture(id, "preview")

    async def wait(self, id: str, seconds: float) -> Job:
        """Return a job when it is finished, or after the given time."""
        ticket = self.tickets[id]
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ticket.done.wait(), min(seconds, self.limits.wait))
        return ticket.job

    async def cancel(self, id: str) -> Job:
        """Cancel a job that is not finished."""
        ticket = self.tickets[id]
        if not ticket.job.finished:
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
            if batch := self._take():
                try:
                    await self._sample(batch)
                except BaseException:
                    if not self._closing:
                        self._end_all([t for t in batch if t.job.state == "running"], "sampling failed")
                    raise

    def _take(self) -> list[Ticket]:
        """Remove the first job and those that can be sampled with it from the queue."""
        if not self.queue:
            return []
        first = self.queue[0]
        batch = [first]
        if not first.alone:
            others = [t for t in self.queue if t is not first and t.kind == first.kind and not t.alone]
            batch += others[: self.limits.batch_size - 1]
        for ticket in batch:
            self.queue.remove(ticket)
            ticket.job.state, ticket.job.batch = "running", len(batch)
        return batch

    async def _sample(self, batch: list[Ticket]) -> None:
        start, requests = time.monotonic(), []
        for ticket in list(batch):
            with suppress(OSError):
                requests.append(await self._request(ticket.job))
                continue
            batch.remove(ticket)
            self._end(ticket, "failed", "the measurement is no longer in the job store")
        if not batch:
            return
        self.batches[len(batch)] += 1
        try:
            answers = await asyncio.wait_for(self._follow(batch, requests), self.limits.max_seconds)
            for ticket, answer in zip(batch, answers, strict=False):
                await self._finish(ticket, answer, time.monotonic() - start)
        except asyncio.TimeoutError:
            self._end_all(batch, f"sampling took longer than {self.limits.max_seconds:g} s")
        except Exception as error:  # possibly caused by one request: sample each job alone
            lost = isinstance(error, WorkerLost)
            self.counts["lost"] += lost
            log("error", batch[0].job, error=type(error).__name__)
            if len(batch) == 1 and not lost:
                public = isinstance(error, (ArithmeticError, MemoryError, Refused))
                self._end_all(batch, str(error) if public else "sampling failed")
            else:
                for ticket in reversed(batch):
                    ticket.alone = True
                    self._again(ticket)
        self.batch_seconds += 0.3 * (time.monotonic() - start - self.batch_seconds)

    async def _follow(self, batch: list[Ticket], requests: list[Request]) -> Sequence[Answer]:
        """Return the answers of a batch once it is sampled; none if all its jobs are cancelled."""
        updates = self.dispatch(requests)
        answers: Sequence[Answer] = ()
        async for update in updates:
            for index, ticket in enumerate(batch):
                ticket.job.step, ticket.job.total = update.step, update.total
                ticket.preview = update.previews[index] if update.previews else ticket.preview
            if all(ticket.cancelled for ticket in batch):
                await updates.aclose()  # type: ignore[attr-defined]
                return ()
            answers = update.answers or answers
        if len(answers) < len(batch):
            raise RuntimeError("the batch ended without its answers")
        return answers

    async def _finish(self, ticket: Ticket, answer: Answer, seconds: float) -> None:
        """Store the results of a job; its state changes once they are on disk."""
        if ticket.job.finished:  # cancelled
            return
        done = replace(
            ticket.job, state="done", ended=time.time(), seconds=seconds, suffix=answer.suffix,
            chi_square=list(answer.chi_square), acceptance=answer.acceptance, noise=answer.noise,
        )  # fmt: skip
        try:
            await asyncio.to_thread(self.spool.finish, done, answer.pictures)
        except OSError as error:
            log("error", ticket.job, error=str(error.strerror))
            if not ticket.cancelled:
                self._end(ticket, "failed", "the result could not be stored")
            return
        if ticket.cancelled:  # meanwhile
            self._store(ticket)
        else:
            ticket.job, ticket.preview = done, None
            self._end(ticket, "done", "", stored=True)

    def _again(self, ticket: Ticket) -> None:
        ticket.tries += 1
        if ticket.cancelled:
            return
        if ticket.tries >= _TRIES:
            self._end(ticket, "failed", "sampling failed several times")
        else:
            ticket.job.state, ticket.job.step = "queued", 0
            self._enqueue(ticket, first=True)

    def _end_all(self, batch: list[Ticket], reason: str) -> None:
        for ticket in batch:
            if not ticket.job.finished:
                self._end(ticket, "failed", reason)

    def _end(self, ticket: Ticket, state: str, reason: str, stored: bool = False) -> None:
        ticket.job.state, ticket.job.reason = state, reason  # type: ignore[assignment]
        if not stored:
            ticket.job.ended = time.time()
            self._store(ticket)
        with suppress(OSError):
            ticket.bytes = self.spool.size(ticket.job.id)
        self.counts[state] += 1
        ticket.done.set()
        log(state, ticket.job, seconds=round(ticket.job.seconds, 3))
        self._expire()

    def _store(self, ticket: Ticket) -> None:
        """Write the state of a job; if that fails, a later process resumes the job."""
        try:
            self.spool.update(ticket.job)
        except OSError as error:
            log("error", ticket.job, error=str(error.strerror))

    async def _tidy(self) -> None:
        while not self._closing:
            await asyncio.sleep(min(max(self.limits.keep / 10, 0.05), _TIDY))
            self._expire()

    def _expire(self) -> None:
        for ticket in expired(self.tickets.values(), self.limits):
            del self.tickets[ticket.job.id]
            self.spool.forget(ticket.job.id)
