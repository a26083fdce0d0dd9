r"""Analysis of a benchmark: the speed-up of non-inferior methods.

1. The Pareto front (cost, mean LPIPS) of every family of methods is computed on the validation images.
2. The methods of these fronts are run on the test images, which are not used for selection.
3. Every point of the baseline's front is compared with the cheapest point of another family that is
   non-inferior to it: paired one-sided t test on LPIPS per test image, margin :math:`\Delta = 0.003`, level
   :math:`\alpha = 0.05`, as in the paper. Results also state whether the test passes at :math:`\alpha / P`,
   with P the number of candidates (Bonferroni correction).
4. The speed-up of a pair is the ratio of costs, and of median times. A paired bootstrap gives the interval of
   the difference in LPIPS.
"""

from __future__ import annotations

__all__ = ["BASELINE", "Results", "analyze", "fronts", "row_means"]

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..evaluation.pareto import Match, Point, cheapest_matching, front_of
from ..evaluation.statistics import paired_bootstrap
from ..io.atomic import write_json
from ..samplers import Settings
from .folder import Benchmark
from .methods import family, label, matches_group
from .records import finite, read_json, read_rows
from .runs import Row
from .timing import speed_up, summarize

BASELINE = "MGDM (Adam)"
_COLUMNS = (
    *("psnr", "ssim", "lpips", "chi_square", "forwards", "backwards", "model_forwards", "acceptance"),
    *("crps", "energy_score", "coverage", "nominal_coverage"),  # not in rows of one sample
)


@dataclass(frozen=True)
class Results:
    """Content of a report, in plain JSON values.

    Attributes:
        settings: Settings of the benchmark.
        counts: Number of images of every split.
        baseline: Group of methods whose front the other families are compared with.
        margin: Non-inferiority margin Delta.
        alpha: Level of the test.
        points: Methods of every split; "screening" has those dropped after the first images.
        fronts: Keys of every group's front on the validation images, by rising cost.
        matches: Matching method of every other group ("family"), for every point of the baseline.
        timing: Description of the machine; empty if nothing was timed.
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
        """Return the point of a method."""
        return next(point for point in self.points[split] if point["key"] == key)

    def is_baseline(self, family: str) -> bool:
        """Return whether the baseline is this one family, or a part of it."""
        return self.baseline == family or self.baseline.startswith(f"{family}, ")


def _point(benchmark: Benchmark, split: str, method: Settings) -> Point:
    rows = benchmark.runs(split).rows(method.key)
    scores = torch.tensor([row["lpips"] for row in rows], dtype=torch.float64)
    return Point(method.key, benchmark.known_prices(method).cost(rows), scores)


def _grouped(methods: Sequence[Settings], groups: Sequence[str] | None) -> dict[str, list[Settings]]:
    """Return the members of every group; default every family."""
    if groups is not None:
        return {group: [method for method in methods if matches_group(method, group)] for group in groups}
    families: dict[str, list[Settings]] = {}
    for method in sorted(methods, key=lambda method: (family(method), method.key)):
        families.setdefault(family(method), []).append(method)
    return families


def fronts(
    benchmark: Benchmark,
    most: int | None = None,
    groups: Sequence[str] | None = None,
    within: float | None = None,
) -> dict[str, list[Settings]]:
    """Return the Pareto front of every group of methods on the validation images, by rising cost.

    Args:
        benchmark: Benchmark with validation rows.
        most: Maximum number of points of a front, thinned evenly in order of cost; default all.
        groups: Groups as in :func:`~lavps.benchmark.methods.matches_group`; default every family.
        within: Largest LPIPS difference from the best point of the front; default none.
    """
    every = benchmark.runs("validation").methods(benchmark.measurements("validation").settings.count)
    found = {}
    for group, methods in _grouped(every, groups).items():
        by_key = {method.key: method for method in methods}
        front = front_of([_point(benchmark, "validation", method) for method in methods])
        # Equivalent settings, such as an unused safeguard, tie exactly: one of them is kept.
        worst = math.inf if within is None or not front else front[-1].score + within
        kept = {(point.cost, point.score): by_key[point.name] for point in front if point.score <= worst}
        found[group] = _thinned(list(kept.values()), most)
    return found


def _thinned(methods: list[Settings], most: int | None) -> list[Settings]:
    if most is None or len(methods) <= most:
        return methods
    if most == 1:
        return methods[-1:]
    return [methods[round(index * (len(methods) - 1) / (most - 1))] for index in range(most)]


def analyze(
    benchmark: Benchmark,
    baseline: str = BASELINE,
    margin: float = 0.003,
    alpha: float = 0.05,
    fewest: int | None = None,
    groups: Sequence[str] | None = None,
) -> Results:
    """Analyze all methods that have been run, and write ``results.json``.

    Args:
        benchmark: Benchmark with validation rows, and optionally test rows and times.
        baseline: Group of methods, as in :func:`~lavps.benchmark.methods.matches_group`.
        margin: Non-inferiority margin in LPIPS.
        alpha: Level of every test.
        fewest: Number of test images from which on a method is included, default all; a pair is compared on
            the images that both have.
        groups: Groups whose fronts are found, and which are compared with the baseline unless they share a
            method with it; default every family.
    """
    sets = [s for s in ("validation", "test") if (benchmark.path / "measurements" / f"{s}.json").exists()]
    counts = {split: benchmark.measurements(split).settings.count for split in sets}
    least = counts | ({} if fewest is None else {"test": min(fewest, counts.get("test", fewest))})
    methods = {split: benchmark.runs(split).methods(least[split], counts[split]) for split in sets}
    turns = read_rows(benchmark.path / "timing" / "turns.jsonl")
    points = {split: [_describe(benchmark, split, m, turns) for m in methods[split]] for split in sets}
    if dropped := benchmark.runs("validation").methods(1, counts["validation"] - 1):
        points["screening"] = [_describe(benchmark, "validation", m, turns) for m in dropped]
    results = Results(
        asdict(benchmark.settings),
        counts,
        baseline,
        margin,
        alpha,
        points,
        {group: [m.key for m in front] for group, front in fronts(benchmark, groups=groups).items()},
        _matches(benchmark, _grouped(methods.get("test", []), groups), baseline, margin, alpha, turns),
        read_json(benchmark.path / "timing" / "machine.json"),
    )
    write_json(benchmark.path / "results.json", asdict(results))
    return results


def row_means(rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the mean of every column over the rows that have a value; None if no row has one."""
    known = {name: [row[name] for row in rows if row.get(name) is not None] for name in _COLUMNS}
    return {name: sum(values) / len(values) if values else None for name, values in known.items()}


def _describe(benchmark: Benchmark, split: str, method: Settings, turns: Sequence[Row]) -> dict[str, Any]:
    rows, scores = benchmark.runs(split).rows(method.key), _point(benchmark, split, method)
    n, timed = len(scores.scores), any(row["key"] == method.key for row in turns)
    return {
        "key": method.key,
        "family": family(method),
        "label": label(method),
        "method": method.to_dict(),
        "cost": scores.cost,
        "images": n,
        "linearized_steps": float(method.counts.linearized_steps),
        "lpips_error": finite(float(scores.scores.std()) / math.sqrt(n)),
        **row_means(rows),
        "time": asdict(summarize(turns, method.key)) if timed else None,
    }


def _matches(
    benchmark: Benchmark,
    groups: dict[str, list[Settings]],
    baseline: str,
    margin: float,
    alpha: float,
    turns: Sequence[Row],
) -> list[dict[str, Any]]:
    [front] = fronts(benchmark, groups=[baseline]).values()
    keys = {method.key for method in front}
    tested = {method.key: method for members in groups.values() for method in members}
    reference = sorted(
        (_point(benchmark, "test", method) for key, method in tested.items() if key in keys),
        key=lambda point: point.cost,
    )
    others = {
        name: [_point(benchmark, "test", method) for method in members]
        for name, members in groups.items()
        if not any(matches_group(method, baseline) for method in members)
    }
    if reference and min(len(point.scores) for point in reference) < 2:
        return []  # nothing to test with
    found: list[dict[str, Any]] = []
    for name, candidates in others.items():
        found += [
            _describe_match(match, name, len(candidates), margin, turns)
            for match in cheapest_matching(reference, candidates, margin, alpha, common=True)
        ]
    return found


def _describe_match(
    match: Match, family: str, tested: int, margin: float, turns: Sequence[Row]
) -> dict[str, Any]:
    about: dict[str, Any] = {"family": family, "reference": match.reference.name, "candidate": None}
    if match.candidate is None or match.test is None:
        return about
    first, second = match.common
    timed = Counter(row["key"] for row in turns)
    enough = timed[first.name] > 1 and timed[second.name]
    return about | {
        "candidate": second.name,
        "images": len(first.scores),
        "scores": [first.score, second.score],
        "speed_up": match.speed_up,
        "time_speed_up": asdict(speed_up(turns, first.name, second.name)) if enough else None,
        "test": {name: finite(value) for name, value in asdict(match.test).items()},
        "candidates": tested,
        "passes_corrected": match.test.p_value < match.test.alpha / tested,
        "bootstrap": asdict(paired_bootstrap(first.scores, second.scores, margin=margin)),
    }
