"""Judging samplers: distances to exact posteriors, calibration of uncertainty."""

from .calibration import CalibrationReport, calibrate, coverage, ranks, uniformity_band
from .distances import sliced_wasserstein
from .oracle import (
    OptimizedStart,
    OracleScore,
    exact_samples,
    oracle_mixture,
    oracle_problem,
    random_start,
    score,
)

__all__ = [
    "CalibrationReport",
    "OptimizedStart",
    "OracleScore",
    "calibrate",
    "coverage",
    "exact_samples",
    "oracle_mixture",
    "oracle_problem",
    "random_start",
    "ranks",
    "score",
    "sliced_wasserstein",
    "uniformity_band",
]
