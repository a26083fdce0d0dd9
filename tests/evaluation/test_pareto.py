from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lavps.evaluation import Point, cheapest_matching, front_of, non_inferiority, pareto_front

# Few distinct values, so that ties and equal points are common.
COORDINATE = st.integers(0, 6)
POINTS = st.lists(st.tuples(COORDINATE, COORDINATE), min_size=1, max_size=25)


def dominates(p: tuple[float, float], q: tuple[float, float]) -> bool:
    return p[0] <= q[0] and p[1] <= q[1] and p != q


@given(POINTS)
def test_no_point_of_the_front_is_dominated_and_every_other_is_by_one_of_it(points) -> None:
    front = pareto_front([p[0] for p in points], [p[1] for p in points])
    assert front
    for index, point in enumerate(points):
        beaten = any(dominates(points[other], point) for other in front)
        assert beaten is (index not in front)
        if index in front:
            assert not any(dominates(other, point) for other in points)


@given(POINTS, st.randoms(use_true_random=False))
def test_the_front_does_not_depend_on_the_order_of_points(points, random) -> None:
    order = list(range(len(points)))
    random.shuffle(order)
    front = pareto_front([p[0] for p in points], [p[1] for p in points])
    shuffled = pareto_front([points[i][0] for i in order], [points[i][1] for i in order])
    assert sorted(order[place] for place in shuffled) == sorted(front)


@given(POINTS)
def test_along_the_front_cost_rises_and_the_score_falls(points) -> None:
    front = [points[i] for i in pareto_front([p[0] for p in points], [p[1] for p in points])]
    assert all(p == q or (p[0] < q[0] and p[1] > q[1]) for p, q in pairwise(front))


def test_ties_in_one_coordinate_are_decided_by_the_other_and_equal_points_all_kept() -> None:
    assert pareto_front([1, 1, 2, 2, 1], [5, 4, 3, 4, 4]) == [1, 4, 2]


def test_costs_that_differ_in_their_last_digits_are_no_ties() -> None:
    assert pareto_front([1.0 + 1e-12, 1.0], [3.0, 3.0]) == [1]


def test_points_without_a_number_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        pareto_front([1.0, math.nan], [1.0, 2.0])
    with pytest.raises(ValueError, match="per point"):
        pareto_front([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="positive"):
        Point("free", 0.0, torch.ones(3))
    with pytest.raises(ValueError, match="one per image"):
        Point("empty", 1.0, torch.ones(0))


def point(name: str, cost: float, mean: float, seed: int = 0, spread: float = 0.001) -> Point:
    """A point whose scores on 50 images average to ``mean``."""
    noise = torch.randn(50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Point(name, cost, mean + spread * (noise - noise.mean()))


REFERENCE = [point("fast", 1.0, 0.12, 1), point("good", 4.0, 0.06, 2), point("best", 10.0, 0.03, 3)]


def test_the_front_of_points_is_that_of_their_costs_and_mean_scores() -> None:
    bad = point("bad", 5.0, 0.09, 4)
    assert [p.name for p in front_of([REFERENCE[2], bad, *REFERENCE[:2]])] == ["fast", "good", "best"]


def test_the_cheapest_candidate_as_good_gives_the_speed_up() -> None:
    candidates = [
        point("slow", 3.0, 0.055, 5),
        point("quick", 2.0, 0.061, 6),  # worse than "good", by less than the margin
        point("rough", 0.8, 0.064, 7),  # worse by more
    ]
    fast, good, best = cheapest_matching(REFERENCE, candidates)
    assert (fast.candidate.name, fast.speed_up) == ("rough", pytest.approx(1.25))
    assert (good.candidate.name, good.speed_up) == ("quick", pytest.approx(2.0))
    assert good.test == non_inferiority(REFERENCE[1].scores, candidates[1].scores)
    assert best.candidate is None
    assert best.test is None
    assert math.isnan(best.speed_up)


def test_a_slower_candidate_is_a_speed_up_below_one() -> None:
    (match,) = cheapest_matching(REFERENCE[:1], [point("slow", 2.0, 0.1)])
    assert match.speed_up == pytest.approx(0.5)


def test_the_margin_and_the_level_decide_what_is_as_good() -> None:
    reference, candidate = point("good", 4.0, 0.06, 2), point("quick", 2.0, 0.0625, 6, spread=0.002)
    assert cheapest_matching([reference], [candidate], alpha=0.2)[0].candidate is candidate
    assert cheapest_matching([reference], [candidate], alpha=0.001)[0].candidate is None
    assert cheapest_matching([reference], [candidate], margin=0.02, alpha=0.001)[0].candidate is candidate


def test_scores_on_other_images_are_refused() -> None:
    with pytest.raises(ValueError, match="same images"):
        cheapest_matching(REFERENCE[:1], [Point("other", 1.0, torch.full((49,), 0.1))])
