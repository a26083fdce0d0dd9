r"""From rows to a verdict: how much cheaper is a method at equal quality?

1. On the validation images, the Pareto front (cost, mean LPIPS) of every family of methods.
2. These fronts' methods again on the test images, which nothing was picked on.
3. For every point of the baseline's front the cheapest point of another family that is non-inferior to it:
   paired one-sided t test on LPIPS per test image, margin :math:`\Delta = .003`, level :math:`\alpha = .05`
   (the paper's). Trying P candidates gives chance P occasions, so whether the test also passes at
   :math:`\alpha / P` is told beside.
4. The speed-up of a pair: the ratio of costs in counts, and of median times, both exact to what was run.
   A paired bootstrap gives the difference in LPIPS its interval.
"""

from __future__ import annotations

__all__ = ["BASELINE", "Results", "conclude", "fronts", "row_means"]

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ...amortization.checkpoint import write_json
from ..pareto import Match, Point, cheapest_matching, front_of
from ..statistics import paired_bootstrap
from .folder import Benchmark
from .methods import Method
from .records import finite, read_json, read_rows
from .runs import Row
from .timing import speed_up, summarize

BASELINE = "MGDM, Adam"
_COLUMNS = ("psnr", "ssim", "lpips", "chi_square", "forwards", "backwards", "model_forwards", "acceptance")


@dataclass(frozen=True)
class Results:
    """All that a report says, in plain JSON values.

    Attributes:
        settings: of the benchmark.
        counts: number of images of every split.
        baseline: the group of methods whose front the other families are compared with.
        margin: Delta of the test.
        alpha: its level.
        points: of every split, a dictionary a method; "screening" are those dropped after the first images.
        fronts: keys of every family's front on the validation images, by rising cost.
        matches: for every other family and point of the baseline, what matches it.
        timing: the machine and how many turns; empty where nothing was timed.
    """

    settings: dict[str, Any]
    counts: dict[str, int]
    baseline: str
    margin: float
    alpha: float
    points: dict[str, list[dict[str, Any]]]
    fronts: dict[str, list[str]]
    matches: list[dict[str, Any]]
    timing: dict[str, Any]

    def point(self, split: str, key: str) -> dict[str, Any]:
        """The point of a method."""
        return next(point for point in self.points[split] if point["key"] == key)


def _point(benchmark: Benchmark, split: str, method: Method) -> Point:
    rows = benchmark.runs(split).rows(method.key)
    scores = torch.tensor([row["lpips"] for row in rows], dtype=torch.float64)
    return Point(method.key, benchmark.known_prices(method).cost(rows), scores)


def _by_family(methods: Sequence[Method]) -> dict[str, list[Method]]:
    families: dict[str, list[Method]] = {}
    for method in sorted(methods, key=lambda method: (method.family, method.key)):
        families.setdefault(method.family, []).append(method)
    return families


def fronts(
    benchmark: Benchmark,
    most: int | None = None,
    groups: Sequence[str] | None = None,
    within: float | None = None,
) -> dict[str, list[Method]]:
    """The Pareto front of every group of methods on the validation images, by rising cost.

    Args:
        benchmark: with validation rows.
        most: points of a front, thinned evenly in order of cost where it has more; default all.
        groups: as :meth:`Method.is_of` reads them; default every family.
        within: leave out what is worse than the front's best by more than this, in LPIPS.
    """
    count = benchmark.measurements("validation").settings.count
    every = benchmark.runs("validation").methods(count)
    members = _by_family(every)
    if groups is not None:
        members = {group: [method for method in every if method.is_of(group)] for group in groups}
    found = {}
    for family, methods in members.items():
        by_key = {method.key: method for method in methods}
        front = front_of([_point(benchmark, "validation", method) for method in methods])
        # Settings that change nothing (a safeguard nobody needs) tie exactly: one of them will do.
        worst = math.inf if within is None or not front else front[-1].score + within
        kept = {(point.cost, point.score): by_key[point.name] for point in front if point.score <= worst}
        distinct = list(kept.values())
        found[family] = _thinned(distinct, most)
    return found


def _thinned(methods: list[Method], most: int | None) -> list[Method]:
    if most is None or len(methods) <= most:
        return methods
    if most == 1:
        return methods[-1:]
    return [methods[round(place * (len(methods) - 1) / (most - 1))] for place in range(most)]


def conclude(
    benchmark: Benchmark,
    baseline: str = BASELINE,
    margin: float = 0.003,
    alpha: float = 0.05,
    fewest: int | None = None,
) -> Results:
    """The results of all that has been run so far, also written to ``results.json``.

    Args:
        benchmark: with validation rows, better also with test rows and times.
        baseline: a group of methods, as :meth:`Method.is_of` reads it; its front on the validation images.
        margin: loss of LPIPS that does not matter.
        alpha: level of every test.
        fewest: consider also methods that were run on this many test images, not on all; a pair is compared
            on the images that both have.
    """
    sets = [s for s in ("validation", "test") if (benchmark.path / "measurements" / f"{s}.json").exists()]
    counts = {split: benchmark.measurements(split).settings.count for split in sets}
    least = counts | ({} if fewest is None else {"test": min(fewest, counts.get("test", fewest))})
    methods = {split: benchmark.runs(split).methods(least[split], counts[split]) for split in sets}
    turns = read_rows(benchmark.path / "timing" / "turns.jsonl")
    timed = {row["key"] for row in turns}
    points = {split: [_describe(benchmark, split, m, turns, timed) for m in methods[split]] for split in sets}
    if dropped := benchmark.runs("validation").methods(1, counts["validation"] - 1):
        points["screening"] = [_describe(benchmark, "validation", m, turns, timed) for m in dropped]
    results = Results(
        asdict(benchmark.settings),
        counts,
        baseline,
        margin,
        alpha,
        points,
        {family: [m.key for m in front] for family, front in fronts(benchmark).items()},
        _matches(benchmark, methods.get("test", []), baseline, margin, alpha, turns, timed),
        read_json(benchmark.path / "timing" / "machine.json"),
    )
    write_json(benchmark.path / "results.json", asdict(results))
    return results


def row_means(rows: Sequence[Row]) -> dict[str, float | None]:
    """Mean of every column over images; of those that have it, None where none has."""
    known = {name: [row[name] for row in rows if row[name] is not None] for name in _COLUMNS}
    return {name: sum(values) / len(values) if values else None for name, values in known.items()}


def _describe(
    benchmark: Benchmark, split: str, method: Method, turns: Sequence[Row], timed: set[str]
) -> dict[str, Any]:
    rows, scores = benchmark.runs(split).rows(method.key), _point(benchmark, split, method)
    n = len(scores.scores)
    about: dict[str, Any] = {
        "key": method.key,
        "family": method.family,
        "label": method.label,
        "method": method.settings(),
        "cost": scores.cost,
        "images": n,
        "lpips_error": finite(float(scores.scores.std()) / math.sqrt(n)),
    }
    about |= row_means(rows)
    about["time"] = asdict(summarize(turns, method.key)) if method.key in timed else None
    return about


def _matches(
    benchmark: Benchmark,
    methods: Sequence[Method],
    baseline: str,
    margin: float,
    alpha: float,
    turns: Sequence[Row],
    timed: set[str],
) -> list[dict[str, Any]]:
    [front] = fronts(benchmark, groups=[baseline]).values()
    keys = {method.key for method in front}
    referring = [method for method in methods if method.key in keys]
    reference = sorted(
        (_point(benchmark, "test", method) for method in referring), key=lambda point: point.cost
    )
    families = {
        family: [_point(benchmark, "test", method) for method in members]
        for family, members in _by_family(methods).items()
        if not any(method.is_of(baseline) for method in members)
    }
    if reference and min(len(point.scores) for point in reference) < 2:
        return []  # nothing to test with
    found: list[dict[str, Any]] = []
    for family, candidates in families.items():
        found += [
            _describe_match(match, family, len(candidates), margin, turns, timed)
            for match in cheapest_matching(reference, candidates, margin, alpha, common=True)
        ]
    return found


def _describe_match(
    match: Match, family: str, tested: int, margin: float, turns: Sequence[Row], timed: set[str]
) -> dict[str, Any]:
    about: dict[str, Any] = {"family": family, "reference": match.reference.name, "candidate": None}
    if match.candidate is None or match.test is None:
        return about
    first, second = match.common
    times = None
    if {first.name, second.name} <= timed and sum(row["key"] == first.name for row in turns) > 1:
        times = asdict(speed_up(turns, first.name, second.name))
    test = {name: finite(value) for name, value in asdict(match.test).items()}
    difference = paired_bootstrap(first.scores, second.scores, margin=margin)
    return about | {
        "candidate": second.name,
        "images": len(first.scores),
        "scores": [first.score, second.score],
        "speed_up": match.speed_up,
        "time_speed_up": times,
        "test": test,
        "candidates": tested,
        "passes_corrected": match.test.p_value < match.test.alpha / tested,
        "bootstrap": asdict(difference),
    }
