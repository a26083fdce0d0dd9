"""Restoration as a service: jobs over HTTP, sampled in batches, on Ray Serve or in one process."""

from .bench import Bench
from .client import Client, JobFailed, Restored
from .desk import Desk
from .jobs import Limits, Options, Refused, Spool

__all__ = ["Bench", "Client", "Desk", "JobFailed", "Limits", "Options", "Refused", "Restored", "Spool"]
