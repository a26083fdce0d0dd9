"""Metrics of the service in Prometheus's text format, read from the scheduler when they are requested."""

from __future__ import annotations

__all__ = ["Metrics"]

from collections.abc import Iterator
from typing import Any

from ...extras import require
from .scheduler import BatchScheduler

_STATES = ("accepted", "refused", "done", "failed", "cancelled", "quarantined")


class Metrics:
    """A collector with its own registry, so that services in one process do not share numbers.

    Args:
        desk: Scheduler whose state is reported.
    """

    def __init__(self, desk: BatchScheduler) -> None:
        self._desk, self._registry = desk, require("prometheus_client", "serve").CollectorRegistry()
        self._registry.register(self)

    def collect(self) -> Iterator[Any]:
        """Yield the metric families at this moment."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        desk = self._desk
        jobs = CounterMetricFamily("lavps_jobs", "Jobs by outcome.", labels=["state"])
        for state in _STATES:
            jobs.add_metric([state], desk.counts[state])
        yield jobs
        yield CounterMetricFamily("lavps_workers_lost", "Workers lost while sampling.", desk.counts["lost"])
        yield GaugeMetricFamily("lavps_queue_length", "Jobs waiting to be sampled.", len(desk.queue))
        running = sum(ticket.job.state == "running" for ticket in desk.tickets.values())
        yield GaugeMetricFamily("lavps_running", "Jobs being sampled.", running)
        yield GaugeMetricFamily("lavps_batch_seconds", "Moving average of batch times.", desk.batch_seconds)
        batches = CounterMetricFamily("lavps_batches", "Batches by number of jobs.", labels=["size"])
        for size, count in sorted(desk.batches.items()):
            batches.add_metric([str(size)], count)
        yield batches

    def encode(self) -> bytes:
        """Return the current values as the body of a response."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)
