"""Denoisers of other libraries as priors: azula's against azula, Gaussian denoisers against exact ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lavps
from lavps.priors.foreign.adapters import AzulaPrior, gaussian_denoiser


class Backbone(nn.Module):
    """A network that reacts to its image and its time."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.random.manual_seed(0)
            self.layer = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor, shift: float = 0.0) -> Tensor:
        return torch.tanh(self.layer(x) + torch.sin(t).reshape(-1, 1, 1, 1) + shift)


def images() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["SimpleDenoiser", "KarrasDenoiser"])
@pytest.mark.parametrize("name", ["VPSchedule", "VESchedule", "CosineSchedule", "RectifiedSchedule"])
@pytest.mark.parametrize("ours", [lavps.VPLinear(), lavps.Flow(), lavps.VE()], ids=repr)
def test_a_denoiser_of_azula_gives_azulas_mean(kind: str, name: str, ours: lavps.schedule.Schedule) -> None:
    denoise, noise = pytest.importorskip("azula.denoise"), pytest.importorskip("azula.noise")
    theirs = getattr(denoise, kind)(Backbone(), getattr(noise, name)())
    prior = AzulaPrior(theirs, ours, {"shift": 0.3})
    for time in (0.2, 0.6, 0.9):
        t = torch.tensor(time, dtype=torch.float64)
        alpha, sigma = theirs.schedule(t)
        level = sigma / alpha
        same = ours.time(level)
        if not 0 < float(same) < 1:
            continue  # a level that our schedule does not reach
        scale = torch.hypot(ours.alpha(same), ours.sigma(same)) / torch.hypot(alpha, sigma)
        with torch.no_grad():
            expected = theirs(images(), t, shift=0.3).mean.float()
            found = prior.denoise(scale.float() * images(), same)
            rows = prior.denoise(scale.float() * images(), same.expand(2))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(rows, found, rtol=1e-6, atol=1e-6)


def test_something_else_is_no_denoiser_of_azula() -> None:
    with pytest.raises(TypeError, match="no schedule"):
        AzulaPrior(Backbone())


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
def test_a_gaussian_denoiser_is_the_exact_prior_it_came_from(low: float, high: float) -> None:
    half, middle = (high - low) / 2, (high + low) / 2
    mean, std = 0.2, 0.7  # of independent pixels in [-1, 1]

    def exact(u: Tensor, sigma: Tensor) -> Tensor:
        noise, signal = sigma.double().reshape(-1, 1, 1, 1) ** 2, (half * std) ** 2
        centre = middle + half * mean
        return centre + signal / (signal + noise) * (u - centre)

    prior = gaussian_denoiser(exact, sigma_max=50 * half, low=low, high=high)
    truth = lavps.GaussianPrior(torch.full((1, 2, 2), mean), std**2 * torch.eye(4), prior.schedule)
    x = images()[:, :1, :2, :2].double()
    for t in (0.1, 0.5, 0.9):
        time = torch.tensor(t, dtype=torch.float64)
        scaled = x * (1 + prior.schedule.sigma(time))
        torch.testing.assert_close(
            prior.denoise(scaled, time), truth.denoise(scaled, time), rtol=1e-5, atol=1e-5
        )
