"""The data step against dense linear algebra."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

import lavps
from lavps.data_step import Covariance, Isotropic, Stationary, data_step
from lavps.operators import AveragePool, Blur, HDRClip, Identity, Mask

COVARIANCES: dict[str, Covariance] = {
    "isotropic": Isotropic(strength=2.0, variance=0.3),
    "stationary": Stationary(variance=0.3, exponent=2.0),
}
EACH = pytest.mark.parametrize("covariance", COVARIANCES.values(), ids=COVARIANCES)
LEVEL = torch.tensor(0.4, dtype=torch.float64)
SHAPE = (3, 4, 4)


def matrix(function, like: Tensor) -> Tensor:
    """Matrix of a linear function of images."""
    basis = torch.eye(like[0].numel(), dtype=like.dtype).reshape(-1, *like.shape[1:])
    return function(basis).flatten(1).T


def problem(operator: lavps.Operator, rows: int, std: float = 0.1) -> lavps.InverseProblem:
    x = torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return lavps.InverseProblem.simulate(x, operator, lavps.GaussianNoise(std)).repeat(rows)


OPERATORS = {
    "pool": AveragePool(2),
    "mask": Mask(torch.tensor([[1, 0], [1, 1]]).repeat(2, 2).bool()),
    "blur": Blur(torch.tensor([[1.0, 2.0, 1.0]]).T @ torch.tensor([[1.0, 2.0, 1.0]]) / 16),
    "periodic blur": Blur(torch.tensor([[0.1, 0.5, 0.0], [0.0, 0.3, 0.1]]), "circular"),
}


@EACH
def test_the_root_is_symmetric_and_its_square_is_the_covariance(covariance: Covariance) -> None:
    like = torch.zeros(48, *SHAPE, dtype=torch.float64)
    root = matrix(covariance.product(LEVEL, like, 0.5), like)
    assert torch.allclose(root, root.T, atol=1e-12)
    if isinstance(covariance, Isotropic):
        precision = 2.0 / 0.16 + 1 / 0.3
        assert torch.allclose(root @ root, torch.eye(48, dtype=torch.float64) / precision, atol=1e-12)
    else:
        prior = matrix(covariance.product(torch.tensor(torch.inf), like), like)
        expected = torch.linalg.inv(torch.linalg.inv(prior) + torch.eye(48) / 0.16)
        assert torch.allclose(root @ root, expected, atol=1e-3)  # the noise level 80 stands for infinity
        assert float(prior.diagonal().mean()) == pytest.approx(0.3, rel=1e-2)


@EACH
@pytest.mark.parametrize("name", OPERATORS)
def test_draws_have_the_exact_mean_and_covariance(covariance: Covariance, name: str) -> None:
    rows = 4000
    measured = problem(OPERATORS[name], rows)
    x_0 = torch.full((rows, *SHAPE), 0.2, dtype=torch.float64)
    options = {"solver_steps": 100, "tolerance": 1e-10}
    generator = torch.Generator().manual_seed(2)
    z = [torch.randn(s, generator=generator, dtype=torch.float64) for s in (x_0.shape, measured.y.shape)]

    dense = matrix(covariance.product(LEVEL, x_0[:48]), x_0[:48])
    a = measured.operator.matrix(SHAPE).double()
    y, std = measured.y[0].flatten(), 0.1
    if (observed := measured.operator.observed(measured.y)) is not None:
        kept = observed.expand_as(measured.y)[0].flatten().bool()
        a, y = a[kept], y[kept]
    exact = torch.linalg.inv(torch.linalg.inv(dense) + a.T @ a / std**2)
    mean = x_0[0].flatten() + exact @ a.T @ (y - a @ x_0[0].flatten()) / std**2

    mode = data_step(measured[0], x_0[:1], covariance, LEVEL, **options)
    assert torch.allclose(mode.flatten(), mean, atol=1e-7)
    draws = data_step(
        measured, x_0, covariance, LEVEL, image_noise=z[0], measurement_noise=z[1], **options
    ).flatten(1)
    assert torch.allclose(draws.mean(0), mean, atol=5 * float(exact.diagonal().max() / rows) ** 0.5)
    assert torch.allclose(draws.T.cov(), exact, atol=6 * float(exact.diagonal().max()) / rows**0.5)


def test_complex_measurements_are_perturbed_by_their_own_noise() -> None:
    rows = 4000
    x = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    fourier = lavps.operators.as_operator(
        lambda x: torch.fft.fft2(x.to(torch.complex128), norm="ortho"), x.shape[1:], True
    )
    one = lavps.InverseProblem(
        torch.zeros(1, 1, 4, 4, dtype=torch.complex128), fourier, lavps.GaussianNoise(0.3)
    )
    measured, x_0 = one.repeat(rows), x.expand(rows, -1, -1, -1)
    generator = torch.Generator().manual_seed(3)
    image_noise = torch.randn(x_0.shape, generator=generator, dtype=torch.float64)
    noise = torch.randn(measured.y.shape, generator=generator, dtype=torch.complex128)
    draws = data_step(measured, x_0, Isotropic(), LEVEL, image_noise=image_noise, measurement_noise=noise)
    # A unitary transform of real pixels: two real measurements of variance 0.045 each, of which one counts.
    assert float(draws.var()) == pytest.approx(1 / (1 / 0.16 + 2 / 0.09), rel=0.02)


@pytest.mark.parametrize("name", ["pool", "periodic blur", "blur"])
def test_a_map_of_the_noise_is_solved_at_the_highest_noise_level(name: str) -> None:
    operator, random = OPERATORS[name], torch.Generator().manual_seed(8)
    x = torch.randn(2, 3, 16, 16, generator=random, dtype=torch.float64)
    shape = (1, *operator(x).shape[1:])
    noise = lavps.GaussianNoise(0.1 + 0.1 * torch.rand(shape, generator=random, dtype=torch.float64))
    measured = lavps.InverseProblem.simulate(x, operator, noise)
    covariance, level = Stationary(), torch.tensor(torch.inf, dtype=torch.float64)
    found = data_step(measured, 0.0 * x, covariance, level, solver_steps=200, tolerance=1e-8)
    # At the mode, x = C A^T W (y - A x).
    expected = covariance.product(level, x)(measured.likelihood_score(found))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("exponent", [1.0, 2.5])
def test_the_spectrum_is_recovered_from_images(exponent: float) -> None:
    like = torch.zeros(400, 3, 32, 32)
    truth = Stationary(0.2, exponent, 0.1)
    z = torch.randn(like.shape, generator=torch.Generator().manual_seed(4))
    found = Stationary.fit(truth.product(torch.tensor(torch.inf), like, 0.5)(z))
    assert found.exponent == pytest.approx(exponent, abs=0.05)
    assert found.variance == pytest.approx(0.2, rel=0.1)
    assert found.chroma == pytest.approx(0.1, rel=0.1)


def test_a_nonlinear_operator_is_linearized_again_at_every_step() -> None:
    x = 0.8 * torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    measured = lavps.InverseProblem.simulate(x, HDRClip(), lavps.GaussianNoise(0.05))
    covariance, level = Isotropic(variance=0.5), torch.tensor(torch.inf)

    def objective(image: Tensor) -> Tensor:
        return -measured.log_likelihood(image) + (image - x_0).square().flatten(1).sum(1) / 2 / 0.5

    x_0 = 0.3 * x
    results = [data_step(measured, x_0, covariance, level, linearizations=n) for n in (1, 2, 4)]
    losses = [objective(image) for image in (x_0, *results)]
    assert all(bool((after <= before + 1e-6).all()) for before, after in pairwise(losses))


@pytest.mark.parametrize("rescaled", [False, True])
def test_a_clipped_estimate_of_an_unclipped_measurement_moves(rescaled: bool) -> None:
    # The derivative of a clipped pixel is 0. Brute force: the mode of one pixel on a grid, std about 0.025.
    y = torch.tensor([0.2, -0.6, 0.95, 1.1]).double().reshape(1, 1, 1, 4)
    x_0, variance, std = torch.full_like(y, 0.9), 0.1, 0.05
    grid = torch.linspace(-3.0, 3.0, 60_001, dtype=torch.float64)
    fit = ((2.0 * grid).clamp(-1.0, 1.0) - y.reshape(4, 1)).square() / std**2
    mode = grid[(fit + (grid - 0.9).square() / variance).argmin(1)].reshape(y.shape)
    operator: lavps.operators.Operator = HDRClip()
    if rescaled:
        operator, x_0 = lavps.operators.RescaledOperator(operator, 0.0, 1.0), 2.0 * x_0 - 1.0
        variance *= 4.0
    measured = lavps.InverseProblem(y, operator, lavps.GaussianNoise(std))
    found = data_step(measured, x_0, Isotropic(variance=variance), torch.tensor(torch.inf))
    torch.testing.assert_close((found + 1.0) / 2.0 if rescaled else found, mode, atol=5e-3, rtol=0.0)


@pytest.mark.parametrize("wrong", [{"strength": 0.0}, {"variance": -1.0}])
def test_an_impossible_isotropic_covariance_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        Isotropic(**wrong)


@pytest.mark.parametrize("wrong", [{"variance": 0.0}, {"exponent": -1.0}, {"chroma": 0.6}])
def test_an_impossible_spectrum_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Stationary needs"):
        Stationary(**wrong)


def test_a_measured_identity_pulls_towards_the_measurement() -> None:
    measured = lavps.InverseProblem(torch.ones(1, 1, 4, 4), Identity(), lavps.GaussianNoise(1.0))
    x_0 = torch.zeros(1, 1, 4, 4)
    moved = data_step(measured, x_0, Isotropic(variance=1.0), torch.tensor(torch.inf))
    assert moved.mean().item() == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "noise", "noise_level"),
    [
        *[(name, noise, 3.0) for name in ("identity", "pool", "blur", "a hole") for noise in (0.01, 0.1)],
        ("half of the pixels", 0.1, 1.0),
        *[
            (f"{share} of the pixels", noise, level)
            for share, noise, level in product(("half", "a sixth"), (0.02, 0.1), (3.0, torch.inf))
        ],
        ("a hole", 0.02, torch.inf),
        ("half of the pixels and a hole", 0.02, torch.inf),
    ],
)
def test_thirty_steps_solve_it_for_a_large_image(name: str, noise: float, noise_level: float) -> None:
    """More steps for masks at a high noise level; at an infinite one it is the first draw of a schedule."""
    side, random = 96, torch.Generator().manual_seed(2)
    hole = torch.ones(1, side, side, dtype=torch.bool)
    hole[:, 30:60, 30:60] = False
    operator = {
        "identity": Identity(),
        "pool": AveragePool(4),
        "half of the pixels": Mask(torch.rand(1, side, side, generator=random) < 0.5),
        "a sixth of the pixels": Mask(torch.rand(1, side, side, generator=random) < 1 / 6),
        "half of the pixels and a hole": Mask(hole & (torch.rand(1, side, side, generator=random) < 0.5)),
        "a hole": Mask(hole),
        "blur": OPERATORS["blur"],
    }[name]
    spectrum, level = Stationary(), torch.tensor(noise_level, dtype=torch.float64)
    white = torch.randn(1, 3, side, side, generator=random)
    x = spectrum.product(torch.tensor(torch.inf), white, 0.5)(white)
    measured = lavps.InverseProblem.simulate(x, operator, noise)
    x_0 = 0.9 * x
    found = data_step(measured, x_0, spectrum, level)
    exact = data_step(
        measured.to(torch.float64), x_0.double(), spectrum, level, solver_steps=1500, tolerance=1e-9
    )
    error = (found - exact).square().mean().sqrt() / (exact - x_0).square().mean().sqrt()
    assert error < (0.05 if name == "a sixth of the pixels" else 0.03)


@pytest.mark.parametrize("solver_steps", [2, 30])
def test_scattered_pixels_and_holes_in_one_batch_are_solved_row_by_row(solver_steps: int) -> None:
    random = torch.Generator().manual_seed(6)
    hole = torch.ones(1, 64, 64, dtype=torch.bool)
    hole[:, 16:48, 16:48] = False
    masks = torch.stack([hole, torch.rand(1, 64, 64, generator=random) < 0.5, hole.flip(1)])
    x = Stationary().product(torch.tensor(torch.inf), torch.zeros(3, 3, 64, 64), 0.5)(
        torch.randn(3, 3, 64, 64, generator=random)
    )
    measured = lavps.InverseProblem.simulate(x, Mask(masks, batched=True), 0.02)
    args = Stationary(), torch.tensor([torch.inf, torch.inf, 0.9], dtype=torch.float64)
    batch = data_step(measured, 0.0 * x, *args, solver_steps=solver_steps)
    for row in range(3):
        alone = data_step(
            measured[row], 0.0 * x[row : row + 1], args[0], args[1][row], solver_steps=solver_steps
        )
        torch.testing.assert_close(batch[row : row + 1], alone, atol=1e-5, rtol=0.0)
        known = masks[row].expand_as(x[row])
        error = float((batch[row] - x[row])[known].square().mean().sqrt())
        assert error < 0.03 or solver_steps == 2  # the noise of y is 0.02


@EACH
@pytest.mark.parametrize("spatial", [(12,), (8, 12), (4, 6, 8)])
@pytest.mark.parametrize("name", ["identity", "pool", "periodic blur"])
def test_one_step_solves_periodic_convolutions(
    covariance: Covariance, spatial: tuple[int, ...], name: str
) -> None:
    """Whatever the number of axes, and with a noise level and a kernel of its own for every row."""
    random = torch.Generator().manual_seed(3)
    kernels = torch.rand(2, *[3] * len(spatial), generator=random, dtype=torch.float64)
    blur = Blur(kernels, "circular", batched=True)
    operator = {"identity": Identity(), "pool": AveragePool(2), "periodic blur": blur}[name]
    x = torch.randn(2, 3, *spatial, generator=random, dtype=torch.float64)
    std, level = torch.tensor([0.1, 0.3]), torch.tensor([0.2, 1.5], dtype=torch.float64)
    measured = lavps.InverseProblem.simulate(x, operator, lavps.GaussianNoise(std))
    found = data_step(measured, 0.5 * x, covariance, level, solver_steps=1)
    for row in range(2):
        like = x[row : row + 1].expand(x[0].numel(), *x.shape[1:])
        dense = matrix(covariance.product(level[row], like), like)
        a = measured[row].operator.matrix(x.shape[1:])
        gain = dense @ a.T @ torch.linalg.inv(a @ dense @ a.T + std[row] ** 2 * torch.eye(len(a)))
        mean = 0.5 * x[row].flatten() + gain @ (measured.y[row].flatten() - a @ (0.5 * x[row].flatten()))
        assert torch.allclose(found[row].flatten(), mean, atol=1e-6)


def test_a_map_of_noise_is_weighed_pixel_by_pixel() -> None:
    random = torch.Generator().manual_seed(4)
    x, std = (
        torch.randn(1, 3, 8, 8, generator=random).double(),
        0.05 + torch.rand(1, 3, 8, 8, generator=random),
    )
    measured = lavps.InverseProblem.simulate(x, Identity(), lavps.GaussianNoise(std.double()))
    covariance, options = Stationary(0.3, 2.0), {"solver_steps": 100, "tolerance": 1e-10}
    found = data_step(measured, 0.5 * x, covariance, LEVEL, **options)
    dense = matrix(covariance.product(LEVEL, x.expand(192, -1, -1, -1)), x)
    gain = dense @ torch.linalg.inv(dense + torch.diag(std.double().flatten() ** 2))
    expected = 0.5 * x.flatten() + gain @ (measured.y - 0.5 * x).flatten()
    assert torch.allclose(found.flatten(), expected, atol=1e-7)


def test_a_gradient_passes_through_the_data_step() -> None:
    measured = problem(OPERATORS["pool"], 1)
    level = LEVEL.clone().requires_grad_()
    x_0 = torch.full((1, *SHAPE), 0.2, dtype=torch.float64, requires_grad=True)

    def moved(image: Tensor, noise_level: Tensor) -> Tensor:
        return data_step(measured, image, Stationary(0.3, 2.0), noise_level)

    assert torch.autograd.gradcheck(moved, (x_0, level))
