"""Bulk restoration: any number of files, shards or rows, exactly once, on one machine or a cluster."""

from .engine import Cluster
from .recipe import Recipe
from .run import Bulk, TooManyFailures
from .tally import Tally

__all__ = ["Bulk", "Cluster", "Recipe", "Tally", "TooManyFailures"]
