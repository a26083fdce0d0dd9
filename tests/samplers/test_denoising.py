"""Denoising: DDIM starts at the noisy image. Exactness is in tests/oracle."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lavps
from lavps.noise import GaussianNoise, NoiseModel, PoissonNoise
from lavps.operators import Identity
from support.problems import network_prior

STDS = torch.tensor([0.02, 0.1, 0.5]).reshape(3, 1, 1, 1)


def noisy(noise: NoiseModel) -> lavps.InverseProblem:
    x = torch.linspace(-0.9, 0.9, 64).reshape(1, 1, 8, 8).repeat(3, 1, 1, 1)
    return lavps.InverseProblem.simulate(x, Identity(), noise)


def test_each_row_starts_at_its_own_noise() -> None:
    problem, sampler = noisy(GaussianNoise(STDS)), lavps.DDIM(network_prior(), num_steps=5)
    together = sampler.sample(problem, 2, seed=4).samples
    assert together is not None
    for item, std in enumerate(STDS.flatten().tolist()):
        alone = lavps.InverseProblem(problem.y[item : item + 1], Identity(), GaussianNoise(std))
        single = sampler.sample(alone, 2, seed=4, items=[item]).samples
        torch.testing.assert_close(together[item : item + 1], single)


def test_the_first_evaluation_is_of_the_noisy_image() -> None:
    class Seen:
        def __init__(self) -> None:
            self.prior, self.calls = network_prior(), list[tuple[Tensor, Tensor]]()
            self.schedule = self.prior.schedule

        def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
            self.calls.append((x_t, t))
            return self.prior.denoise(x_t, t)

    prior, problem = Seen(), noisy(GaussianNoise(0.2))
    lavps.DDIM(prior, num_steps=4).sample(problem)
    assert len(prior.calls) == 4
    x, t = prior.calls[0]
    torch.testing.assert_close(x / prior.schedule.alpha(t).reshape(-1, 1, 1, 1).float(), problem.y)
    torch.testing.assert_close(prior.schedule.noise_level(t), torch.full((3,), 0.2).double())
    levels = [float(prior.schedule.noise_level(t).max()) for _, t in prior.calls]
    assert levels == sorted(levels, reverse=True)


def test_an_image_without_noise_is_kept() -> None:
    problem = noisy(lavps.Noiseless())
    found = lavps.DDIM(network_prior(), num_steps=4).sample(problem).mean
    assert torch.equal(found, problem.y)


def test_a_denoiser_that_knows_the_measurement_starts_from_noise() -> None:
    class Known:
        schedule = lavps.VPLinear()
        first: Tensor | None = None

        def denoise(self, x_t: Tensor, t: Tensor, problem: lavps.InverseProblem) -> Tensor:
            self.first = x_t if self.first is None else self.first
            return problem.y

    denoiser = Known()
    lavps.Supervised(denoiser, num_steps=3).sample(noisy(GaussianNoise(0.1)))
    assert denoiser.first is not None
    assert 0.8 < float(denoiser.first.std()) < 1.2


@pytest.mark.parametrize(
    ("noise", "sampler"),
    [
        (GaussianNoise(0.1), "DDIM"),
        (GaussianNoise(STDS), "DDIM"),
        (GaussianNoise(torch.linspace(0.1, 0.2, 64).reshape(1, 1, 8, 8)), "WienerPIR"),
        (PoissonNoise(30.0), "WienerPIR"),
    ],
)
def test_only_white_noise_is_a_state_of_the_diffusion(noise: NoiseModel, sampler: str) -> None:
    problem = noisy(noise)
    assert lavps.restore(problem.y, Identity(), network_prior(), noise).sampler == sampler
