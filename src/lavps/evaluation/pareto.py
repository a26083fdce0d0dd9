r"""Pareto fronts of quality against cost, and the speed-up of non-inferior settings.

A point (cost c, score v), lower being better in both, is dominated by (c', v') if

.. math:: c' \le c, \quad v' \le v \quad \text{and} \quad (c' < c \text{ or } v' < v);

the front is the set of points that no other dominates. The speed-up at a point of a reference method's front
is its cost over that of the cheapest candidate that is non-inferior to it on the same images
(:mod:`~lavps.evaluation.statistics`).

Scores of a front are biased on the images it was selected on: select settings on validation images, and
compare them on others.

Reference: Miettinen, Nonlinear Multiobjective Optimization, 1999.
"""

from __future__ import annotations

__all__ = ["Match", "Point", "cheapest_matching", "front_of", "pareto_front"]

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from .statistics import NonInferiority, non_inferiority


def pareto_front(costs: Tensor | Sequence[float], scores: Tensor | Sequence[float]) -> list[int]:
    """Return the indices of the points that no other dominates, by rising cost; equal points are all kept.

    Args:
        costs: Costs (P,), lower is better.
        scores: Scores (P,), lower is better.

    Example:
        >>> pareto_front([1.0, 2.0, 3.0], [0.3, 0.4, 0.1])
        [0, 2]
    """
    cost, score = (torch.as_tensor(values, dtype=torch.float64).cpu() for values in (costs, scores))
    if cost.ndim != 1 or cost.shape != score.shape:
        raise ValueError(
            f"one cost and one score per point are needed, got {(*cost.shape,)} and {(*score.shape,)}"
        )
    if cost.isnan().any() or score.isnan().any():
        raise ValueError("costs and scores must not be NaN: leave out points without a cost or a score")
    no_worse = (cost[:, None] <= cost) & (score[:, None] <= score)
    better = (cost[:, None] < cost) | (score[:, None] < score)
    kept = (~(no_worse & better).any(0)).nonzero()[:, 0].tolist()
    return sorted(kept, key=lambda index: (float(cost[index]), index))


@dataclass(frozen=True, eq=False)
class Point:
    """Cost and scores of one setting of a method.

    Attributes:
        name: Name of the setting.
        cost: Seconds or denoiser evaluations; positive.
        scores: Scores per image (n,), lower is better, e.g. LPIPS.
    """

    name: str
    cost: float
    scores: Tensor

    def __post_init__(self) -> None:
        if not (self.cost > 0 and math.isfinite(self.cost)):
            raise ValueError(f"{self.name} has cost {self.cost}: a positive number is needed")
        if self.scores.ndim != 1 or not len(self.scores):
            raise ValueError(f"{self.name} has scores {tuple(self.scores.shape)}: one per image is needed")

    @cached_property
    def score(self) -> float:
        """Mean score over images."""
        return float(self.scores.double().mean())


def front_of(points: Sequence[Point]) -> list[Point]:
    """Return the points whose cost and mean score no other dominates, by rising cost."""
    return [points[i] for i in pareto_front([p.cost for p in points], [p.score for p in points])]


@dataclass(frozen=True, eq=False)
class Match:
    """A reference point and the cheapest candidate that is non-inferior to it.

    Attributes:
        reference: Point to match.
        candidate: Cheapest non-inferior point, or None if there is none.
        test: Test of that candidate, or None.
    """

    reference: Point
    candidate: Point | None
    test: NonInferiority | None

    @property
    def common(self) -> tuple[Point, Point]:
        """Reference and candidate on the images that both have; there must be a candidate."""
        assert self.candidate is not None
        return _common(self.reference, self.candidate)

    @property
    def speed_up(self) -> float:
        """Cost of the reference over that of the candidate; NaN if there is no candidate."""
        return math.nan if self.candidate is None else self.reference.cost / self.candidate.cost


def cheapest_matching(
    reference: Sequence[Point],
    candidates: Sequence[Point],
    margin: float = 0.003,
    alpha: float = 0.05,
    common: bool = False,
) -> list[Match]:
    """Return, for every reference point, the cheapest candidate that is non-inferior to it.

    Every test has level alpha. With P candidates, pass alpha / P to bound the probability that a reference
    point is matched by an inferior one (Bonferroni correction).

    Args:
        reference: Points to match, usually a front.
        candidates: Points of the other method, on the same images in the same order.
        margin: Non-inferiority margin, in units of the score.
        alpha: Level of every test.
        common: Whether points with fewer images (the first ones) are compared on the images that both have.

    Example:
        >>> slow = Point("slow", 100.0, torch.tensor([0.10, 0.12, 0.11]))
        >>> fast = Point("fast", 25.0, torch.tensor([0.10, 0.12, 0.11]))
        >>> cheapest_matching([slow], [fast])[0].speed_up
        4.0
    """
    by_cost = sorted(candidates, key=lambda point: (point.cost, point.score))
    return [_cheapest(point, by_cost, margin, alpha, common) for point in reference]


def _common(first: Point, second: Point) -> tuple[Point, Point]:
    count = min(len(first.scores), len(second.scores))
    return replace(first, scores=first.scores[:count]), replace(second, scores=second.scores[:count])


def _cheapest(reference: Point, by_cost: Sequence[Point], margin: float, alpha: float, common: bool) -> Match:
    for candidate in by_cost:
        first, second = _common(reference, candidate) if common else (reference, candidate)
        test = non_inferiority(first.scores, second.scores, margin, alpha)
        if test.is_non_inferior:
            return Match(reference, candidate, test)
    return Match(reference, None, None)
