"""The reference posterior for nonlinear problems, where it can be checked."""

from __future__ import annotations

import pytest
import torch

import lavps
from lavps.evaluation import exact_samples, oracle_mixture, oracle_problem, score, tempered_posterior
from lavps.operators import HDRClip


@pytest.mark.parametrize("task", ["sr4", pytest.param("inpainting", marks=pytest.mark.slow)])
@pytest.mark.thorough
def test_it_is_the_exact_posterior_on_a_linear_problem(task: str) -> None:
    prior = oracle_mixture(8, 4)
    problem = oracle_problem(prior, task, 1)[1]  # type: ignore[arg-type]
    exact = lavps.exact_posterior(prior, problem)
    found = score(tempered_posterior(prior, problem, 128, particles=256).float(), problem, exact)
    floor = score(exact_samples(problem, exact, 128), problem, exact)
    assert found.sw2 < floor.sw2 + 0.01
    assert abs(found.std_ratio - 1.0) < 0.06


def test_it_finds_the_weights_of_far_modes() -> None:
    """Two narrow modes that a measurement of |x| cannot tell apart, prior weights 3 to 1."""
    means = torch.tensor([-1.0, 1.0]).reshape(2, 1, 1, 1)
    prior = lavps.GaussianMixturePrior([3.0, 1.0], means, 0.01 * torch.ones(2, 1, 1))
    problem = lavps.InverseProblem(torch.ones(1, 1, 1, 1), torch.abs, lavps.GaussianNoise(0.1), (1, 1, 1))
    samples = tempered_posterior(prior, problem, 2048)
    assert float((samples < 0).double().mean()) == pytest.approx(0.75, abs=0.03)
    # Prior and measurement are equally sharp and agree: half of the variance is left.
    assert float(samples.abs().std()) == pytest.approx(0.1 / 2**0.5, rel=0.08)


@pytest.mark.thorough
def test_it_is_a_function_of_seed_and_item() -> None:
    prior = oracle_mixture(4, 2)
    problem = lavps.InverseProblem.simulate(prior.sample(2), HDRClip(2.0), lavps.GaussianNoise(0.05))
    both = tempered_posterior(prior, problem, 4, particles=8)
    assert torch.equal(both, tempered_posterior(prior, problem, 4, particles=8))
    assert not torch.equal(both, tempered_posterior(prior, problem, 4, particles=8, seed=1))


def test_more_samples_than_particles_are_refused() -> None:
    prior = oracle_mixture(4, 2)
    problem = oracle_problem(prior, "sr4", 1)[1]
    with pytest.raises(ValueError, match="particles"):
        tempered_posterior(prior, problem, 100, particles=64)
