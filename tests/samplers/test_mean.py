"""The posterior mean from one denoiser evaluation, against exact posteriors."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lavps
from lavps.cli import main
from lavps.data_step import Stationary
from lavps.evaluation import oracle_mixture
from lavps.operators import AveragePool, HDRClip, Identity, Mask
from lavps.operators.registry import family_from
from lavps.restoration.presets import chosen, front_for
from lavps.samplers import UNBOUND, PosteriorMean, Settings
from support.problems import StationaryGaussian
from support.restoring import picture, save, write_prior

SIDE = 8
SPECTRUM = Stationary(0.02, 3.0)


def covariance() -> Tensor:
    """The covariance matrix of the stationary process."""
    basis = torch.eye(SIDE * SIDE, dtype=torch.float64).reshape(-1, 1, SIDE, SIDE)
    product = SPECTRUM.product(torch.tensor(math.inf, dtype=torch.float64), basis)
    return product(basis).reshape(SIDE * SIDE, -1)


GAUSSIAN = lavps.GaussianPrior(torch.zeros(1, SIDE, SIDE), covariance())
BLUR = family_from("gaussian-blur", (1, SIDE, SIDE)).draw([0], (1, SIDE, SIDE))
HALF = Mask((torch.arange(SIDE * SIDE).reshape(1, SIDE, SIDE) % 3 > 0).float())


def measured(prior: lavps.Prior, operator: lavps.operators.Operator, noise: float) -> lavps.InverseProblem:
    x = prior.sample(5, seed=1)  # type: ignore[attr-defined]
    y = operator(x.double())
    return lavps.InverseProblem(y + noise * torch.randn(y.shape, dtype=y.dtype), operator, noise=noise)


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.5])
def test_denoising_is_exact_under_every_prior(noise: float) -> None:
    torch.manual_seed(0)
    prior = oracle_mixture()
    problem = measured(prior, Identity(), noise)
    exact = torch.stack([part.mean for part in lavps.exact_posterior(prior, problem)])
    found = PosteriorMean(prior).sample(problem)
    torch.testing.assert_close(
        found.mean.reshape(5, -1), exact.reshape(5, -1).to(found.mean), atol=2e-4, rtol=0
    )
    assert found.trace.forwards == 1


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_denoising_is_one_evaluation_for_large_images_too(noise: float) -> None:
    prior = StationaryGaussian(length=20.0)
    x = prior.sample(1, 3, 96, 160).float()
    problem = lavps.InverseProblem.simulate(x, Identity(), noise)
    t = prior.schedule.time(torch.tensor(noise, dtype=torch.float64))
    alone = prior.denoise(prior.schedule.alpha(t).float() * problem.y, t)
    torch.testing.assert_close(PosteriorMean(prior).sample(problem).mean, alone, atol=0.02 * noise, rtol=0)


@pytest.mark.parametrize(("operator", "noise"), [(AveragePool(2), 0.05), (BLUR, 0.05), (HALF, 0.02)])
def test_a_gaussian_prior_is_exact_under_linear_operators(
    operator: lavps.operators.Operator, noise: float
) -> None:
    torch.manual_seed(0)
    problem = measured(GAUSSIAN, operator, noise)
    exact = torch.stack([part.mean for part in lavps.exact_posterior(GAUSSIAN, problem)])
    found = PosteriorMean(GAUSSIAN, covariance=SPECTRUM, solver_steps=300).sample(problem).mean
    torch.testing.assert_close(found.reshape(5, -1), exact.reshape(5, -1).to(found), atol=2e-3, rtol=0)


@pytest.mark.parametrize("operator", [AveragePool(4), HDRClip(), Mask(HALF.mask * 0 + torch.eye(SIDE))])
def test_an_open_question_is_answered_with_what_explains_the_measurement(
    operator: lavps.operators.Operator,
) -> None:
    torch.manual_seed(0)
    prior = oracle_mixture()
    x = prior.sample(5, seed=1).double()
    problem = lavps.InverseProblem(operator(x), operator, noise=0.05)
    found = PosteriorMean(prior).sample(problem)
    assert bool(found.mean.isfinite().all())
    assert float(found.chi_square.max()) < 1.5
    assert float((found.mean - x).square().mean()) < 0.8 * float(x.square().mean())


@pytest.mark.parametrize("operator", [AveragePool(4), AveragePool(2), HDRClip()])
def test_a_batch_equals_single_runs(operator: lavps.operators.Operator) -> None:
    torch.manual_seed(0)
    problem = measured(oracle_mixture(), operator, 0.05)
    sampler = PosteriorMean(oracle_mixture())
    batch = sampler.sample(problem, seed=2).mean
    single = sampler.sample(problem[3], seed=2, items=[3]).mean
    torch.testing.assert_close(single[0], batch[3], atol=1e-5, rtol=1e-5)


def test_one_evaluation_chooses_the_mean_and_its_settings_are_stored() -> None:
    entry = chosen(front_for(None, False, "sr4"), evaluations=1)
    assert isinstance(entry.settings.template, PosteriorMean)
    assert entry.forwards == 1
    stored = Settings(PosteriorMean(UNBOUND, solver_steps=7))
    assert Settings.from_dict(stored.to_dict()) == stored


def test_the_command_writes_it_and_refuses_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prior = write_prior(tmp_path / "prior", front=False)
    file = save(tmp_path / "photo.png", picture(20, 12))
    words = ["restore", str(file), "--task", "denoise", "--noise", "0.1", "--prior", str(prior)]
    words += ["--device", "cpu", "--evaluations", "1", "-o", str(tmp_path / "out")]
    main(words)
    said = capsys.readouterr().out
    assert "; 1 denoiser evaluation per sample; about " in said
    assert "note: an estimate of the posterior mean" in said
    main(["replay", str(tmp_path / "out" / "photo.json")])
    assert "identical" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main([*words, "--samples", "2"])
    assert end.value.code == 1
    assert "one evaluation gives the posterior mean" in capsys.readouterr().err
