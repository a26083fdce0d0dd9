"""Against azula itself: its denoisers as priors, our priors in its samplers, on the same noise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("azula")

import azula.denoise
import azula.noise
import azula.sample
from azula.linalg.covariance import DiagonalCovariance

import lavps
from lavps.priors import AzulaDenoiser, AzulaPrior

SHAPE = (2, 3, 4)
ROWS = 4
SCHEDULES = [
    azula.noise.VPSchedule(),
    azula.noise.CosineSchedule(),
    azula.noise.VESchedule(),
    azula.noise.RectifiedSchedule(),
]
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


MEAN, VARIANCE = 0.3 * numbers(*SHAPE), 0.1 + 0.2 * numbers(*SHAPE, seed=1).square()


def theirs(schedule: azula.noise.Schedule) -> azula.denoise.GaussianDenoiser:
    return azula.denoise.GaussianDenoiser(MEAN, DiagonalCovariance(VARIANCE), schedule)


def ours(schedule: lavps.schedule.Schedule) -> lavps.GaussianPrior:
    return lavps.GaussianPrior(MEAN, torch.diag(VARIANCE.flatten()), schedule)


class Backbone(nn.Module):
    """A small network in azula's form: b(x, log noise level)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 2, 3, padding=1, dtype=torch.float64)
        with torch.no_grad():
            self.layer.weight.copy_(0.2 * numbers(2, 2, 3, 3, seed=4))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.tanh(self.layer(x) + t.reshape(-1, 1, 1, 1))


@every_schedule
def test_a_gaussian_denoiser_is_our_gaussian_prior(schedule: azula.noise.Schedule) -> None:
    for own in (lavps.VPLinear(), lavps.Flow()):
        prior, exact, x = AzulaPrior(theirs(schedule), own), ours(own), numbers(ROWS, *SHAPE, seed=2)
        for t in torch.tensor([0.1, 0.4, 0.8], dtype=torch.float64):
            torch.testing.assert_close(prior.denoise(x, t), exact.denoise(x, t), rtol=1e-5, atol=1e-5)


@every_schedule
def test_a_network_gives_what_it_gives_in_azula(schedule: azula.noise.Schedule) -> None:
    denoiser, x = azula.denoise.KarrasDenoiser(Backbone(), schedule), numbers(ROWS, *SHAPE, seed=2)
    prior = AzulaPrior(denoiser, lavps.VE(sigma_max=200.0))
    tau = torch.tensor([0.3, 0.4, 0.5, 0.6], dtype=torch.float64)
    alpha, sigma = schedule(tau)
    level = sigma / alpha
    noisy = (1 + level.square()).sqrt() / (alpha.square() + sigma.square()).sqrt()
    # The same image at the same noise level, in the other's scale.
    estimate = prior.denoise(noisy.reshape(-1, 1, 1, 1) * x, prior.schedule.time(level))
    torch.testing.assert_close(estimate, denoiser(x, tau).mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("own", [lavps.VPLinear(), lavps.Cosine(), lavps.VE()], ids=repr)
def test_a_prior_is_azulas_denoiser_and_back(own: lavps.schedule.Schedule) -> None:
    prior, x = ours(own), numbers(ROWS, *SHAPE, seed=2)
    denoiser = AzulaDenoiser(prior)
    back = AzulaPrior(denoiser, own)
    for t in torch.tensor([0.05, 0.5, 0.9], dtype=torch.float64):
        torch.testing.assert_close(denoiser(x, t).mean, prior.denoise(x, t))
        torch.testing.assert_close(back.denoise(x, t), prior.denoise(x, t), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["DDPMSampler", "DDIMSampler", "HeunSampler", "zABSampler"])
def test_azulas_samplers_run_on_our_priors_as_on_their_own_denoisers(kind: str) -> None:
    own = lavps.Cosine()

    class Schedule(azula.noise.Schedule):
        """Ours, for their Gaussian denoiser."""

        def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
            return own.alpha(t).to(t), own.sigma(t).to(t)

    def sampled(denoiser: nn.Module) -> Tensor:
        sampler = getattr(azula.sample, kind)(denoiser, start=0.99, stop=0.01, steps=12, silent=True)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return sampler(numbers(ROWS, *SHAPE, seed=5))

    expected = sampled(theirs(Schedule()))
    assert float(expected.std()) > 0.1
    torch.testing.assert_close(sampled(AzulaDenoiser(ours(own))), expected, rtol=1e-5, atol=1e-5)


def test_our_samplers_run_on_azulas_denoisers_as_on_our_priors() -> None:
    problem = lavps.InverseProblem(
        numbers(2, *SHAPE, seed=6), lavps.operators.Identity(), lavps.GaussianNoise(0.5)
    )
    found, expected = (
        lavps.MGDM(prior, num_steps=10).sample(problem, 2).samples
        for prior in (AzulaPrior(theirs(azula.noise.VPSchedule(sigma_min=1e-4))), ours(lavps.VPLinear()))
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
