"""The contract every prior and every adapter keeps: a denoiser, row by row, differentiable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from extend.a_prior import NightSky
from lavps.priors import (
    CountingPrior,
    EDMPrior,
    GaussianMixturePrior,
    GaussianPrior,
    LatentPrior,
    NetworkPrior,
    Prior,
    RescaledPrior,
    Rescheduled,
    from_deepinv,
)
from lavps.schedule import VE, Cosine, Flow, Schedule, VPLinear
from lavps.tiling import TiledPrior

SHAPE = (2, 3, 2)
ROWS = 5
DTYPES = [torch.float32, torch.float64]


class Convolution(nn.Module):
    """A small network with a condition and dropout, in double precision inside."""

    def __init__(self, channels: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(2, channels, 3, padding=1, dtype=torch.float64)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        scale = torch.tanh(c.double()).reshape(-1, 1, 1, 1)
        return self.drop(torch.tanh(self.layer(x.double()) * (1 + 0.5 * scale)))


def mixture(schedule: Schedule | None = None, components: int = 3) -> GaussianMixturePrior:
    random = torch.Generator().manual_seed(3)
    size = 12
    means = 0.5 * torch.randn(components, *SHAPE, generator=random, dtype=torch.float64)
    roots = torch.randn(components, size, size, generator=random, dtype=torch.float64)
    return GaussianMixturePrior([1.0, 2.0, 3.0][:components], means, roots @ roots.mT / size, schedule)


def gaussian() -> GaussianPrior:
    exact = mixture(components=1)
    return GaussianPrior(exact.means[0].reshape(SHAPE), exact.covariances[0], Flow())


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Prior]


CASES = [
    Case("mixture", mixture),
    Case("mixture in single precision", lambda: GaussianMixturePrior(
        [0.5, 0.5], torch.zeros(2, *SHAPE), torch.eye(12).repeat(2, 1, 1), Cosine(), torch.float32
    )),
    Case("gaussian", gaussian),
    Case("posterior", lambda: mixture(Cosine()).condition(torch.eye(12)[:4], torch.ones(4), 0.1)),
    Case("eps at an index", lambda: NetworkPrior(Convolution(), VPLinear(), "eps", "index")),
    Case("learned variance", lambda: NetworkPrior(Convolution(4), VPLinear(), "eps", "index")),
    Case("x0 at a time", lambda: NetworkPrior(Convolution(), Flow(), "x0", "time")),
    Case("velocity at a time", lambda: NetworkPrior(Convolution(), Flow(), "velocity", "time")),
    Case("v at a log SNR", lambda: NetworkPrior(Convolution(), Cosine(), "v", "log_snr")),
    Case("score at a noise level", lambda: NetworkPrior(Convolution(), VE(), "score", "noise_level")),
    Case("EDM", lambda: EDMPrior(Convolution())),
    Case("rescheduled", lambda: Rescheduled(mixture(VE()), Flow())),
    Case("rescheduled network", lambda: Rescheduled(EDMPrior(Convolution()), VPLinear())),
    Case("ranged", lambda: RescaledPrior(mixture(VE()), 0.0, 1.0)),
    Case("metered", lambda: CountingPrior(mixture())),
    Case("tiled", lambda: TiledPrior(NetworkPrior(Convolution(), Flow(), "x0", "time"), 2, batch=3)),
    Case("tiled, shifted", lambda: TiledPrior(EDMPrior(Convolution()), 2, batch=3, shifted=True)),
    Case("latent", lambda: LatentPrior(mixture(), torch.tanh, torch.atanh, 2, 1, scale=0.5)),
    Case("night sky, the example", NightSky),
    Case("from deepinv", lambda: from_deepinv(Convolution())),
]  # fmt: skip


def noisy(dtype: torch.dtype = torch.float64) -> Tensor:
    random = torch.Generator().manual_seed(7)
    return torch.randn(ROWS, *SHAPE, generator=random, dtype=torch.float64).to(dtype)


TIMES = torch.tensor([0.02, 0.3, 0.5, 0.9, 1.0], dtype=torch.float64)


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-6, "atol": 1e-6}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
class TestPriorContract:
    def test_it_is_a_prior(self, case: Case) -> None:
        prior = case.make()
        assert isinstance(prior, Prior)
        assert isinstance(prior.schedule, Schedule)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_shape_and_dtype_are_those_of_the_image(self, case: Case, dtype: torch.dtype) -> None:
        prior, x = case.make(), noisy(dtype)
        for t in (*TIMES, TIMES):
            estimate = prior.denoise(x, t)
            assert estimate.shape == x.shape
            assert estimate.dtype == dtype
            assert bool(estimate.isfinite().all())

    def test_precisions_agree(self, case: Case) -> None:
        prior, x = case.make(), noisy(torch.float32)
        for t in TIMES[:3]:
            single, double = prior.denoise(x, t).double(), prior.denoise(x.double(), t)
            torch.testing.assert_close(single, double, rtol=1e-4, atol=1e-4)

    def test_the_same_image_and_time_give_the_same_estimate(self, case: Case) -> None:
        prior, x = case.make(), noisy()
        assert torch.equal(prior.denoise(x, TIMES), prior.denoise(x, TIMES))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_row_of_a_batch_equals_a_single_image(self, case: Case, dtype: torch.dtype) -> None:
        prior, x = case.make(), noisy(dtype)
        batch = prior.denoise(x, TIMES[1])
        for row in range(ROWS):
            single = prior.denoise(x[row : row + 1], TIMES[1])
            torch.testing.assert_close(batch[row : row + 1], single, **tolerance(dtype))

    def test_a_time_per_sample_equals_scalar_times_row_by_row(self, case: Case) -> None:
        prior, x = case.make(), noisy()
        batch = prior.denoise(x, TIMES)
        assert not torch.allclose(batch, prior.denoise(x, TIMES[2]))
        for row in range(ROWS):
            single = prior.denoise(x[row : row + 1], TIMES[row])
            torch.testing.assert_close(batch[row : row + 1], single, **tolerance(torch.float64))

    def test_its_gradient_is_the_derivative(self, case: Case) -> None:
        prior, x, direction = case.make(), noisy().requires_grad_(), noisy().flip(0)
        step = 1e-2 if case.name.endswith("single precision") else 1e-5
        weights = torch.linspace(-1, 1, x.numel(), dtype=torch.float64).reshape(x.shape)
        (gradient,) = torch.autograd.grad((weights * prior.denoise(x, TIMES)).sum(), x)
        with torch.no_grad():
            ahead, behind = (prior.denoise(x + sign * step * direction, TIMES) for sign in (1, -1))
        slope = (weights * (ahead - behind)).sum() / (2 * step)
        torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-3, atol=1e-3)

    def test_a_row_sends_its_gradient_to_itself_only(self, case: Case) -> None:
        prior, x = case.make(), noisy().requires_grad_()
        (gradient,) = torch.autograd.grad(prior.denoise(x, TIMES[1])[2].square().sum(), x)
        assert bool((gradient[2] != 0).any())
        assert bool((gradient[[0, 1, 3, 4]] == 0).all())

    def test_without_grad_there_is_no_graph(self, case: Case) -> None:
        prior = case.make()
        with torch.no_grad():
            assert not prior.denoise(noisy().requires_grad_(), TIMES[1]).requires_grad
