"""Benchmarks on real images: the same measurements for all methods, sweeps, tests, times, a report."""

from .folder import Benchmark, BenchmarkSettings
from .measurements import MeasurementSet, MeasurementSettings
from .methods import Method
from .models import Models
from .protocol import Results, conclude, fronts
from .report import write_report
from .runs import Runner
from .spaces import paper_grid, paper_subset, rival_grid
from .sweep import Sweep
from .timing import Timer

__all__ = [
    "Benchmark",
    "BenchmarkSettings",
    "MeasurementSet",
    "MeasurementSettings",
    "Method",
    "Models",
    "Results",
    "Runner",
    "Sweep",
    "Timer",
    "conclude",
    "fronts",
    "paper_grid",
    "paper_subset",
    "rival_grid",
    "write_report",
]
