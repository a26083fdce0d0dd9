"""A problem is its log-likelihood: per row, over what was observed, in the units of the measurement."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.distributions import Normal

from lavps.noise import Noiseless
from lavps.operators import (
    JPEG,
    MRI,
    AveragePool,
    Blur,
    CallableOperator,
    HDRClip,
    Identity,
    Mask,
    Operator,
)
from lavps.priors import GaussianMixturePrior
from lavps.problem import (
    GaussianNoise,
    InverseProblem,
    NoiseModel,
    PoissonNoise,
    Unconditional,
    exact_posterior,
)

SHAPE = (1, 4, 4)
SIZE = 16
STDS = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def images(rows: int = 3, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Tensor:
    """Images in (-1, 1)."""
    return 0.9 * torch.tanh(numbers(rows, *shape, seed=seed))


def dense(rows: int = 9, seed: int = 4) -> tuple[Operator, Tensor]:
    """A random linear operator and its matrix."""
    matrix = numbers(rows, SIZE, seed=seed) / 4
    return CallableOperator(lambda x: x.flatten(1) @ matrix.to(x).T, SHAPE), matrix


def spectrum() -> Operator:
    """A complex linear operator: the orthonormal Fourier transform."""
    return CallableOperator(lambda x: torch.fft.fft2(x, norm="ortho"), SHAPE)


def masks(rows: int = 3) -> Mask:
    return Mask(numbers(rows, 1, 4, 4, seed=8) > 0, batched=True)


# -- likelihoods ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("std", [0.05, 3.0, torch.tensor(0.3), STDS])
def test_the_gaussian_likelihood_is_that_of_torch(std: float | Tensor) -> None:
    operator, matrix = dense()
    x, y = images(), numbers(3, 9, seed=1)
    problem = InverseProblem(y, operator, GaussianNoise(std))
    scale = torch.as_tensor(std, dtype=torch.float64).reshape(-1, 1)
    expected = Normal(x.flatten(1) @ matrix.T, scale.expand(-1, 9)).log_prob(y).sum(1)
    torch.testing.assert_close(problem.log_likelihood(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("std", [0.3, STDS])
def test_the_complex_likelihood_splits_the_variance_between_real_and_imaginary(std: float | Tensor) -> None:
    x, y = images(), torch.complex(numbers(3, *SHAPE, seed=1), numbers(3, *SHAPE, seed=2))
    problem = InverseProblem(y, spectrum(), GaussianNoise(std))
    scale = (torch.as_tensor(std, dtype=torch.float64).reshape(-1, 1, 1, 1) / math.sqrt(2)).expand(-1, *SHAPE)
    prediction = torch.fft.fft2(x, norm="ortho")
    expected = Normal(prediction.real, scale).log_prob(y.real) + Normal(prediction.imag, scale).log_prob(
        y.imag
    )
    torch.testing.assert_close(problem.log_likelihood(x), expected.flatten(1).sum(1), rtol=1e-12, atol=1e-12)
    assert not problem.log_likelihood(x).is_complex()


@pytest.mark.parametrize(("peak", "background"), [(1.0, 0.0), (50.0, 0.0), (50.0, 4.0), (1e4, 0.5)])
def test_the_poisson_likelihood_is_that_of_scipy_wherever_there_is_light(
    peak: float, background: float
) -> None:
    x = images()
    noise = PoissonNoise(peak, background)
    rate = peak * (x + 1) / 2 + background
    y = torch.from_numpy(np.random.default_rng(0).poisson(rate.numpy()).astype(float))
    expected = stats.poisson.logpmf(y.numpy(), rate.numpy()).sum(axis=(1, 2, 3))
    problem = InverseProblem(y, Identity(), noise)
    torch.testing.assert_close(problem.log_likelihood(x), torch.from_numpy(expected), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(noise.rate(x), rate)


def poisson_slope(noise: PoissonNoise, y: float, prediction: Tensor) -> Tensor:
    prediction = prediction.detach().requires_grad_()
    (slope,) = torch.autograd.grad(
        noise.log_prob(torch.full_like(prediction, y), prediction).sum(), prediction
    )
    return slope


@settings(deadline=None)
@given(st.floats(0.5, 1e4), st.sampled_from([0.0, 1.0, 3.0, 100.0]), st.floats(0.0, 5.0))
def test_far_below_black_the_gradient_points_to_light(peak: float, y: float, background: float) -> None:
    noise = PoissonNoise(peak, background)
    # A photon or more short of none at all.
    rates = torch.tensor([-1.5, -3.0, -10.0, -1e3, -1e6], dtype=torch.float64)
    slope = poisson_slope(noise, y, 2 * (rates - background) / peak - 1)
    assert bool((slope > 0).all())
    assert bool(slope.isfinite().all())
    assert bool((slope.diff() >= 0).all())


@pytest.mark.parametrize("noise", [PoissonNoise(100.0), PoissonNoise(2.0, 0.3), PoissonNoise(1e4, 10.0)])
@pytest.mark.parametrize("y", [0.0, 1.0, 7.0])
def test_the_gradient_of_the_poisson_likelihood_is_continuous(noise: PoissonNoise, y: float) -> None:
    """Between neighbours the slope changes by no more than the local curvature allows, everywhere."""
    for centre in (0.0, noise._floor, noise.background, noise.background + 1.0):
        middle = 2 * (centre - noise.background) / noise.peak - 1
        jumps = []
        for gap in (1e-6, 1e-8):
            around = middle + torch.tensor([-gap, gap], dtype=torch.float64)
            jumps.append(poisson_slope(noise, y, around).diff().abs().item())
        assert jumps[1] <= 0.02 * jumps[0] + 1e-6


@pytest.mark.parametrize("noise", [PoissonNoise(100.0), PoissonNoise(2.0, 0.3)])
def test_the_poisson_likelihood_is_continued_to_second_order(noise: PoissonNoise) -> None:
    shortfall = torch.tensor([0.0, 0.01, 0.1], dtype=torch.float64)
    rate = noise._floor * (1 - shortfall)
    y = torch.full_like(rate, 2.0)
    error = noise.log_prob(y, 2 * (rate - noise.background) / noise.peak - 1) - torch.from_numpy(
        stats.poisson.logpmf(y.numpy(), rate.numpy())
    )
    assert bool((error.abs() <= y * shortfall**3 + 1e-9).all())


@pytest.mark.parametrize("y", [0.0, 1.0, 7.0])
def test_the_poisson_likelihood_is_concave_on_both_sides_of_black(y: float) -> None:
    slope = poisson_slope(PoissonNoise(100.0), y, torch.linspace(-1.5, 1.5, 4001, dtype=torch.float64))
    assert bool((slope.diff() <= 1e-9).all())


NOISES: list[NoiseModel] = [GaussianNoise(0.3), GaussianNoise(STDS), PoissonNoise(30.0)]


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
def test_a_likelihood_is_one_number_per_row_and_of_that_row_alone(noise: NoiseModel) -> None:
    x = images()
    problem = InverseProblem.simulate(x, masks(), noise, seed=1)
    likelihood = problem.log_likelihood(x)
    assert likelihood.shape == (3,)
    for row in range(3):
        torch.testing.assert_close(problem[row].log_likelihood(x[row : row + 1])[0], likelihood[row])
    changed = x.clone()
    changed[1] += 0.05
    other = problem.log_likelihood(changed)
    assert torch.equal(other[[0, 2]], likelihood[[0, 2]])
    assert other[1] != likelihood[1]
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(problem.log_likelihood(x)[1], x)
    assert bool((gradient[[0, 2]] == 0).all())
    assert bool((gradient[1] != 0).any())


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
@pytest.mark.parametrize("rubbish", [0.0, 1e6, float("nan"), float("inf")])
def test_what_was_not_observed_does_not_matter(noise: NoiseModel, rubbish: float) -> None:
    operator, x = masks(), images()
    hidden = ~operator.mask.expand(3, *SHAPE)
    y = InverseProblem.simulate(x, operator, noise, seed=1).y
    clean = InverseProblem(y.masked_fill(hidden, 0.25), operator, noise)
    dirty = InverseProblem(y.masked_fill(hidden, rubbish), operator, noise)
    painted = x.masked_fill(hidden, rubbish).requires_grad_()
    assert torch.equal(dirty.log_likelihood(painted), clean.log_likelihood(x))
    assert torch.equal(dirty.chi_square(painted), clean.chi_square(x))
    assert torch.equal(
        dirty.residual(dirty.operator(painted))[hidden], torch.zeros(int(hidden.sum())).double()
    )
    (gradient,) = torch.autograd.grad(dirty.log_likelihood(painted).sum(), painted)
    assert bool((gradient[hidden] == 0).all())
    assert bool(gradient.isfinite().all())


def test_only_observed_entries_are_counted_in_the_likelihood() -> None:
    operator, x, y = masks(), images(), images(seed=3)
    problem = InverseProblem(y, operator, GaussianNoise(0.3))
    for row in range(3):
        seen = operator.mask[row]
        expected = Normal(x[row][seen], 0.3).log_prob(y[row][seen]).sum()
        torch.testing.assert_close(problem.log_likelihood(x)[row], expected, rtol=1e-12, atol=1e-12)


# -- simulation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.05, 2.0])
def test_simulated_noise_has_the_stated_std(sigma: float) -> None:
    x = images(2, (3, 128, 128))
    problem = InverseProblem.simulate(x, Identity(), GaussianNoise(sigma), seed=3)
    residual = problem.residual(problem.operator(x))
    for row in range(2):
        assert residual[row].std().item() == pytest.approx(sigma, rel=0.01)
        assert abs(residual[row].mean().item()) < 4 * sigma / residual[row].numel() ** 0.5
    stds = torch.tensor([0.1, 0.7])
    problem = InverseProblem.simulate(x, Identity(), GaussianNoise(stds), seed=3)
    torch.testing.assert_close((problem.y - x).flatten(1).std(1).float(), stds, rtol=0.01, atol=0)


def test_simulated_complex_noise_has_the_stated_modulus() -> None:
    operator = CallableOperator(lambda x: torch.fft.fft2(x, norm="ortho"), (3, 128, 128))
    x = images(1, (3, 128, 128))
    problem = InverseProblem.simulate(x, operator, GaussianNoise(0.2))
    noise = problem.y - operator(x)
    assert noise.abs().square().mean().sqrt().item() == pytest.approx(0.2, rel=0.01)
    assert noise.real.std().item() == pytest.approx(0.2 / math.sqrt(2), rel=0.02)


@pytest.mark.parametrize("noise", [GaussianNoise(0.3), PoissonNoise(30.0)], ids=lambda n: type(n).__name__)
def test_simulated_noise_is_a_function_of_seed_and_item_and_not_of_the_batch(noise: NoiseModel) -> None:
    x = images()
    y = InverseProblem.simulate(x, Identity(), noise, seed=5, items=[10, 11, 12]).y
    for row, item in enumerate((10, 11, 12)):
        alone = InverseProblem.simulate(x[row : row + 1], Identity(), noise, seed=5, items=[item]).y
        assert torch.equal(alone[0], y[row])
    assert not torch.equal(InverseProblem.simulate(x, Identity(), noise, seed=6, items=[10, 11, 12]).y, y)
    per_item = InverseProblem.simulate(x, Identity(), noise, seed=[5, 6, 5], items=[10, 11, 12]).y
    assert torch.equal(per_item[[0, 2]], y[[0, 2]])
    assert not torch.equal(per_item[1], y[1])


def test_simulation_takes_a_plain_function_and_keeps_no_graph() -> None:
    x = images().requires_grad_()
    problem = InverseProblem.simulate(x, lambda x: x[..., ::2].sin(), GaussianNoise(0.1))
    assert not problem.y.requires_grad
    assert problem.image_shape == SHAPE
    assert problem.y.shape == (3, 1, 4, 2)


@pytest.mark.parametrize(
    "noise",
    [
        GaussianNoise(0.3),
        GaussianNoise(torch.tensor([0.1, 5.0])),
        PoissonNoise(400.0),
        PoissonNoise(9.0, 3.0),
    ],
    ids=repr,
)
def test_the_truth_explains_its_measurement(noise: NoiseModel) -> None:
    x = images(2, (3, 96, 96))
    problem = InverseProblem.simulate(x, AveragePool(2), noise, seed=2)
    # The fourth moment of a count exceeds that of a normal by 1 / rate.
    torch.testing.assert_close(
        problem.chi_square(x), torch.ones(2, dtype=torch.float64), rtol=0, atol=5 * (2.4 / 6912) ** 0.5
    )
    assert bool((problem.chi_square(x + 0.5) > problem.chi_square(x)).all())


def test_the_truth_explains_a_complex_or_masked_measurement() -> None:
    x = images(2, (3, 96, 96))
    operator = CallableOperator(lambda x: torch.fft.fft2(x, norm="ortho"), (3, 96, 96))
    mask = Mask(numbers(2, 1, 96, 96) > 1.0, batched=True)
    for A in (operator, mask):
        problem = InverseProblem.simulate(x, A, GaussianNoise(0.3), seed=2)
        torch.testing.assert_close(
            problem.chi_square(x), torch.ones(2, dtype=torch.float64), rtol=0, atol=5 * (2 / 4000) ** 0.5
        )


# -- curvature ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("std", [0.2, STDS])
def test_gaussian_curvature_is_the_largest_eigenvalue_of_the_hessian(std: float | Tensor) -> None:
    operator, matrix = dense()
    problem = InverseProblem(numbers(3, 9, seed=1), operator, GaussianNoise(std))
    top = torch.linalg.eigvalsh(matrix.T @ matrix)[-1]
    expected = (top / torch.as_tensor(std, dtype=torch.float64) ** 2).expand(3)
    torch.testing.assert_close(problem.curvature(images(), 300), expected, rtol=1e-4, atol=0)
    assert problem.curvature(images(), 300) is problem.curvature(2 * images(), 300)


def hessian(problem: InverseProblem, x: Tensor) -> Tensor:
    """The negative Hessian of the log-likelihood of a batch of one."""
    second = torch.autograd.functional.hessian(lambda v: -problem.log_likelihood(v).sum(), x)
    return second.reshape(x.numel(), x.numel())


def test_complex_curvature_is_the_largest_eigenvalue_of_the_hessian() -> None:
    matrix = torch.complex(numbers(5, SIZE, seed=1), numbers(5, SIZE, seed=2))
    operator = CallableOperator(lambda x: x.flatten(1).to(matrix.dtype) @ matrix.T, SHAPE)
    x = images(2)
    problem = InverseProblem.simulate(x, operator, GaussianNoise(torch.tensor([0.5, 0.7])))
    for row in range(2):
        top = torch.linalg.eigvalsh(hessian(problem[row], x[row : row + 1]))[-1]
        torch.testing.assert_close(problem.curvature(x, 300)[row], top, rtol=1e-4, atol=0)


def test_poisson_curvature_is_the_largest_eigenvalue_of_the_fisher_information() -> None:
    operator, matrix = dense()
    x, noise = images(), PoissonNoise(200.0, 5.0)
    prediction = x.flatten(1) @ matrix.T
    problem = InverseProblem(noise.rate(prediction).clamp(min=0), operator, noise)
    for row in range(3):
        weight = 100.0**2 / noise.rate(prediction[row]).clamp(min=5.0)
        top = torch.linalg.eigvalsh(matrix.T @ (weight[:, None] * matrix))[-1]
        torch.testing.assert_close(problem.curvature(x, 300)[row], top, rtol=1e-4, atol=0)
    assert problem.curvature(x, 3) is not problem.curvature(x, 3)


def test_poisson_curvature_is_the_hessian_where_the_counts_are_as_expected() -> None:
    x, noise = images(1), PoissonNoise(200.0)
    problem = InverseProblem(noise.rate(x), Mask(numbers(4, 4, seed=3) > 0), noise)
    top = torch.linalg.eigvalsh(hessian(problem, x))[-1]
    torch.testing.assert_close(problem.curvature(x, 300)[0], top, rtol=1e-4, atol=0)


def test_curvature_of_a_nonlinear_operator_is_that_of_its_jacobian() -> None:
    x = images()
    problem = InverseProblem(torch.zeros(3, *SHAPE).double(), lambda x: x**3, GaussianNoise(STDS), SHAPE)
    expected = (3 * x.square()).flatten(1).amax(1).square() / STDS**2
    torch.testing.assert_close(problem.curvature(x, 500), expected, rtol=1e-3, atol=0)
    assert problem.curvature(x, 3) is not problem.curvature(x, 3)


# -- rows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
@given(rows=st.lists(st.integers(0, 2), min_size=1, max_size=6))
@settings(deadline=None, max_examples=15)
def test_selected_rows_keep_their_measurement_operator_and_noise(noise: NoiseModel, rows: list[int]) -> None:
    x = images()
    problem = InverseProblem.simulate(x, masks(), noise, seed=1)
    picked = problem.select(torch.tensor(rows))
    assert len(picked) == len(rows)
    torch.testing.assert_close(picked.log_likelihood(x[rows]), problem.log_likelihood(x)[rows])
    torch.testing.assert_close(picked.curvature(x[rows]), problem.curvature(x)[rows])


def test_items_are_found_by_number_and_repeated_in_a_row() -> None:
    x = images()
    problem = InverseProblem.simulate(x, masks(), GaussianNoise(STDS))
    likelihood = problem.log_likelihood(x)
    assert len(problem) == 3
    assert [len(one) for one in problem] == [1, 1, 1]
    assert torch.equal(problem[-1].y, problem[2].y)
    with pytest.raises(IndexError):
        problem[3]
    twice = problem.repeat(2)
    assert len(twice) == 6
    torch.testing.assert_close(
        twice.log_likelihood(x.repeat_interleave(2, 0)), likelihood.repeat_interleave(2, 0)
    )
    assert problem.repeat(1) is problem


def test_a_change_of_dtype_changes_everything_that_is_computed() -> None:
    x = images()
    problem = InverseProblem.simulate(x, masks(), GaussianNoise(STDS))
    single = problem.to(torch.float32)
    assert single.y.dtype == single.like.dtype == torch.float32
    assert single.log_likelihood(x.float()).dtype == torch.float32
    torch.testing.assert_close(
        single.log_likelihood(x.float()).double(), problem.log_likelihood(x), rtol=1e-5, atol=1e-4
    )
    assert problem.y.dtype == torch.float64
    assert single.to("cpu").y.dtype == torch.float32


def test_a_complex_measurement_stays_complex_in_another_precision() -> None:
    x = images()
    problem = InverseProblem.simulate(x, spectrum(), GaussianNoise(0.3))
    single = problem.to(torch.float32)
    assert single.y.dtype == torch.complex64
    assert single.like.dtype == torch.float32
    torch.testing.assert_close(
        single.log_likelihood(x.float()).double(), problem.log_likelihood(x), rtol=1e-5, atol=1e-4
    )


# -- refusals -------------------------------------------------------------------------------------------


def test_bytes_are_refused_with_the_way_to_the_unit_range() -> None:
    with pytest.raises(TypeError, match=r"127\.5"):
        InverseProblem(torch.zeros(1, *SHAPE, dtype=torch.uint8), Identity(), GaussianNoise(0.1))


def test_a_measurement_without_batch_axis_is_refused() -> None:
    with pytest.raises(ValueError, match=r"y\[None\]"):
        InverseProblem(torch.zeros(9), Identity(), GaussianNoise(0.1))


def test_a_plain_function_needs_the_shape_of_its_images() -> None:
    with pytest.raises(ValueError, match="in_shape"):
        InverseProblem(torch.zeros(1, 9), lambda x: x.flatten(1), GaussianNoise(0.1))
    assert InverseProblem(
        torch.zeros(1, 9), lambda x: x.flatten(1), GaussianNoise(0.1), (1, 3, 3)
    ).image_shape == (1, 3, 3)


def test_a_shape_that_does_not_fit_the_measurement_is_refused() -> None:
    y = torch.zeros(1, 1, 2, 2)
    with pytest.raises(ValueError, match="expects"):
        InverseProblem(y, AveragePool(2), GaussianNoise(0.1), (1, 2, 2))
    assert InverseProblem(y, AveragePool(2), GaussianNoise(0.1), (1, 4, 4)).image_shape == (1, 4, 4)
    assert InverseProblem(y, AveragePool(2), GaussianNoise(0.1)).image_shape == (1, 4, 4)


def test_parameters_for_another_number_of_items_are_refused() -> None:
    with pytest.raises(ValueError, match="3 items"):
        InverseProblem(torch.zeros(2, *SHAPE), masks(3), GaussianNoise(0.1))
    with pytest.raises(ValueError, match="3 items"):
        InverseProblem(torch.zeros(1, *SHAPE), Identity(), GaussianNoise(STDS))
    with pytest.raises(ValueError, match="3 items"):
        InverseProblem.simulate(torch.zeros(1, *SHAPE), Identity(), GaussianNoise(STDS))


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), torch.tensor([0.1, 0.0])])
def test_noise_without_spread_is_refused(std: float | Tensor) -> None:
    with pytest.raises(ValueError, match="positive"):
        GaussianNoise(std)


@pytest.mark.parametrize(("peak", "background"), [(0.0, 0.0), (-1.0, 0.0), (1.0, -0.1)])
def test_light_without_photons_is_refused(peak: float, background: float) -> None:
    with pytest.raises(ValueError, match="PoissonNoise"):
        PoissonNoise(peak, background)


def test_an_unconditional_problem_is_a_shape_and_a_number_of_items() -> None:
    problem = Unconditional(SHAPE, 2, torch.float64)
    assert len(problem) == 2
    assert len(problem.repeat(3)) == 6
    assert len(problem.select(torch.tensor([1]))) == 1
    assert problem.repeat(3).image_shape == SHAPE
    assert problem.repeat(3).like.dtype == torch.float64


# -- exact posteriors -----------------------------------------------------------------------------------


def mixture() -> GaussianMixturePrior:
    roots = numbers(2, SIZE, SIZE, seed=5) / 4
    return GaussianMixturePrior([0.3, 0.7], 0.3 * numbers(2, *SHAPE, seed=6), roots @ roots.mT)


def same(a: GaussianMixturePrior, b: GaussianMixturePrior) -> None:
    torch.testing.assert_close(a.weights, b.weights, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(a.means, b.means, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(a.covariances, b.covariances, rtol=1e-9, atol=1e-11)


def test_exact_posteriors_condition_the_prior_on_each_item() -> None:
    operator, matrix = dense()
    problem = InverseProblem.simulate(images(), operator, GaussianNoise(STDS))
    posteriors = exact_posterior(mixture(), problem)
    assert len(posteriors) == 3
    for row, posterior in enumerate(posteriors):
        same(posterior, mixture().condition(matrix, problem.y[row], STDS[row].item()))


@pytest.mark.parametrize("operator", [masks(), Mask(numbers(4, 4, seed=9) > 0)], ids=repr)
def test_exact_posteriors_of_a_mask_know_only_the_observed(operator: Mask) -> None:
    problem = InverseProblem.simulate(images(), operator, GaussianNoise(0.1))
    for row, posterior in enumerate(exact_posterior(mixture(), problem)):
        seen = operator.mask.expand(3, *SHAPE)[row].flatten()
        matrix = torch.eye(SIZE, dtype=torch.float64)[seen]
        same(posterior, mixture().condition(matrix, problem.y[row].flatten()[seen], 0.1))


def test_the_exact_posterior_of_nothing_observed_is_the_prior() -> None:
    problem = InverseProblem(torch.zeros(1, *SHAPE), Mask(torch.zeros(4, 4)), GaussianNoise(0.1))
    same(exact_posterior(mixture(), problem)[0], mixture())


def test_exact_posteriors_satisfy_bayes_rule() -> None:
    operator, _ = dense()
    problem = InverseProblem.simulate(images(1), operator, GaussianNoise(0.4))
    (posterior,) = exact_posterior(mixture(), problem)
    x, zero = images(20, seed=7), torch.zeros((), dtype=torch.float64)
    likelihood = torch.cat([problem.log_likelihood(one[None]) for one in x])
    evidence = likelihood + mixture().log_prob(x, zero) - posterior.log_prob(x, zero)
    torch.testing.assert_close(evidence, evidence[:1].expand(20), rtol=1e-7, atol=1e-6)


def test_exact_posteriors_of_complex_measurements_satisfy_bayes_rule() -> None:
    problem = InverseProblem.simulate(images(1), spectrum(), GaussianNoise(0.4))
    (posterior,) = exact_posterior(mixture(), problem)
    x, zero = images(20, seed=7), torch.zeros((), dtype=torch.float64)
    likelihood = torch.cat([problem.log_likelihood(one[None]) for one in x])
    evidence = likelihood + mixture().log_prob(x, zero) - posterior.log_prob(x, zero)
    torch.testing.assert_close(evidence, evidence[:1].expand(20), rtol=1e-7, atol=1e-6)


def test_there_is_no_exact_posterior_for_nonlinear_operators_or_counts() -> None:
    x = images()
    for operator, noise in (
        (HDRClip(), GaussianNoise(0.1)),
        (Identity(), PoissonNoise(10.0)),
        (CallableOperator(lambda x: x, SHAPE, linear=False), GaussianNoise(0.1)),
    ):
        with pytest.raises(TypeError, match="linear operator and Gaussian noise"):
            exact_posterior(mixture(), InverseProblem.simulate(x, operator, noise))


@pytest.mark.parametrize(
    "operator", [AveragePool(2), Mask(torch.arange(16).reshape(4, 4) % 3 > 0), HDRClip()], ids=repr
)
def test_the_pull_is_the_gradient_of_a_gaussian_log_likelihood(operator: Operator) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, *SHAPE, generator=generator, dtype=torch.float64).requires_grad_()
    y = operator(torch.zeros(3, *SHAPE, dtype=torch.float64))
    problem = InverseProblem(y, operator, GaussianNoise(STDS))
    (gradient,) = torch.autograd.grad(problem.log_likelihood(x).sum(), x)
    torch.testing.assert_close(problem.likelihood_score(x.detach()), gradient)


@pytest.mark.parametrize("operator", [AveragePool(2), Mask(torch.arange(16).reshape(4, 4) % 3 > 0)], ids=repr)
def test_the_stiffness_is_the_change_of_the_pull(operator: Operator) -> None:
    generator = torch.Generator().manual_seed(0)
    x, u = (torch.randn(3, *SHAPE, generator=generator, dtype=torch.float64) for _ in range(2))
    problem = InverseProblem(operator(torch.zeros_like(x)), operator, GaussianNoise(STDS))
    torch.testing.assert_close(
        problem.gauss_newton_product(x)(u), problem.likelihood_score(x) - problem.likelihood_score(x + u)
    )


# -- arguments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.05, 1, torch.tensor(0.3), STDS, np.float32(0.5)])
def test_a_number_is_the_standard_deviation_of_gaussian_noise(noise: float | Tensor) -> None:
    problem = InverseProblem(torch.zeros(3, 1, 4, 4), Identity(), noise)
    assert type(problem.noise) is GaussianNoise
    torch.testing.assert_close(
        torch.as_tensor(problem.noise.std).double(), torch.as_tensor(noise).double(), atol=1e-7, rtol=0
    )
    x = images()
    simulated = InverseProblem.simulate(x, Identity(), noise)
    assert torch.equal(simulated.y, InverseProblem.simulate(x, Identity(), GaussianNoise(noise)).y)


def test_a_standard_deviation_of_0_is_no_noise() -> None:
    assert isinstance(InverseProblem(torch.zeros(1, 1, 4, 4), Identity(), 0).noise, Noiseless)
    with pytest.raises(TypeError, match="noise is a standard deviation or a noise model, got"):
        InverseProblem(torch.zeros(1, 1, 4, 4), Identity(), "0.1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operator", "shape"),
    [
        (Blur(torch.ones(3, 3) / 9), (3, 8, 8)),
        (Mask(torch.ones(1, 8, 8)), (3, 8, 8)),
        (JPEG(50), (3, 8, 8)),
        (MRI(torch.ones(8, 8)), (1, 8, 8)),
        (CallableOperator(lambda x: x.flatten(1)[:, :5], (3, 8, 8)), (5,)),
    ],
)
def test_one_measurement_without_a_batch_axis_is_a_batch_of_one(
    operator: Operator, shape: tuple[int, ...]
) -> None:
    dtype = torch.complex64 if isinstance(operator, MRI) else torch.float32
    one = InverseProblem(torch.zeros(shape, dtype=dtype), operator, 0.1)
    assert one.y.shape == (1, *shape)
    assert len(InverseProblem(torch.zeros(2, *shape, dtype=dtype), operator, 0.1)) == 2


def test_the_image_shape_decides_where_the_operator_does_not() -> None:
    y = torch.zeros(3, 4, 4)
    assert InverseProblem(y, AveragePool(2), 0.1, in_shape=(3, 8, 8)).y.shape == (1, 3, 4, 4)
    assert InverseProblem(y, AveragePool(2), 0.1).y.shape == (3, 4, 4)  # three signals of four channels
    with pytest.raises(ValueError, match="need a batch axis"):
        InverseProblem(torch.zeros(4), AveragePool(2), 0.1)


def test_measurements_of_another_shape_or_type_are_refused_in_words() -> None:
    function = CallableOperator(lambda x: x[..., ::2], (3, 8, 8))
    with pytest.raises(
        ValueError, match=r"gives measurements \(3, 8, 4\) of an image, but y has \(3, 8, 8\)"
    ):
        InverseProblem(torch.zeros(1, 3, 8, 8), function, 0.1)
    with pytest.raises(ValueError, match=r"Mask\(\(4, 4\), batched=False\) does not fit images"):
        InverseProblem(torch.zeros(1, 3, 8, 8), Mask(torch.ones(4, 4)), 0.1)
    with pytest.raises(TypeError, match="must be a tensor, got ndarray"):
        InverseProblem(np.zeros((1, 3, 8, 8)), Identity(), 0.1)  # type: ignore[arg-type]
