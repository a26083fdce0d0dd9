"""Baselines against references written from their papers with dense linear algebra, with the same noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import lavps
from lavps.data_step import Isotropic, data_step
from lavps.operators import AveragePool, Blur, HDRClip, Mask
from lavps.operators.linalg import spectral_product
from lavps.random import NoiseStreams, Purpose
from lavps.samplers import Sampler
from support.problems import pooling_problem

SHAPE, STD, K = (1, 8, 8), 0.1, 7
OPERATORS = {
    "pool": AveragePool(2),
    "mask": Mask(torch.tensor([[1, 0], [1, 1]]).repeat(4, 4).bool()),
    "sharp blur": Blur(torch.tensor([[1.0, 4.0, 1.0]]).T @ torch.tensor([[1.0, 4.0, 1.0]]) / 36),
    "blur": Blur(torch.tensor([[1.0, 2.0, 1.0]]).T @ torch.tensor([[1.0, 2.0, 1.0]]) / 16),
}
EACH = pytest.mark.parametrize("name", OPERATORS)
COVARIANCE = 0.2 * torch.eye(64, dtype=torch.float64) + 0.05
PRIOR = lavps.GaussianPrior(torch.zeros(SHAPE), COVARIANCE)


def measured(name: str, std: float = STD) -> lavps.InverseProblem:
    x = 0.5 * torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return lavps.InverseProblem.simulate(x, OPERATORS[name], lavps.GaussianNoise(std))


def dense(problem: lavps.InverseProblem) -> tuple[Tensor, Tensor]:
    """Matrix and measurement of the observed entries."""
    a, y = problem.operator.matrix(SHAPE), problem.y.flatten()
    if (observed := problem.operator.observed(problem.y)) is not None:
        kept = observed.expand_as(problem.y).flatten().bool()
        a, y = a[kept], y[kept]
    return a, y


def z(purpose: Purpose, step: int = 0) -> Tensor:
    return NoiseStreams.from_seed(1).normal(purpose, SHAPE, torch.empty(0).double(), step).flatten()


def coefficients(t: Tensor) -> tuple[float, float]:
    alpha, sigma = PRIOR.schedule.coefficients(t)
    return float(alpha), float(sigma)


def denoise(x: Tensor, t: Tensor) -> Tensor:
    """E[x_0 | x_t] of the Gaussian prior."""
    alpha, sigma = coefficients(t)
    return alpha * COVARIANCE @ torch.linalg.solve(alpha**2 * COVARIANCE + sigma**2 * torch.eye(64), x)


def sampled(sampler: Sampler, problem: lavps.InverseProblem) -> Tensor:
    return sampler.sample(problem).samples.flatten()


def diffpir(problem: lavps.InverseProblem, times: Tensor, strength: float, zeta: float) -> Tensor:
    """Zhu et al., 2023, Algorithm 1, for a matrix A; times ascend from 0."""
    a, y = dense(problem)
    x = coefficients(torch.tensor(1.0))[1] * z(Purpose.INITIAL)
    for k in range(len(times) - 1, 0, -1):
        alpha, sigma = coefficients(times[k])
        x_0 = denoise(x, times[k])
        rho = strength * STD**2 / min(sigma / alpha, 80.0) ** 2  # the library's bound on a noise level
        x_0 = torch.linalg.solve(a.T @ a + rho * torch.eye(64), a.T @ y + rho * x_0)
        effective = (x - alpha * x_0) / sigma
        alpha, sigma = coefficients(times[k - 1])
        noise = (1 - zeta) ** 0.5 * effective + zeta**0.5 * z(Purpose.DDIM, k)
        x = alpha * x_0 + sigma * noise
    return x_0


@pytest.mark.parametrize("name", ["pool", "mask", "sharp blur"])  # where conjugate gradients converge to 1e-5
@pytest.mark.parametrize(("strength", "zeta"), [(1.0, 0.5), (7.0, 0.1), (7.0, 1.0)])
def test_diffpir_is_the_papers_algorithm(name: str, strength: float, zeta: float) -> None:
    sampler = lavps.DiffPIR(
        PRIOR, num_steps=K, covariance=Isotropic(strength), zeta=zeta, grid_power=1.5, solver_steps=100
    )
    expected = diffpir(measured(name), sampler.times(PRIOR.schedule), strength, zeta)
    assert torch.allclose(sampled(sampler, measured(name)), expected, atol=1e-4)


def ddnm(problem: lavps.InverseProblem, times: Tensor, std: float, eta: float) -> Tensor:
    """DDNM+ of Wang et al., 2023, by the singular value decomposition of A."""
    a, y = dense(problem)
    u, s, vt = torch.linalg.svd(a)
    size = torch.zeros(64, dtype=torch.float64)
    size[: len(s)] = torch.where(s > 1e-6 * s.max(), s, 0.0)
    null = size == 0
    inverse = torch.where(null, 0.0, 1.0 / size)
    coordinates = torch.zeros(64, dtype=torch.float64)
    coordinates[: len(s)] = (u.T @ y)[: len(s)]
    x = coefficients(torch.tensor(1.0))[1] * z(Purpose.INITIAL)
    for k in range(len(times) - 1, 0, -1):
        (alpha, sigma), (alpha_s, sigma_s) = coefficients(times[k]), coefficients(times[max(k - 1, 1)])
        x_0 = denoise(x, times[k])
        e = (x - alpha * x_0) / sigma
        fits = (alpha_s * std * inverse <= sigma_s) & ~null
        weight = torch.where(fits, 1.0, (1 - eta**2) ** 0.5 * sigma_s * size / (alpha_s * std))
        v = vt @ x_0
        estimate = vt.T @ (v + torch.where(null, 0.0, weight) * (coordinates * inverse - v))
        left = torch.where(fits, (sigma_s**2 - (alpha_s * std * inverse) ** 2).clamp(min=0).sqrt(), sigma_s)
        along = torch.where(fits | null, (1 - eta**2) ** 0.5, 0.0) * (vt @ e)
        x = alpha_s * estimate + vt.T @ (left * (eta * (vt @ z(Purpose.DDIM, k)) + along))
    return estimate


@EACH
@pytest.mark.parametrize("eta", [0.85, 0.3, 1.0])
@pytest.mark.thorough
def test_ddnm_is_the_papers_algorithm_without_the_decomposition(name: str, eta: float) -> None:
    sampler = lavps.DDNM(PRIOR, num_steps=K, eta=eta, solver_steps=64)
    expected = ddnm(measured(name), sampler.times(PRIOR.schedule), STD, eta)
    assert torch.allclose(sampled(sampler, measured(name)), expected, atol=1e-4)


@EACH
@pytest.mark.thorough
def test_ddnm_without_noise_satisfies_the_measurement(name: str) -> None:
    problem = measured(name, std=1e-6)
    x = lavps.DDNM(PRIOR, num_steps=20, solver_steps=64).sample(problem, 3).samples.flatten(0, 1)
    assert float(problem.repeat(3).residual(problem.operator(x)).abs().max()) < 1e-4


def test_ddnm_refuses_nonlinear_operators_and_other_noise() -> None:
    x = torch.zeros(1, *SHAPE)
    clipped = lavps.InverseProblem.simulate(x, HDRClip(), lavps.GaussianNoise(0.1))
    counts = lavps.InverseProblem.simulate(x, AveragePool(2), lavps.PoissonNoise(100.0))
    for problem in (clipped, counts):
        with pytest.raises(TypeError, match="DDNM needs a linear operator and Gaussian noise"):
            lavps.DDNM(PRIOR).sample(problem)


def test_spectral_products_are_those_of_the_eigenvectors() -> None:
    generator = torch.Generator().manual_seed(3)
    root = torch.randn(5, 12, 8, generator=generator, dtype=torch.float64)
    matrices, b = root @ root.mT, torch.randn(5, 12, generator=generator, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(matrices)

    def function(m: Tensor) -> Tensor:
        return m.clamp(min=0.0).sqrt() / (1.0 + m)

    expected = (vectors @ (function(values) * (vectors.mT @ b[..., None])[..., 0])[..., None])[..., 0]
    found = spectral_product(lambda v: (matrices @ v[..., None])[..., 0], b, function, 12)
    assert torch.allclose(found, expected, atol=1e-6)


@EACH
def test_pigdm_is_the_papers_algorithm(name: str) -> None:
    problem, sampler = measured(name), lavps.PiGDM(PRIOR, num_steps=K, solver_steps=100)
    (a, y), times = dense(problem), sampler.times(PRIOR.schedule)
    x = coefficients(torch.tensor(1.0))[1] * z(Purpose.INITIAL)
    for k in range(K, 0, -1):
        (alpha, sigma), (alpha_s, sigma_s) = coefficients(times[k]), coefficients(times[k - 1])
        r2 = sigma**2 / (sigma**2 + alpha**2)
        x_0 = denoise(x, times[k])
        jacobian = denoise(torch.eye(64, dtype=torch.float64), times[k])
        weights = torch.linalg.solve(r2 * a @ a.T + STD**2 * torch.eye(len(a)), y - a @ x_0)
        correction = alpha * r2 * jacobian.T @ a.T @ weights
        fresh = sigma_s * (1 - (alpha * sigma_s / (alpha_s * sigma)) ** 2) ** 0.5
        kept = (sigma_s**2 - fresh**2) ** 0.5
        e = (x - alpha * x_0) / sigma
        x = alpha_s * (x_0 + correction) + kept * e + fresh * z(Purpose.DDIM, k)
    assert torch.allclose(sampled(sampler, problem), x_0 + correction, atol=1e-4)


@pytest.mark.parametrize("langevin_steps", [None, 7])
def test_daps_spends_its_denoising_steps_at_every_level(langevin_steps: int | None) -> None:
    sampler = lavps.DAPS(PRIOR, num_steps=6, denoising_steps=4, langevin_steps=langevin_steps)
    trace = sampler.sample(pooling_problem(2), 3).trace
    assert trace.step_forwards.tolist() == [4.0] * 6
    assert trace.backwards == 0


def test_daps_with_one_denoising_step_is_the_loop_of_data_steps() -> None:
    daps = lavps.DAPS(PRIOR, num_steps=6, denoising_steps=1)
    covariance = daps.covariance
    loop = lavps.DiffPIR(
        PRIOR, num_steps=6, grid_power=2.0, last_time=0.01, draw="full", zeta=1.0, covariance=covariance
    )
    assert torch.equal(daps.sample(pooling_problem(2)).samples, loop.sample(pooling_problem(2)).samples)


def test_langevin_steps_draw_from_the_density_of_the_data_step() -> None:
    """One level: the moments after many Langevin steps are those of exact draws, up to the step size."""
    problem, rows = measured("pool"), 2000
    sampler = lavps.DAPS(PRIOR, num_steps=1, denoising_steps=1, covariance=Isotropic(variance=0.05))
    langevin = replace(sampler, langevin_steps=150, langevin_step_size=0.1)
    found, exact = (s.sample(problem, rows).samples[0].flatten(1) for s in (langevin, sampler))
    assert torch.allclose(found.mean(0), exact.mean(0), atol=0.03)
    assert float(found.std(0).mean() / exact.std(0).mean()) == pytest.approx(1, abs=0.05)
    pooled = [problem.operator(x.reshape(-1, *SHAPE)).std(0).mean() for x in (found, exact)]
    assert float(pooled[0] / pooled[1]) == pytest.approx(1, abs=0.07)
    mode = data_step(
        problem, torch.zeros(1, *SHAPE).double(), Isotropic(variance=0.05), torch.tensor(torch.inf)
    )
    assert torch.allclose(found.mean(0), mode.flatten(), atol=0.04)


@pytest.mark.parametrize(
    "wrong", [{"denoising_steps": 0}, {"langevin_steps": 0}, {"langevin_step_size": 2.0}]
)
def test_impossible_settings_of_daps_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        lavps.DAPS(PRIOR, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="draw"):
        lavps.DAPS(PRIOR, langevin_steps=3, draw="none")
