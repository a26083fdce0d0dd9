"""FusedPIR against exact posteriors, and where it is WienerPIR."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lavps
from lavps.data_step import Stationary, data_step
from lavps.data_step.fusion import Fusion
from lavps.data_step.levels import FLAT, equivalent_level
from lavps.evaluation import OracleScore, exact_samples, oracle_mixture, score
from lavps.operators import AveragePool, HDRClip, Identity, Mask
from lavps.operators.registry import family_from
from lavps.samplers import Sampler

PRIOR = oracle_mixture()
COVARIANCE = Stationary.fit(PRIOR.sample(512, seed=9))
BLUR = family_from("gaussian-blur", (1, 8, 8)).draw([0], (1, 8, 8))
SPECTRUM = Stationary(0.02, 3.0)
SAMPLES = 128


def stationary(spectrum: Stationary) -> lavps.GaussianPrior:
    """The Gaussian prior of a power spectrum."""
    basis = torch.eye(64, dtype=torch.float64).reshape(64, 1, 8, 8)
    matrix = spectrum.product(FLAT, basis)(basis).flatten(1)
    return lavps.GaussianPrior(torch.zeros(1, 8, 8), 0.5 * (matrix + matrix.T))


def simulated(
    operator: lavps.operators.Operator, noise: float | Tensor, prior: lavps.GaussianMixturePrior = PRIOR
) -> lavps.InverseProblem:
    return lavps.InverseProblem.simulate(prior.sample(8, seed=0), operator, lavps.GaussianNoise(noise))


@pytest.mark.parametrize(("operator", "noise"), [(Identity(), 0.2), (BLUR, 0.05), (BLUR, 0.2)])
def test_it_is_nearer_to_the_posterior_than_wiener_pir(
    operator: lavps.operators.Operator, noise: float
) -> None:
    problem = simulated(operator, noise)
    exact = lavps.exact_posterior(PRIOR, problem)

    def scored(sampler: Sampler) -> OracleScore:
        return score(sampler.sample(problem, SAMPLES).samples, problem, exact)

    best = score(exact_samples(problem, exact, SAMPLES), problem, exact)
    for steps in (8, 25):
        fused = scored(lavps.FusedPIR(PRIOR, num_steps=steps, covariance=COVARIANCE))
        plain = scored(lavps.WienerPIR(PRIOR, num_steps=steps, covariance=COVARIANCE))
        assert fused.sw2 < plain.sw2
        assert fused.mean_error < 0.75 * plain.mean_error
        assert 0.75 <= fused.std_ratio <= 1.0
    full = scored(lavps.FusedPIR(PRIOR, num_steps=25, covariance=COVARIANCE, draw="full"))
    assert full.sw2 <= 1.3 * best.sw2
    assert full.std_ratio == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("operator", [Identity(), BLUR, AveragePool(2)])
@pytest.mark.parametrize("noise_level", [0.1, 1.0])
def test_the_denoised_fusion_is_the_posterior_mean_under_the_prior_of_the_covariance(
    operator: lavps.operators.Operator, noise_level: float
) -> None:
    prior = stationary(SPECTRUM)
    x = prior.sample(8, seed=0).double()
    problem = lavps.InverseProblem.simulate(x, operator, lavps.GaussianNoise(0.05))
    s = torch.full((8,), noise_level, dtype=torch.float64)
    u = x + noise_level * torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
    level = equivalent_level(problem, x, SPECTRUM, torch.randn_like(x), 200)
    fusion = Fusion(problem, u, s, level, SPECTRUM, 200)
    fused, t = fusion.fused(), prior.schedule.time(fusion.fused_level)
    x_0 = prior.denoise(prior.schedule.alpha(t).reshape(-1, 1, 1, 1) * fused, t)
    mean = SPECTRUM.product(s, u)(u / noise_level**2)  # of x given u
    exact = data_step(problem, mean, SPECTRUM, s, solver_steps=200, tolerance=1e-8)
    torch.testing.assert_close(x_0, exact, atol=1e-4, rtol=0)
    torch.testing.assert_close(fusion.data_step(x_0, fused, None, None), exact, atol=1e-3, rtol=0)


@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_the_level_of_white_noise_is_its_standard_deviation(noise: float) -> None:
    problem = simulated(Identity(), noise)
    probe = torch.randn_like(problem.like.new_zeros(8, 1, 8, 8))
    level = equivalent_level(problem, probe, COVARIANCE, probe, 100)
    torch.testing.assert_close(level, torch.full_like(level, noise), rtol=1e-3, atol=0)
    blurred = equivalent_level(simulated(BLUR, noise), probe, COVARIANCE, probe, 100)
    assert bool((blurred > level).all())


HOLE = Mask((torch.arange(64).reshape(1, 8, 8) % 5 > 0).float())


@pytest.mark.parametrize(
    ("operator", "noise"), [(HOLE, 0.05), (AveragePool(4), 0.05), (HDRClip(), 0.05), (Identity(), 1.0)]
)
def test_it_is_wiener_pir_where_the_measurement_leaves_much_open(
    operator: lavps.operators.Operator, noise: float
) -> None:
    problem = simulated(operator, noise)
    fused, plain = (kind(PRIOR, num_steps=4).sample(problem, 2) for kind in (lavps.FusedPIR, lavps.WienerPIR))
    assert torch.equal(fused.samples, plain.samples)


def test_every_row_of_a_batch_decides_for_itself() -> None:
    noise = torch.tensor([0.05, 1.0, 0.2, 2.0, 0.05, 1.0, 0.2, 2.0]).reshape(8, 1, 1, 1)
    problem = simulated(BLUR, noise)
    sampler = lavps.FusedPIR(PRIOR, num_steps=6)
    batch = sampler.sample(problem, 2, seed=3)
    plain = lavps.WienerPIR(PRIOR, num_steps=6).sample(problem, 2, seed=3)
    for row in range(8):
        alone = sampler.sample(problem[row], 2, seed=3, items=[row])
        torch.testing.assert_close(alone.samples[0], batch.samples[row], atol=1e-4, rtol=1e-4)
        assert torch.allclose(plain.samples[row], batch.samples[row], atol=1e-4) == bool(noise[row] >= 1.0)


def test_its_fraction_of_fresh_noise_is_that_of_fused_rows_alone() -> None:
    problem = simulated(BLUR, torch.tensor([0.05, 1.0] * 4).reshape(8, 1, 1, 1))
    less, more = (
        lavps.FusedPIR(PRIOR, num_steps=4, fused_zeta=z).sample(problem).samples for z in (0.0, 0.9)
    )
    assert [torch.equal(less[row], more[row]) for row in range(8)] == [False, True] * 4
    with pytest.raises(ValueError, match="fused_zeta"):
        lavps.FusedPIR(PRIOR, fused_zeta=1.5)


def test_the_level_of_y_is_computed_once_per_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*args: object) -> Tensor:
        calls.append(args)
        return equivalent_level(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("lavps.samplers.fused.equivalent_level", counted)
    sampler, problem = lavps.FusedPIR(PRIOR, num_steps=5), simulated(BLUR, 0.05)
    first = sampler.sample(problem, seed=0).samples
    assert len(calls) == 1
    again = [sampler.sample(problem, seed=seed).samples for seed in (1, 0)]  # of a problem with a cache
    assert torch.equal(again[0], sampler.sample(simulated(BLUR, 0.05), seed=1).samples)
    assert torch.equal(again[1], first)


@pytest.mark.parametrize("noise", [1e-4, 1e-3])
@pytest.mark.parametrize("operator", [Identity(), BLUR, AveragePool(2)])
def test_it_keeps_the_measurement_at_low_noise(operator: lavps.operators.Operator, noise: float) -> None:
    x = PRIOR.sample(8, seed=0)
    problem = lavps.InverseProblem.simulate(x, operator, noise)
    for steps in (1, 4, 25):
        found = lavps.FusedPIR(PRIOR, num_steps=steps).sample(problem)
        assert float((operator(found.mean) - problem.y).square().mean().sqrt()) <= max(1.3 * noise, 2e-4)
