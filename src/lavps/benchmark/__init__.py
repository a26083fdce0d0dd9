"""Benchmarks on images: equal measurements for all methods, sweeps, tests, timing and a report."""

from .analysis import Results, analyze, fronts
from .folder import Benchmark, BenchmarkSettings
from .measurements import MeasurementSet, MeasurementSettings
from .models import Models
from .report import write_report
from .runs import Runner
from .spaces import baseline_grid, paper_grid, paper_subset
from .sweep import Sweep
from .timing import Timer

__all__ = [
    "Benchmark",
    "BenchmarkSettings",
    "MeasurementSet",
    "MeasurementSettings",
    "Models",
    "Results",
    "Runner",
    "Sweep",
    "Timer",
    "analyze",
    "baseline_grid",
    "fronts",
    "paper_grid",
    "paper_subset",
    "write_report",
]
