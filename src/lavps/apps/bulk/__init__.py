"""Bulk restoration of files, shards or table rows: resumable, exactly once, on one machine or a cluster."""

from .engine import Cluster
from .recipe import Recipe
from .run import Bulk, TooManyFailures
from .stats import RunStats

__all__ = ["Bulk", "Cluster", "Recipe", "RunStats", "TooManyFailures"]
