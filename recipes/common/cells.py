"""Cells of the tables: the scores of a record, and paired comparisons of two records."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from lavps.evaluation import non_inferiority

Record = dict[str, Any]
HEAD = ["sampler", "evaluations", "backward passes", "LPIPS", "CRPS", "PSNR", "chi²", "coverage"]
VERDICTS = ["LPIPS non-inferior", "LPIPS lower", "CRPS lower", "CRPS higher"]


def scores_of(record: Record) -> list[str]:
    """Return the cells of a record under :data:`HEAD`."""
    return [
        record["name"],
        str(record["evaluations"]),
        f"{record['mean_backwards']:.0f}",
        f"{fmean(record['lpips']):.4f}",
        f"{fmean(record['crps']):.4f}",
        f"{record['mean_psnr']:.2f}",
        f"{record['mean_chi_square']:.2f}",
        f"{100 * fmean(record['coverage']):.0f} %",
    ]


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean; 0 of a single value."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def verdicts(ours: Record, theirs: Record) -> list[bool]:
    """Return what :data:`VERDICTS` names: each by a paired one-sided t test over the images, at level 0.05."""

    def is_lower(score: str, a: Record, b: Record, margin: float = 0.0) -> bool:
        return non_inferiority(b[score], a[score], margin).is_non_inferior

    return [
        is_lower("lpips", ours, theirs, 0.003),
        is_lower("lpips", ours, theirs),
        is_lower("crps", ours, theirs),
        is_lower("crps", theirs, ours),
    ]


def difference(ours: Sequence[float], theirs: Sequence[float], digits: int = 4) -> str:
    """Return the mean of ours minus theirs ± its standard error over the images."""
    apart = [a - b for a, b in zip(ours, theirs, strict=True)]
    return f"{fmean(apart):+.{digits}f} ± {standard_error(apart):.{digits}f}"
