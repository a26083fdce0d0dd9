"""Paired comparisons of the studies, and their options."""

from __future__ import annotations

from dataclasses import fields

import pytest
from recipes.common.cells import difference, standard_error, verdicts
from recipes.few_steps import inception, photos
from recipes.noise_levels.run import Config as NoiseLevels

BASE = [0.10, 0.12, 0.11, 0.13, 0.09, 0.12]
VARIED = [0.001, -0.001, 0.002, -0.002, 0.0, 0.0]


def record(lpips: float, crps: float) -> dict[str, list[float]]:
    """Scores that differ from those of a zero offset by about these values."""
    return {
        "lpips": [a + lpips + v for a, v in zip(BASE, VARIED, strict=True)],
        "crps": [a + crps + v for a, v in zip(BASE, VARIED, strict=True)],
    }


@pytest.mark.parametrize(
    ("lpips", "crps", "expected"),
    [
        (-0.01, -0.01, [True, True, True, False]),
        (0.0005, 0.0005, [True, False, False, False]),
        (0.0, -0.0002, [True, False, False, False]),  # lower in the mean, and not shown
        (0.01, 0.01, [False, False, False, True]),
    ],
)
def test_a_difference_counts_if_it_is_shown(lpips: float, crps: float, expected: list[bool]) -> None:
    assert verdicts(record(lpips, crps), {"lpips": BASE, "crps": BASE}) == expected


def test_differences_are_paired() -> None:
    assert difference([0.2, 0.3, 0.4], [0.1, 0.2, 0.3]) == "+0.1000 ± 0.0000"
    assert standard_error([1.0, 3.0]) == pytest.approx(1.0)
    assert standard_error([1.0]) == 0


def test_inception_distances_are_those_of_the_images_of_their_study() -> None:
    ours, theirs = inception.Photographs(), photos.Config()
    assert all(getattr(ours, field.name) == getattr(theirs, field.name) for field in fields(theirs))
    assert (ours.study, ours.prior) == (theirs.study, theirs.prior)


def test_the_chart_of_the_misfit_is_drawn_from_a_stopped_run(tmp_path) -> None:  # type: ignore[no-untyped-def]
    config, values = NoiseLevels(), [1.0] * len(NoiseLevels().levels)
    records = [{"task": task, "evaluations": 4, "chi_square": values} for task in ("sr2", "denoise")]
    records.append({"task": "sr2", "evaluations": 8, "chi_square": values})
    config.draw(records, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000
