from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lavps
from lavps.evaluation import (
    calibrate,
    coverage,
    exact_samples,
    oracle_mixture,
    oracle_problem,
    ranks,
    score,
    sliced_wasserstein,
    uniformity_band,
)
from lavps.samplers import Sampler
from lavps.samplers.base import Run
from lavps.samplers.collect import Progress


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.floats(0.1, 3.0))
@pytest.mark.thorough
def test_sliced_wasserstein_of_a_shift_is_its_length_over_root_dimension(length: float) -> None:
    a, shift = normal(200, 25), torch.full((25,), length / 5, dtype=torch.float64)
    assert sliced_wasserstein(a, a + shift, 2000) == pytest.approx(length / 5, rel=0.1)
    assert sliced_wasserstein(a, a[torch.randperm(200)]) == 0


def test_sliced_wasserstein_sees_a_wrong_spread() -> None:
    a, b = normal(2000, 4, seed=1), 1.5 * normal(2000, 4, seed=2)
    assert sliced_wasserstein(a, b) == pytest.approx(0.5, abs=0.06)


def test_sliced_wasserstein_refuses_sets_of_different_size() -> None:
    with pytest.raises(ValueError, match="must have one shape"):
        sliced_wasserstein(normal(3, 2), normal(4, 2))


def test_ranks_count_the_samples_below_and_split_ties() -> None:
    samples = torch.tensor([[[0.0], [1.0], [2.0], [3.0]]])
    assert ranks(torch.tensor([[1.5]]), samples).item() == 2
    assert ranks(torch.tensor([[1.0]]), samples).item() == 1.5
    assert ranks(torch.tensor([[-1.0]]), samples).item() == 0


def test_coverage_of_the_true_law_is_nominal_and_of_a_narrow_one_is_not() -> None:
    truth, samples = normal(4000, 1), normal(4000, 99, 1, seed=3)
    levels = (0.5, 0.8, 0.95)
    torch.testing.assert_close(
        coverage(truth, samples, levels)[:, 0], torch.tensor(levels).double(), atol=0.03, rtol=0
    )
    assert (coverage(truth, 0.5 * samples, levels)[:, 0] < torch.tensor(levels) - 0.15).all()


def test_the_band_shrinks_like_the_root_of_the_number_of_observations() -> None:
    assert uniformity_band(100) == pytest.approx(1.36 / 10, rel=0.08), "the Kolmogorov-Smirnov quantile"
    assert uniformity_band(400) == pytest.approx(uniformity_band(100) / 2, rel=0.1)


class Conditional(Sampler):
    """Exact posterior of a Gaussian pixel observed with noise, its spread scaled."""

    def __init__(self, spread: float) -> None:
        self.spread = spread
        self.prior = lavps.GaussianPrior(torch.zeros(1, 1, 1), torch.ones(1, 1))

    @property
    def total_steps(self) -> int:
        return 1

    def steps(self, run: Run):
        variance = 1 / (1 + 1 / 0.25)
        z = run.normal(lavps.random.Purpose.DDIM)
        yield Progress(torch.zeros(()), run.measured.y * variance / 0.25 + self.spread * variance**0.5 * z)


@pytest.mark.parametrize(("spread", "honest"), [(1.0, True), (0.5, False), (2.0, False)])
def test_calibration_tells_honest_from_dishonest_uncertainty(spread: float, honest: bool) -> None:
    sampler = Conditional(spread)
    truth = sampler.prior.sample(300, seed=1)
    problem = lavps.InverseProblem.simulate(
        truth, lavps.operators.Identity(), lavps.GaussianNoise(0.5), seed=2
    )
    report = calibrate(sampler, truth, problem, lambda x: x.flatten(1), num_samples=63)
    # The band itself is left by one honest sampler in twenty; half as wide again by none to speak of.
    assert bool((report.deviation <= 1.5 * report.band).all()) is honest
    assert not (report.calibrated and not honest)
    at_90 = float(report.coverage[report.levels.index(0.9)])
    assert (abs(at_90 - 0.9) < 0.05) is honest
    assert (at_90 < 0.9) is (spread < 1) or honest


@pytest.mark.parametrize("task", ["sr4", "inpainting"])
def test_exact_samples_score_at_the_floor(task: str) -> None:
    prior = oracle_mixture(dtype=torch.float64)
    truth, problem = oracle_problem(prior, task, 4)
    exact = lavps.exact_posterior(prior, problem)
    result = score(exact_samples(problem, exact, 256), problem, exact)
    assert result.sw2 < 0.04
    assert result.std_ratio == pytest.approx(1, abs=0.05)
    assert result.chi_square == pytest.approx(1, abs=0.35)
    wide = score(1.5 * exact_samples(problem, exact, 256), problem, exact)
    assert wide.sw2 > 2 * result.sw2
    assert truth.shape == (4, 1, 8, 8)


def test_the_oracle_mixture_is_the_one_specified() -> None:
    prior = oracle_mixture(4, 3)
    squared = 1.0**2 + 2.0**2  # pixel (0, 0) to pixel (1, 2)
    expected = 0.08 * torch.exp(torch.tensor(-squared / (2 * (1 + 0.7 * 2) ** 2), dtype=torch.float64))
    torch.testing.assert_close(prior.covariances[2][0, 6], expected)
    assert prior.covariances[0].diagonal().tolist() == pytest.approx([0.081] * 16)
    spread = torch.stack([oracle_mixture(8, 4, seed=s).means.std() for s in range(40)]).mean()
    assert 0.3 < spread < 0.55, "means come from N(0, .25 ...)"


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ValueError, match="sr4"):
        oracle_problem(oracle_mixture(), "sr8", 1)
