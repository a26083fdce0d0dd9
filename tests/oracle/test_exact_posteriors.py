"""Every sampler against exact posteriors. The full tables are in benchmarks/mixture_oracle.md."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import lavps
from lavps.data_step import Isotropic, Stationary
from lavps.evaluation import (
    OptimizedStart,
    OracleScore,
    calibrate,
    exact_samples,
    oracle_mixture,
    oracle_problem,
    random_start,
    score,
)
from lavps.guidance import Amortized, Gradient, Guidance, Linearized, switch
from lavps.operators import Identity
from lavps.operators.registry import NAMES, named_family
from lavps.samplers import Sampler

TASKS = pytest.mark.parametrize("task", ["sr4", "inpainting"])
# For long tests: one task in the gate, the other by hand.
LONG = pytest.mark.parametrize("task", [pytest.param("sr4", marks=pytest.mark.slow), "inpainting"])
PRIOR = oracle_mixture()
WHITENED = lavps.WhitenedGradient()
SAMPLES = 128


@cache
def setting(task: str, observations: int):
    _, problem = oracle_problem(PRIOR, task, observations)
    return problem, lavps.exact_posterior(PRIOR, problem)


@cache
def judged(sampler: Sampler, task: str, observations: int = 8) -> OracleScore:
    problem, exact = setting(task, observations)
    return score(sampler.sample(problem, SAMPLES).samples, problem, exact)


@cache
def floor(task: str, observations: int = 8) -> OracleScore:
    problem, exact = setting(task, observations)
    return score(exact_samples(problem, exact, SAMPLES), problem, exact)


MGDM_1 = lavps.MGDM(PRIOR, guidance=Gradient(steps=1))
MGDM_3 = lavps.MGDM(PRIOR, guidance=Gradient(steps=3))
MGDM_W1 = lavps.MGDM(PRIOR, guidance=Gradient(1, WHITENED))
MGDM_20 = lavps.MGDM(PRIOR, guidance=Gradient(steps=20))


@LONG
def test_mgdm_samples_the_posterior(task: str) -> None:
    result = judged(MGDM_3, task)
    assert result.sw2 <= {"sr4": 0.060, "inpainting": 0.040}[task]
    assert 0.8 <= result.std_ratio <= 1.2


@TASKS
@pytest.mark.thorough
def test_mmps_samples_the_posterior(task: str) -> None:
    assert judged(lavps.MMPS(PRIOR), task).sw2 <= {"sr4": 0.050, "inpainting": 0.036}[task]


@LONG
@pytest.mark.thorough
def test_mgps_samples_the_posterior(task: str) -> None:
    assert judged(lavps.MGPS(PRIOR), task).sw2 <= {"sr4": 0.060, "inpainting": 0.040}[task]


@TASKS
def test_dps_comes_near_the_posterior(task: str) -> None:
    assert judged(lavps.DPS(PRIOR, num_steps=100), task).sw2 <= {"sr4": 0.105, "inpainting": 0.057}[task]


def test_a_large_step_size_takes_dps_away_from_the_posterior() -> None:  # but lowers its LPIPS on faces
    assert judged(lavps.DPS(PRIOR, num_steps=100, step_size=3.0), "inpainting").sw2 >= 0.1


@LONG
def test_ddim_on_the_posteriors_own_denoiser_is_exact(task: str) -> None:
    problem, exact = setting(task, 8)
    drawn = [
        lavps.DDIM(posterior, grid_power=2.0)
        .sample(lavps.Unconditional((1, 8, 8)), SAMPLES, items=[i])
        .samples
        for i, posterior in enumerate(exact)
    ]
    result = score(torch.cat(drawn), problem, exact)
    assert result.sw2 <= floor(task).sw2 + 0.006
    assert result.std_ratio == pytest.approx(1, abs=0.1)


@LONG
@pytest.mark.thorough
def test_the_whitened_gradient_beats_adam_at_equal_cost(task: str) -> None:
    assert judged(MGDM_W1, task).sw2 < judged(MGDM_1, task).sw2


@LONG
@pytest.mark.thorough
def test_the_safeguard_makes_a_harmful_prediction_harmless(task: str) -> None:
    sampler = lavps.MGDM(PRIOR, guidance=Amortized(random_start, steps=3))
    assert judged(sampler, task).sw2 == pytest.approx(judged(MGDM_3, task).sw2, abs=0.01)
    unguarded = lavps.MGDM(PRIOR, guidance=Amortized(random_start, steps=3, safeguard_every=None))
    assert judged(unguarded, task).sw2 > judged(MGDM_3, task).sw2 + 0.05, "else the test would prove nothing"


@pytest.mark.slow
@TASKS
def test_a_solved_start_needs_no_gradient(task: str) -> None:
    solved = Amortized(OptimizedStart(PRIOR, 60), steps=0, safeguard_every=None)
    sampler = lavps.MGDM(PRIOR, guidance=solved)
    assert judged(sampler, task, 2).sw2 <= judged(MGDM_20, task, 2).sw2 + 0.01


@TASKS
@pytest.mark.parametrize(
    "guidance",
    [Linearized(), switch(Linearized(data_variance=0.01), Linearized(), at=0.5)],
    ids=["undamped", "damped early"],
)
@pytest.mark.thorough
def test_linearized_guidance_needs_neither_gradients_nor_training(task: str, guidance: Guidance) -> None:
    sampler = lavps.MGDM(PRIOR, guidance=guidance)
    # At most 0.01 more than MGDM's with twenty gradient steps.
    assert judged(sampler, task).sw2 <= {"sr4": 0.055, "inpainting": 0.038}[task]
    problem, _ = setting(task, 8)
    assert sampler.sample(problem).trace.backwards == 0


@LONG
@pytest.mark.thorough
def test_a_gaussian_posterior_is_met_in_mean_and_spread(task: str) -> None:
    mixture = oracle_mixture(components=1)
    prior = lavps.GaussianPrior(mixture.means.reshape(1, 8, 8), mixture.covariances[0])
    _, problem = oracle_problem(prior, task, 3)
    exact = lavps.exact_posterior(prior, problem)
    for sampler in (lavps.MMPS(prior, grid_power=2.0), lavps.MGPS(prior)):
        result = score(sampler.sample(problem, 256).samples, problem, exact)
        assert result.mean_error < 0.03
        assert result.std_ratio == pytest.approx(1, abs=0.12)


@pytest.mark.thorough
def test_rescheduling_leaves_the_posterior_where_it_is() -> None:
    problem, exact = setting("sr4", 4)
    for schedule in (lavps.Flow(), lavps.Cosine()):
        sampler = lavps.MGDM(lavps.Rescheduled(PRIOR, schedule), guidance=Gradient(2, WHITENED))
        result = score(sampler.sample(problem, SAMPLES).samples, problem, exact)
        assert result.sw2 <= 0.060


@pytest.mark.slow
@TASKS
def test_mmps_is_nearly_calibrated(task: str) -> None:
    """It covers a little less than it promises: .84 at .90 here, .88 over the benchmark's observations."""
    truth, problem = oracle_problem(PRIOR, task, 200, seed=7)

    def features(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[:, 0, 1, 1], x[:, 0, 6, 6], x.flatten(1).mean(1)], dim=1)

    report = calibrate(lavps.MMPS(PRIOR, grid_power=2.0), truth, problem, features, num_samples=31)
    assert (report.deviation <= 1.3 * report.band).all()
    assert report.coverage.mean(1).tolist() == pytest.approx(report.levels, abs=0.08)


@pytest.mark.slow
@TASKS
def test_the_full_claims_over_sixteen_observations(task: str) -> None:
    assert judged(MGDM_3, task, 16).sw2 <= {"sr4": 0.060, "inpainting": 0.040}[task]
    assert judged(lavps.MMPS(PRIOR), task, 16).sw2 <= {"sr4": 0.050, "inpainting": 0.036}[task]
    optimized = Amortized(OptimizedStart(PRIOR, 200), steps=0, safeguard_every=None)
    solved = lavps.MGDM(PRIOR, guidance=optimized)
    assert judged(solved, task, 16).sw2 <= judged(MGDM_20, task, 16).sw2 + 0.01


@TASKS
def test_wiener_pir_samples_the_posterior(task: str) -> None:
    covariance = Stationary.fit(PRIOR.sample(512, seed=9))
    result = judged(lavps.WienerPIR(PRIOR, num_steps=25, covariance=covariance), task)
    diffpir = judged(lavps.DiffPIR(PRIOR, num_steps=25), task)
    assert result.sw2 <= diffpir.sw2 + 0.01
    assert 0.85 <= result.std_ratio <= 1.15
    assert 0.7 <= result.chi_square <= 1.3


def test_full_draws_with_fresh_noise_are_exact_for_a_stationary_gaussian() -> None:
    """Whatever the number of steps: the marginals of every step are exact."""
    spectrum = Stationary(0.3, 2.0)
    like = torch.zeros(64, 1, 8, 8, dtype=torch.float64)
    basis = torch.eye(64, dtype=torch.float64).reshape(64, 1, 8, 8)
    covariance = spectrum.product(torch.tensor(torch.inf), like)(basis).flatten(1)
    prior = lavps.GaussianPrior(torch.zeros(1, 8, 8), 0.5 * (covariance + covariance.T))
    _, problem = oracle_problem(prior, "inpainting", 4)
    exact = lavps.exact_posterior(prior, problem)
    sampler = lavps.WienerPIR(
        prior, num_steps=4, covariance=spectrum, draw="full", zeta=1.0, relaxation=1.0, solver_steps=100
    )
    result = score(sampler.sample(problem, 512).samples, problem, exact)
    best = score(exact_samples(problem, exact, 512), problem, exact)
    assert result.sw2 <= 1.15 * best.sw2
    assert result.std_ratio == pytest.approx(1, abs=0.02)
    assert result.chi_square == pytest.approx(best.chi_square, abs=0.05)


# Bounds a little above what was measured: the bias of each method is its own.
PIGDM = {"sr4": 0.055, "inpainting": 0.035}
DDNM = {"sr4": 0.055, "inpainting": 0.040}
DAPS = {"sr4": 0.088, "inpainting": 0.046}
SHORT_ODE: dict[str, Any] = {"num_steps": 50, "denoising_steps": 2, "covariance": Isotropic()}


@TASKS
def test_pigdm_comes_near_the_posterior(task: str) -> None:
    result = judged(lavps.PiGDM(PRIOR), task)
    assert result.sw2 <= PIGDM[task]
    assert 0.65 <= result.std_ratio <= 1.0


@TASKS
@pytest.mark.thorough
def test_ddnm_comes_near_the_posterior_and_varies_too_little(task: str) -> None:
    result = judged(lavps.DDNM(PRIOR), task)
    assert result.sw2 <= DDNM[task]
    assert 0.65 <= result.std_ratio <= 0.9


@TASKS
def test_daps_comes_near_the_posterior_and_varies_too_much(task: str) -> None:
    assert judged(lavps.DAPS(PRIOR), task).sw2 <= DAPS[task]
    result = judged(lavps.DAPS(PRIOR, **SHORT_ODE), task)
    assert result.sw2 <= DAPS[task]
    assert 1.1 <= result.std_ratio <= 1.35
    assert 0.85 <= result.chi_square <= 1.15


@LONG
def test_the_moments_of_the_baselines_are_near_those_of_a_gaussian_posterior(task: str) -> None:
    mixture = oracle_mixture(components=1)
    prior = lavps.GaussianPrior(mixture.means.reshape(1, 8, 8), mixture.covariances[0])
    _, problem = oracle_problem(prior, task, 3)
    exact = lavps.exact_posterior(prior, problem)
    for sampler, low, high in (
        (lavps.PiGDM(prior), 0.65, 1.0),
        (lavps.DDNM(prior), 0.65, 0.9),
        (lavps.DAPS(prior, **SHORT_ODE), 1.1, 1.3),
    ):
        result = score(sampler.sample(problem, 256).samples, problem, exact)
        assert result.mean_error < 0.045, sampler.name
        assert low <= result.std_ratio <= high, sampler.name


SHAPE = (1, 16, 16)
LINEAR = [name for name in NAMES if named_family(name, SHAPE).draw([0], SHAPE).linear]


def misfits(name: str, num_steps: int, levels: tuple[float, ...]) -> list[float]:
    prior = oracle_mixture(16)
    truth, covariance = prior.sample(64, seed=3), Stationary.fit(prior.sample(256, seed=9))
    operator = named_family(name, SHAPE).draw(range(64), SHAPE)
    sampler = lavps.WienerPIR(prior, num_steps=num_steps, covariance=covariance)
    problems = [
        lavps.InverseProblem.simulate(truth, operator, lavps.GaussianNoise(std), seed=2) for std in levels
    ]
    return [float(problem.chi_square(sampler.sample(problem).samples[:, 0]).mean()) for problem in problems]


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.thorough
def test_the_misfit_is_that_of_the_noise_at_low_and_high_noise(name: str) -> None:
    assert all(0.75 <= misfit <= 1.3 for misfit in misfits(name, 8, (0.001, 0.05)))


@pytest.mark.parametrize("evaluations", [4, 8])
@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.thorough
def test_the_schedules_for_any_task_are_stable_with_another_prior(name: str, evaluations: int) -> None:
    prior = oracle_mixture(16)
    truth, operator = prior.sample(32, seed=3), named_family(name, SHAPE).draw(range(32), SHAPE)
    sampler = lavps.TunedPIR.universal(prior, evaluations)
    for std in (0.001, 0.05):
        problem = lavps.InverseProblem.simulate(truth, operator, lavps.GaussianNoise(std), seed=2)
        misfit = float(problem.chi_square(sampler.sample(problem).samples[:, 0]).mean())
        assert 0.75 <= misfit <= 1.6, (std, misfit)


@pytest.mark.slow
@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("num_steps", [8, 25, 100])
def test_the_misfit_is_that_of_the_noise_at_every_noise_level(name: str, num_steps: int) -> None:
    levels = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
    assert all(0.75 <= misfit <= 1.3 for misfit in misfits(name, num_steps, levels))


@pytest.mark.parametrize("noise", [0.05, 0.2, 1.0])
def test_ddim_is_exact_for_denoising(noise: float) -> None:
    """The chain starts at the noisy image; a few steps are enough where the noise is low."""
    problem = lavps.InverseProblem.simulate(PRIOR.sample(8, seed=0), Identity(), noise)
    exact = lavps.exact_posterior(PRIOR, problem)

    def scored(num_steps: int) -> OracleScore:
        drawn = lavps.DDIM(PRIOR, num_steps=num_steps).sample(problem, SAMPLES).samples
        return score(drawn, problem, exact)

    best = score(exact_samples(problem, exact, SAMPLES), problem, exact)
    many, few = scored(200), scored(8)
    assert many.sw2 <= best.sw2 + 0.005
    assert many.std_ratio == pytest.approx(best.std_ratio, abs=0.03)
    assert few.sw2 <= best.sw2 + 0.1 * noise
    guided = lavps.WienerPIR(PRIOR, num_steps=25).sample(problem, SAMPLES).samples
    assert many.sw2 < score(guided, problem, exact).sw2, "else no chain of its own is needed"
