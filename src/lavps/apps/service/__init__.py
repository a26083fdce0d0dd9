"""Restoration service: jobs over HTTP, sampled in batches, on Ray Serve or in one process."""

from .client import Client, JobFailed, Restored
from .jobs import JobStore, Limits, Options, Refused
from .pool import ModelPool
from .scheduler import BatchScheduler

__all__ = [
    "BatchScheduler",
    "Client",
    "JobFailed",
    "JobStore",
    "Limits",
    "ModelPool",
    "Options",
    "Refused",
    "Restored",
]
