from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lavps.evaluation import joint_bootstrap, mmd_difference, non_inferiority, paired_bootstrap


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scores(n: int, worse_by: float, seed: int = 0, spread: float = 0.02) -> tuple[torch.Tensor, torch.Tensor]:
    """A reference's and a candidate's scores on n images, which are hard or easy for both."""
    image, own = 0.2 + 0.1 * normal(n, seed=2 * seed), spread * normal(n, seed=2 * seed + 1)
    return image, image + worse_by + own


def test_the_test_names_the_extra_that_holds_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match=r"lavps\[metrics\]"):
        non_inferiority(*scores(5, 0.0))


@pytest.mark.parametrize("n", [2, 5, 32, 300])
@pytest.mark.parametrize("worse_by", [-0.01, 0.0, 0.003, 0.02])
def test_the_test_is_scipys_one_sample_t_test_of_shifted_differences(n: int, worse_by: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    reference, candidate = scores(n, worse_by)
    expected = stats.ttest_1samp((reference - candidate).numpy(), -0.003, alternative="greater")
    result = non_inferiority(reference, candidate)
    assert result.statistic == pytest.approx(float(expected.statistic), rel=1e-9)
    assert result.p_value == pytest.approx(float(expected.pvalue), rel=1e-7)
    assert result.lower_bound == pytest.approx(float(expected.confidence_interval(0.95).low), rel=1e-7)
    assert result.mean_difference == pytest.approx(float((reference - candidate).mean()))
    assert (result.n, result.margin, result.alpha) == (n, 0.003, 0.05)
    assert result.is_non_inferior is bool(expected.pvalue < 0.05)


@given(st.floats(-0.03, 0.03), st.integers(0, 50), st.floats(0.01, 0.4))
def test_rejecting_is_having_the_bound_above_minus_the_margin(worse: float, seed: int, alpha: float) -> None:
    result = non_inferiority(*scores(20, worse, seed), alpha=alpha)
    assert result.is_non_inferior is (result.lower_bound > -result.margin)


def test_a_candidate_worse_by_the_margin_is_accepted_in_alpha_of_all_trials() -> None:
    trials, alpha = 2000, 0.05
    accepted = sum(
        non_inferiority(*scores(30, 0.003, seed), alpha=alpha).is_non_inferior for seed in range(trials)
    )
    assert accepted / trials == pytest.approx(alpha, abs=3.5 * math.sqrt(alpha * (1 - alpha) / trials))


def test_power_grows_with_the_number_of_images() -> None:
    def power(n: int) -> float:
        return sum(non_inferiority(*scores(n, 0.0, seed)).is_non_inferior for seed in range(200)) / 200

    few, some, many = power(10), power(100), power(800)
    assert few < 0.25
    assert few + 0.1 < some < many - 0.1
    assert many > 0.95


def test_plain_numbers_are_scores_too() -> None:
    result = non_inferiority([0.1, 0.2, 0.3], [0.11, 0.19, 0.32])
    assert result.mean_difference == pytest.approx(-0.02 / 3)


def test_a_method_compared_with_itself_is_non_inferior() -> None:
    reference, _ = scores(10, 0.0)
    result = non_inferiority(reference, reference)
    assert (result.statistic, result.p_value, result.lower_bound) == (math.inf, 0.0, 0.0)
    assert result.is_non_inferior


@pytest.mark.parametrize(("worse_by", "accepted"), [(0.25, True), (0.5, False), (0.75, False)])
def test_equal_differences_leave_no_doubt(worse_by: float, accepted: bool) -> None:
    result = non_inferiority([1.0, 2.0, 3.0], [1.0 + worse_by, 2.0 + worse_by, 3.0 + worse_by], margin=0.5)
    assert result.standard_error == 0
    assert result.is_non_inferior is accepted
    assert result.p_value == (0.0 if accepted else 1.0)
    assert result.lower_bound == -worse_by


def test_scores_that_cannot_be_tested_are_refused() -> None:
    with pytest.raises(ValueError, match="at least two"):
        non_inferiority([0.1], [0.2])
    with pytest.raises(ValueError, match="same images"):
        non_inferiority([0.1, 0.2], [0.2, 0.3, 0.4])
    with pytest.raises(ValueError, match="finite"):
        non_inferiority([0.1, 0.2], [0.2, math.nan])
    with pytest.raises(ValueError, match="margin"):
        non_inferiority([0.1, 0.2], [0.2, 0.1], margin=-0.1)
    with pytest.raises(ValueError, match="alpha"):
        non_inferiority([0.1, 0.2], [0.2, 0.1], alpha=1.0)


def test_the_bootstrap_interval_covers_the_true_difference_as_often_as_it_says() -> None:
    trials, level, covered = 300, 0.9, 0
    for seed in range(trials):
        reference, candidate = scores(60, 0.01, seed)
        result = paired_bootstrap(reference, candidate, resamples=400, seed=seed, level=level)
        covered += result.lower <= -0.01 <= result.upper
    assert covered / trials == pytest.approx(level, abs=0.05)


def test_on_many_images_the_bootstrap_and_the_t_test_agree() -> None:
    reference, candidate = scores(300, 0.0015, seed=3)
    test = non_inferiority(reference, candidate)
    drawn = paired_bootstrap(reference, candidate, margin=0.003, level=0.9)
    assert drawn.difference == pytest.approx(test.mean_difference)
    assert drawn.p_value == pytest.approx(test.p_value, abs=0.015)
    assert drawn.lower == pytest.approx(test.lower_bound, abs=0.1 * test.standard_error)
    assert drawn.bias == pytest.approx(0, abs=0.05 * test.standard_error)


def test_pairing_is_what_makes_the_bootstrap_sharp() -> None:
    reference, candidate = scores(100, 0.0)
    paired = paired_bootstrap(reference, candidate, resamples=1000)
    apart = paired_bootstrap(reference, candidate.roll(1), resamples=1000)
    assert paired.upper - paired.lower < 0.4 * (apart.upper - apart.lower)


def test_any_statistic_of_scores_can_be_bootstrapped() -> None:
    reference, candidate = scores(101, 0.05)
    candidate[0] = 1e6
    result = paired_bootstrap(reference, candidate, lambda x: x.median(-1).values, resamples=500)
    assert result.difference == float(reference.median() - candidate.median())
    assert -0.15 < result.lower < result.upper < 0.05


def test_the_bootstrap_is_a_function_of_its_seed_and_not_of_its_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = scores(20, 0.0)
    first = paired_bootstrap(a, b, resamples=50, seed=1)
    assert paired_bootstrap(a, b, resamples=50, seed=2) != first
    monkeypatch.setattr("lavps.evaluation.statistics._DRAWS", 7 * 20)
    chunked = paired_bootstrap(a, b, resamples=50, seed=1)
    assert (chunked.lower, chunked.upper) == pytest.approx((first.lower, first.upper), rel=1e-12)


def test_an_interval_for_mmd_is_not_misled_by_the_v_statistics_bias() -> None:
    """Both methods draw from the truth's own law, one of them near the true image: no difference of laws."""
    n, missed, biased = 40, 0, 0
    for seed in range(60):
        truth, free, z = normal(3, n, 2, seed=seed)
        near = 0.95 * truth + math.sqrt(1 - 0.95**2) * z
        result = joint_bootstrap(mmd_difference(free, near, truth, 1.0), n, 300, seed=seed)
        missed += not result.lower <= 0 <= result.upper
        biased += result.difference > 0
    assert missed <= 6
    assert biased == 60, "the plain difference always points the same way"


def test_the_bootstrap_finds_a_method_that_is_far_from_the_truth() -> None:
    truth = normal(80, 2)
    near, far = truth + 0.1 * normal(80, 2, seed=1), truth + 0.8
    result = joint_bootstrap(mmd_difference(far, near, truth, 1.0), 80, 500)
    assert result.lower > 0
    assert result.p_value == 1 / 501
    assert joint_bootstrap(mmd_difference(near, far, truth, 1.0), 80, 500).p_value > 0.99


def test_a_bootstrap_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="n >= 2"):
        paired_bootstrap([0.1], [0.2])
    with pytest.raises(ValueError, match="level"):
        paired_bootstrap([0.1, 0.2], [0.2, 0.3], level=1.0)
    with pytest.raises(ValueError, match="same images"):
        paired_bootstrap([0.1, 0.2], [0.2])
