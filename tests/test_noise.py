"""Noise models against brute force: maps of standard deviations, cameras, and no noise at all."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Normal

import lavps
from lavps.data_step import Covariance, Isotropic, Stationary, data_step
from lavps.evaluation import exact_samples, score
from lavps.guidance import Gradient, Linearized
from lavps.operators import AveragePool, Identity, Mask
from lavps.samplers import Sampler
from support.problems import images, network_prior

SHAPE = (1, 8, 8)
LEVEL = torch.tensor(0.4, dtype=torch.float64)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def std_map(*shape: int, low: float = 0.05, high: float = 0.8) -> Tensor:
    """Standard deviations from low to high, one per entry."""
    share = torch.rand(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return low * (high / low) ** share


def dense(function: Callable[[Tensor], Tensor]) -> Tensor:
    """Matrix of a linear function of images."""
    size = math.prod(SHAPE)
    return function(torch.eye(size, dtype=torch.float64).reshape(size, *SHAPE)).flatten(1).T


SPECTRUM = Stationary(0.3, 2.0)


def gaussian_prior() -> lavps.GaussianMixturePrior:
    """The Gaussian prior whose covariance is SPECTRUM."""
    like = torch.zeros(64, *SHAPE, dtype=torch.float64)
    covariance = dense(SPECTRUM.product(torch.tensor(torch.inf), like))
    return lavps.GaussianPrior(torch.zeros(SHAPE), 0.5 * (covariance + covariance.T))


# -- maps of standard deviations ------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
def test_a_map_is_a_normal_law_per_pixel(rows: int) -> None:
    x, y, std = 0.5 * numbers(3, *SHAPE), numbers(3, *SHAPE, seed=1), std_map(rows, *SHAPE)
    operator = Mask(numbers(3, 1, 8, 8, seed=8) > 0, batched=True)
    problem = lavps.InverseProblem(y, operator, lavps.GaussianNoise(std))
    seen = operator.mask.expand(3, *SHAPE)
    laws = Normal(x, std.expand(3, *SHAPE)).log_prob(y)
    torch.testing.assert_close(problem.log_likelihood(x), (seen * laws).flatten(1).sum(1))
    squares = seen * ((x - y) / std).square()
    torch.testing.assert_close(problem.chi_square(x), squares.flatten(1).sum(1) / seen.flatten(1).sum(1))
    torch.testing.assert_close(problem.half_squared_misfit(x), 0.5 * squares.flatten(1).sum(1))
    probe = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(problem.log_likelihood(probe).sum(), probe)
    torch.testing.assert_close(problem.likelihood_score(x), gradient)
    torch.testing.assert_close(
        problem.gauss_newton_product(x)(y), problem.likelihood_score(x) - problem.likelihood_score(x + y)
    )
    largest = (seen / std.square()).flatten(1).amax(1)
    torch.testing.assert_close(problem.curvature(x, 2000), largest, rtol=1e-3, atol=0)
    for row in range(3):
        one = slice(row, row + 1)
        torch.testing.assert_close(problem[row].log_likelihood(x[one]), problem.log_likelihood(x)[one])
        torch.testing.assert_close(problem[row].curvature(x[one]), problem.curvature(x)[one])


def test_simulated_noise_follows_the_map() -> None:
    std = std_map(1, *SHAPE)
    x = images(1, SHAPE).expand(4000, *SHAPE)
    problem = lavps.InverseProblem.simulate(x, Identity(), lavps.GaussianNoise(std))
    torch.testing.assert_close((problem.y - x).std(0)[None].double(), std, rtol=0.06, atol=0)
    assert float(problem.chi_square(x).mean()) == pytest.approx(1.0, abs=0.01)
    assert problem.to(torch.float64).noise is problem.noise


@pytest.mark.parametrize("shape", [(3, 1, 4, 4), (2, 8, 8), (1, 1, 8, 8, 8), (2, 1, 8, 8)])
def test_a_map_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    noise = lavps.GaussianNoise(torch.ones(shape))
    with pytest.raises(ValueError, match=r"does not fit|2 items"):
        lavps.InverseProblem(torch.zeros(3, *SHAPE), Identity(), noise)
    with pytest.raises(ValueError, match=r"does not fit|2 items"):
        lavps.InverseProblem.simulate(torch.zeros(3, *SHAPE), Identity(), noise)


@pytest.mark.parametrize("covariance", [Isotropic(variance=0.3), SPECTRUM], ids=["isotropic", "stationary"])
def test_draws_of_the_data_step_have_the_moments_of_the_map(covariance: Covariance) -> None:
    rows = 4000
    std = std_map(1, 1, 4, 4)
    x = 0.5 * numbers(1, *SHAPE)
    problem = lavps.InverseProblem.simulate(x, AveragePool(2), lavps.GaussianNoise(std)).repeat(rows)
    x_0 = torch.full((rows, *SHAPE), 0.2, dtype=torch.float64)
    options = {"solver_steps": 200, "tolerance": 1e-10}

    a, weight = problem.operator.matrix(SHAPE), 1 / std.flatten().square()
    prior = dense(covariance.product(LEVEL, x_0[:64]))
    exact = torch.linalg.inv(torch.linalg.inv(prior) + a.T @ (weight[:, None] * a))
    offset = problem.y[0].flatten() - a @ x_0[0].flatten()
    mean = x_0[0].flatten() + exact @ a.T @ (weight * offset)

    mode = data_step(problem[0], x_0[:1], covariance, LEVEL, **options)
    torch.testing.assert_close(mode.flatten(), mean, atol=1e-7, rtol=0)
    draws = data_step(
        problem,
        x_0,
        covariance,
        LEVEL,
        image_noise=numbers(rows, *SHAPE, seed=5),
        measurement_noise=numbers(*problem.y.shape, seed=6),
        **options,
    ).flatten(1)
    scale = float(exact.diagonal().max())
    torch.testing.assert_close(draws.mean(0), mean, atol=5 * (scale / rows) ** 0.5, rtol=0)
    torch.testing.assert_close(draws.T.cov(), exact, atol=6 * scale / rows**0.5, rtol=0)


def test_a_sampler_is_exact_under_a_map() -> None:
    prior = gaussian_prior()
    std = std_map(1, *SHAPE, low=0.03, high=1.0)
    truth = prior.sample(4, seed=1)
    problem = lavps.InverseProblem.simulate(truth, Identity(), lavps.GaussianNoise(std), seed=2)
    exact = lavps.exact_posterior(prior, problem)
    sampler = lavps.WienerPIR(
        prior, num_steps=4, covariance=SPECTRUM, draw="full", zeta=1.0, solver_steps=100
    )
    result = score(sampler.sample(problem, 512).samples, problem, exact)
    best = score(exact_samples(problem, exact, 512), problem, exact)
    assert result.sw2 <= 1.15 * best.sw2
    assert result.std_ratio == pytest.approx(1, abs=0.02)
    assert result.chi_square == pytest.approx(best.chi_square, abs=0.05)
    # A map that is ignored would be seen: one number for all pixels has another posterior.
    uniform = lavps.exact_posterior(
        prior, lavps.InverseProblem(problem.y, Identity(), lavps.GaussianNoise(float(std.mean())))
    )
    assert score(exact_samples(problem, uniform, 512), problem, exact).sw2 > 2 * best.sw2


# -- cameras --------------------------------------------------------------------------------------------

CAMERAS = [(0.05, 0.1), (0.2, 0.2), (1e-3, 0.05), (0.02, 0.3)]


@pytest.mark.parametrize(("gain", "std"), CAMERAS)
def test_the_noise_of_a_camera_has_its_mean_and_variance(gain: float, std: float) -> None:
    x = torch.linspace(-1, 1, 5, dtype=torch.float64).reshape(1, 1, 5, 1).expand(1, 1, 5, 40_000)
    problem = lavps.InverseProblem.simulate(x, Identity(), lavps.PoissonGaussianNoise(gain, std))
    variance = gain * (x[0, 0, :, 0] + 1) + std**2
    torch.testing.assert_close(problem.y.var(-1)[0, 0], variance, rtol=0.05, atol=0)
    error = (problem.y - x).mean(-1)[0, 0]
    assert bool((error.abs() < 5 * (variance / 40_000).sqrt()).all())
    assert float(problem.chi_square(x)) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(("gain", "std"), CAMERAS)
def test_the_score_of_a_camera_is_the_gradient_and_its_curvature_a_bound(gain: float, std: float) -> None:
    noise = lavps.PoissonGaussianNoise(gain, std)
    x = 1.2 * torch.tanh(numbers(3, *SHAPE))  # some below black
    problem = lavps.InverseProblem.simulate(x.clamp(-1, 1), Identity(), noise)
    prediction = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(
        noise.log_prob(problem.y, prediction).sum(), prediction, create_graph=True
    )
    (second,) = torch.autograd.grad(gradient.sum(), prediction)
    assert bool((second <= 1e-9).all()), "not concave"
    # Elsewhere the rate has a lower bound, or read-out noise made the count negative.
    lit = (gain * (x + 1) + std**2 >= gain**2) & (x > -1) & (problem.y + 1 > -(std**2) / gain)
    assert float(lit.double().mean()) > 0.7
    torch.testing.assert_close(problem.likelihood_score(x)[lit], gradient[lit].detach(), rtol=1e-8, atol=1e-8)
    assert bool((-second <= noise.curvature(problem.y, x) * (1 + 1e-9))[lit].all())


@pytest.mark.parametrize(("gain", "std"), [*CAMERAS, (1e-5, 0.05)])
def test_the_likelihood_of_a_camera_is_as_good_in_single_precision(gain: float, std: float) -> None:
    noise, x = lavps.PoissonGaussianNoise(gain, std), 0.9 * torch.tanh(numbers(1, *SHAPE))
    y = lavps.InverseProblem.simulate(x, Identity(), noise).y
    exact, single = noise.log_prob(y, x), noise.log_prob(y.float(), x.float())
    torch.testing.assert_close(single.double(), exact, rtol=1e-3, atol=5e-3)


def photon_log_prob(y: float, x: Tensor, gain: float, std: float) -> Tensor:
    """Log-density of y given intensities x, by the sum over all photon counts."""
    rate = ((x + 1) / gain).clamp(min=0.0)
    counts = torch.arange(int(4 / gain) + 60, dtype=torch.float64)
    photons = stats.poisson.logpmf(counts.numpy(), rate.reshape(-1, 1).numpy())
    read_out = Normal(gain * counts - 1, std).log_prob(torch.tensor(y, dtype=torch.float64))
    return (torch.from_numpy(photons) + read_out).logsumexp(1).reshape(x.shape)


GRID = torch.linspace(-1.0, 1.6, 1301, dtype=torch.float64)


def moments(log_density: Tensor, *values: Tensor) -> Tensor:
    weight = (log_density - log_density.max()).exp()
    weight = weight / weight.sum()
    mean = torch.stack([(weight * value).sum() for value in values])
    second = torch.stack([(weight * value.square()).sum() for value in values])
    return torch.cat([mean, (second - mean.square()).sqrt()])


def one_pixel(y: float, gain: float, std: float) -> Tensor:
    """Mean and standard deviation of a pixel x ~ N(-0.2, 0.35^2) given y, on a grid, by photon counts."""
    return moments(photon_log_prob(y, GRID, gain, std) - 0.5 * ((GRID + 0.2) / 0.35).square(), GRID)


@pytest.mark.parametrize(("gain", "std"), [(0.05, 0.1), (0.1, 0.1), (0.02, 0.05)])
@pytest.mark.parametrize("y", [-0.9, -0.5, 0.3])
def test_the_likelihood_of_a_camera_has_the_posterior_of_photon_counts(
    gain: float, std: float, y: float
) -> None:
    log_prob = lavps.PoissonGaussianNoise(gain, std).log_prob(torch.tensor(y, dtype=torch.float64), GRID)
    found = moments(log_prob - 0.5 * ((GRID + 0.2) / 0.35).square(), GRID)
    mean, spread = one_pixel(y, gain, std)
    assert abs(float(found[0] - mean)) < 0.1 * float(spread)
    assert float(found[1]) == pytest.approx(float(spread), rel=0.06)


# With bounds of the errors of mean (in standard deviations) and standard deviation; under Gaussian noise of
# standard deviation 0.15 those of MGDM are 0.34 and 0.09, those of MMPS 0.04 and 0.24.
CAMERA_SAMPLERS: dict[str, tuple[Callable[[lavps.Prior], Sampler], float, float]] = {
    "WienerPIR": (
        lambda p: lavps.WienerPIR(
            p, num_steps=30, covariance=Isotropic(variance=0.35**2), draw="full", zeta=1.0
        ),
        0.12,
        0.08,
    ),
    "MGDM": (lambda p: lavps.MGDM(p, guidance=Gradient(5, lavps.WhitenedGradient())), 0.5, 0.2),
    "MGDM-linearized": (lambda p: lavps.MGDM(p, guidance=Linearized(data_variance=0.35**2)), 0.5, 0.2),
    "MGPS": (lambda p: lavps.MGPS(p), 0.5, 0.2),
    "MMPS": (lambda p: lavps.MMPS(p), 0.12, 0.2),
}


@pytest.mark.parametrize("name", CAMERA_SAMPLERS)
@pytest.mark.thorough
def test_samplers_find_the_posterior_of_photon_counts(name: str) -> None:
    make, mean_bound, std_bound = CAMERA_SAMPLERS[name]
    gain, std = 0.05, 0.1
    prior = lavps.GaussianPrior(torch.full((1, 1, 1), -0.2), torch.full((1, 1), 0.35**2, dtype=torch.float64))
    y = torch.tensor([-0.8, -0.4, 0.2])
    noise = lavps.PoissonGaussianNoise(gain, std)
    problem = lavps.InverseProblem(y.reshape(3, 1, 1, 1), Identity(), noise)
    posterior = make(prior).sample(problem, 1000)
    for row in range(3):
        mean, spread = one_pixel(float(y[row]), gain, std)
        assert abs(float(posterior.mean[row]) - float(mean)) < mean_bound * float(spread)
        assert float(posterior.std[row]) == pytest.approx(float(spread), rel=std_bound)


def test_a_correlated_pixel_is_found_from_the_mean_of_two() -> None:
    """Two pixels of which the mean is measured: the posterior on a grid of two dimensions."""
    gain, std, y = 0.05, 0.1, -0.5
    mean = torch.tensor([-0.2, 0.1], dtype=torch.float64)
    covariance = torch.tensor([[0.12, 0.05], [0.05, 0.12]], dtype=torch.float64)
    axis = torch.linspace(-2.0, 1.8, 381, dtype=torch.float64)
    a, b = torch.meshgrid(axis, axis, indexing="ij")
    offset = torch.stack([a - mean[0], b - mean[1]], -1)
    prior_density = -0.5 * torch.einsum("...i,ij,...j->...", offset, torch.linalg.inv(covariance), offset)
    # The mean takes few values: one row of photon counts each.
    levels, index = (0.5 * (a + b)).unique(return_inverse=True)
    exact = moments(prior_density + photon_log_prob(y, levels, gain, std)[index], a, b)

    prior = lavps.GaussianPrior(mean.reshape(1, 2), covariance)
    noise = lavps.PoissonGaussianNoise(gain, std)
    problem = lavps.InverseProblem(torch.tensor([[[y]]]), AveragePool(2), noise)
    found = lavps.MMPS(prior, num_steps=200, solver_steps=2).sample(problem, 2000)
    torch.testing.assert_close(found.mean.flatten().double(), exact[:2], atol=0.1 * float(exact[2]), rtol=0)
    torch.testing.assert_close(found.std.flatten().double(), exact[2:], atol=0.0, rtol=0.1)


# -- every sampler --------------------------------------------------------------------------------------

EVERY: dict[str, Callable[[lavps.Prior], Sampler]] = {
    "MGDM": lambda p: lavps.MGDM(p, num_steps=8, guidance=Gradient(2)),
    "MGDM-whitened": lambda p: lavps.MGDM(p, num_steps=8, guidance=Gradient(1, lavps.WhitenedGradient())),
    "MGDM-linearized": lambda p: lavps.MGDM(p, num_steps=8, guidance=Linearized()),
    "MGPS": lambda p: lavps.MGPS(p, num_steps=8),
    "DPS": lambda p: lavps.DPS(p, num_steps=8),
    "MMPS": lambda p: lavps.MMPS(p, num_steps=8),
    "DiffPIR": lambda p: lavps.DiffPIR(p, num_steps=8),
    "WienerPIR": lambda p: lavps.WienerPIR(p, num_steps=8),
}
NOISES: dict[str, lavps.NoiseModel] = {
    "map": lavps.GaussianNoise(std_map(3, *SHAPE)),
    "shared map": lavps.GaussianNoise(std_map(1, *SHAPE)),
    "camera": lavps.PoissonGaussianNoise(0.05, 0.1),
    "none": lavps.Noiseless(),
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_a_row_of_a_batch_equals_the_single_run(name: str, noise: lavps.NoiseModel) -> None:
    sampler = EVERY[name](network_prior())
    operator = Mask(numbers(3, 1, 8, 8, seed=8) > 0, batched=True)
    problem = lavps.InverseProblem.simulate(images(3, SHAPE), operator, noise, seed=1)
    batch = sampler.sample(problem, 2, seed=3).samples
    assert batch is not None
    assert bool(batch.isfinite().all())
    for item in range(3):
        single = sampler.sample(problem[item], 2, seed=3, items=[item]).samples
        torch.testing.assert_close(single[0], batch[item], atol=1e-5, rtol=1e-5)
