"""Intervals of samples of an exact Gaussian posterior, of narrow ones, and their conformal correction."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lavps
from lavps.evaluation import (
    Correction,
    conformal_p_value,
    exact_samples,
    interval_misses,
    pixel_coverage,
    rank_histogram,
    ranks,
    required_scales,
    tarp_ranks,
    uniformity_p_value,
)
from lavps.intervals import central_interval, median

LEVELS = (0.5, 0.8, 0.9)
SAMPLES = 19


def posterior_draws(images: int, std_ratio: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Truths (B, 1, 4, 4), and exact posterior samples whose deviation from their mean is scaled."""
    distance = (torch.arange(16)[:, None] - torch.arange(16)[None]).abs().double()
    prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), 0.25 * torch.exp(-distance / 3))
    truth = prior.sample(images, seed=1)
    operator = lavps.operators.AveragePool(2)
    problem = lavps.InverseProblem.simulate(truth, operator, lavps.GaussianNoise(0.1), seed=2)
    exact = lavps.exact_posterior(prior, problem)
    means = torch.stack([one.mean for one in exact])[:, None]
    drawn = exact_samples(problem, exact, SAMPLES)
    return truth.to(drawn), means.to(drawn) + std_ratio * (drawn - means.to(drawn))


TRUTH, EXACT = posterior_draws(300)
_, NARROW = posterior_draws(300, 0.6)


@pytest.mark.parametrize("level", LEVELS)
def test_order_statistics_cover_at_their_level_where_quantiles_do_not(level: float) -> None:
    low, high = central_interval(EXACT, level)
    covered = float(((low <= TRUTH) & (high >= TRUTH)).double().mean())
    assert covered == pytest.approx(level, abs=0.015)
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=EXACT.dtype)
    low, high = EXACT.quantile(tails, dim=1)
    assert float(((low <= TRUTH) & (high >= TRUTH)).double().mean()) < covered - 0.01
    shares = pixel_coverage(EXACT, TRUTH, [level])[:, 0]
    torch.testing.assert_close(shares, 1 - interval_misses(EXACT, TRUTH, level)[:, 400])


@given(st.integers(3, 40), st.floats(0.05, 0.9))
def test_an_interval_lies_between_its_neighbouring_order_statistics(count: int, level: float) -> None:
    samples = torch.arange(float(count), dtype=torch.float64)[None]
    if (count - 1) / (count + 1) < level - 1e-9:
        with pytest.raises(ValueError, match="need at least"):
            central_interval(samples, level)
        return
    low, high = central_interval(samples, level)
    assert float(high - low) == pytest.approx(level * (count + 1))
    assert float(high + low) == pytest.approx(count - 1)
    wide = central_interval(samples, level, 2.0)
    assert float(wide[1] - wide[0]) == pytest.approx(2 * level * (count + 1))
    assert float(median(samples)) == (count - 1) / 2


@pytest.mark.parametrize("level", LEVELS)
def test_the_correction_restores_the_coverage_of_new_images(level: float) -> None:
    misses = interval_misses(NARROW, TRUTH, level)
    learned = Correction.fit(misses[:150], level)
    assert learned.before < level - 0.08
    assert learned.scale == pytest.approx(1 / 0.6, rel=0.2)
    low, high = central_interval(NARROW[150:], level, learned.scale)
    covered = ((low <= TRUTH[150:]) & (TRUTH[150:] <= high)).double().mean()
    assert float(covered) == pytest.approx(level, abs=0.025)
    assert learned.after == pytest.approx(level, abs=3 * learned.after_error + 0.01)
    assert learned.images == 150


def test_the_guarantee_holds_on_average_over_small_held_out_sets() -> None:
    misses = interval_misses(NARROW, TRUTH, 0.8)
    covered = []
    for first in range(0, 290, 10):
        learned = Correction.fit(misses[first : first + 9], 0.8)
        scale = int((lavps.evaluation.conformal.SCALES - learned.scale).abs().argmin())
        covered.append(1 - float(misses[first + 9, scale]))
    assert sum(covered) / len(covered) >= 0.8, "conservative with nine images"


def test_a_correction_needs_enough_images_and_samples_that_differ() -> None:
    misses = interval_misses(NARROW, TRUTH, 0.9)
    with pytest.raises(ValueError, match="at least 10 images"):
        Correction.fit(misses[:9], 0.9)
    same = interval_misses(NARROW[:, :1].expand(-1, 19, -1, -1, -1), TRUTH, 0.5)
    with pytest.raises(ValueError, match="hardly differ"):
        Correction.fit(same, 0.5)
    with pytest.raises(ValueError, match="do not fit"):
        required_scales(NARROW, TRUTH[:5], 0.5)


def test_known_pixels_need_no_width() -> None:
    truth = torch.ones(1, 2)
    assert required_scales(truth[:, None].expand(1, 19, 2), truth, 0.9).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(("samples", "exact"), [(EXACT, True), (NARROW, False)])
def test_ranks_and_tarp_find_narrow_posteriors(samples: torch.Tensor, exact: bool) -> None:
    pixel = ranks(TRUTH[:, 0, 1, 1], samples[:, :, 0, 1, 1])
    assert (float(uniformity_p_value(pixel, SAMPLES)) > 0.01) is exact
    assert (float(uniformity_p_value(tarp_ranks(TRUTH, samples), SAMPLES)) > 0.01) is exact
    histogram = rank_histogram(pixel, SAMPLES)
    assert float(histogram.sum()) == pytest.approx(1)
    assert (float(histogram[0] + histogram[-1]) < 0.16) is exact


def test_uniform_ranks_are_rejected_as_often_as_the_level_states() -> None:
    generator = torch.Generator().manual_seed(0)
    uniform = torch.randint(0, 20, (60, 2000), generator=generator).double()
    p_values = uniformity_p_value(uniform, 19)
    assert float((p_values < 0.05).double().mean()) == pytest.approx(0.05, abs=0.02)
    with pytest.raises(ValueError, match="at least 10 items"):
        uniformity_p_value(uniform[:9], 19)


def test_tarp_agrees_with_its_definition() -> None:
    references = torch.zeros_like(TRUTH)
    found = tarp_ranks(TRUTH, EXACT, references)
    nearer = EXACT.square().sum((2, 3, 4)) < TRUTH.square().sum((1, 2, 3))[:, None]
    torch.testing.assert_close(found, nearer.double().sum(1))


def test_conformal_p_values_are_valid_and_find_outliers() -> None:
    vectors = torch.randn(2000, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    p_values = [conformal_p_value(vectors[i : i + 50], vectors[i + 50]) for i in range(0, 1900, 51)]
    assert sum(p <= 0.1 for p in p_values) <= 9, "of 38, at a level of 0.1"
    assert conformal_p_value(vectors[:199], torch.tensor([0.0, 0.0, 9.0])) == pytest.approx(1 / 200)
    correlated = vectors[:199] * torch.tensor([1.0, 0.01, 1.0]) + vectors[:199, :1] * torch.tensor([0, 1, 0])
    assert conformal_p_value(correlated, torch.tensor([1.0, -1.0, 0.0])) <= 2 / 200, "extreme in one respect"
    assert conformal_p_value(vectors[:99], torch.tensor([0.0, float("nan"), 0.0])) == 0.01
