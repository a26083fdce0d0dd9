r"""Quality against cost: which settings are worth running, and what a method saves at equal quality.

A point (cost c, score v), lower being better in both, is dominated by (c', v') where

.. math:: c' \le c, \quad v' \le v \quad \text{and} \quad (c' < c \text{ or } v' < v);

the front is the set of points that no other dominates. For every point of a reference method's front, the
speed-up is its cost over that of the cheapest candidate that is non-inferior to it on the same images
(:mod:`~lavps.evaluation.statistics`).

A front picked on some images is flattered by them: pick settings on validation images, and compare what they
score on others.

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
    """Indices of the points that no other dominates, by rising cost; equal points are all kept.

    Args:
        costs: what every point costs (P,), lower is better.
        scores: how good it is (P,), lower is better.
    """
    cost, score = (torch.as_tensor(values, dtype=torch.float64).cpu() for values in (costs, scores))
    if cost.ndim != 1 or cost.shape != score.shape:
        raise ValueError(
            f"a cost and a score a point are needed, got {tuple(cost.shape)} and {tuple(score.shape)}"
        )
    if cost.isnan().any() or score.isnan().any():
        raise ValueError("NaN is neither better nor worse: leave the points out that have no cost or score")
    no_worse = (cost[:, None] <= cost) & (score[:, None] <= score)
    better = (cost[:, None] < cost) | (score[:, None] < score)
    kept = (~(no_worse & better).any(0)).nonzero()[:, 0].tolist()
    return sorted(kept, key=lambda index: (float(cost[index]), index))


@dataclass(frozen=True, eq=False)
class Point:
    """A setting of a method: what it costs and how it does on every image.

    Attributes:
        name: of the setting.
        cost: seconds, or denoiser calls; positive.
        scores: one for every image (n,), lower is better, e.g. LPIPS.
    """

    name: str
    cost: float
    scores: Tensor

    def __post_init__(self) -> None:
        if not (self.cost > 0 and math.isfinite(self.cost)):
            raise ValueError(f"{self.name} costs {self.cost}: a positive number is needed")
        if self.scores.ndim != 1 or not len(self.scores):
            raise ValueError(f"{self.name} has scores {tuple(self.scores.shape)}: one an image is needed")

    @cached_property
    def score(self) -> float:
        """Mean over images."""
        return float(self.scores.double().mean())


def front_of(points: Sequence[Point]) -> list[Point]:
    """The points whose cost and mean score no other dominates, by rising cost."""
    return [points[i] for i in pareto_front([p.cost for p in points], [p.score for p in points])]


@dataclass(frozen=True, eq=False)
class Match:
    """A reference point and the cheapest candidate that is as good.

    Attributes:
        reference: the point to match.
        candidate: the cheapest non-inferior point, or None where there is none.
        test: of that candidate, or None.
    """

    reference: Point
    candidate: Point | None
    test: NonInferiority | None

    @property
    def common(self) -> tuple[Point, Point]:
        """The two, on the images that both have; there must be a candidate."""
        assert self.candidate is not None
        return _common(self.reference, self.candidate)

    @property
    def speed_up(self) -> float:
        """The reference's cost over the candidate's; NaN where nothing matches."""
        return math.nan if self.candidate is None else self.reference.cost / self.candidate.cost


def cheapest_matching(
    reference: Sequence[Point],
    candidates: Sequence[Point],
    margin: float = 0.003,
    alpha: float = 0.05,
    common: bool = False,
) -> list[Match]:
    """For every reference point the cheapest candidate that is non-inferior to it.

    Every test is at level alpha on its own. Trying P candidates until one passes gives chance P occasions:
    for a bound on the chance that a reference point is matched by an inferior one, pass alpha / P.

    Args:
        reference: points to match, usually a front; scores (n,).
        candidates: points of the other method, on the same n images in the same order.
        margin: loss of quality that does not matter, in units of the score.
        alpha: level of every test.
        common: where one point has fewer images, the first ones, compare on those that both have.

    Returns:
        A match for every reference point, in their order.
    """
    by_cost = sorted(candidates, key=lambda point: (point.cost, point.score))
    return [_cheapest(point, by_cost, margin, alpha, common) for point in reference]


def _common(first: Point, second: Point) -> tuple[Point, Point]:
    """Both points on as many images as the one of fewer has."""
    count = min(len(first.scores), len(second.scores))
    return replace(first, scores=first.scores[:count]), replace(second, scores=second.scores[:count])


def _cheapest(reference: Point, by_cost: Sequence[Point], margin: float, alpha: float, common: bool) -> Match:
    for candidate in by_cost:
        first, second = _common(reference, candidate) if common else (reference, candidate)
        test = non_inferiority(first.scores, second.scores, margin, alpha)
        if test.is_non_inferior:
            return Match(reference, candidate, test)
    return Match(reference, None, None)
