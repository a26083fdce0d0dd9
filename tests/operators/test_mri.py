"""Magnetic resonance imaging: the operator by hand, and samplers against the exact posterior."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lavps
from lavps.guidance import Gradient
from lavps.operators import MRI

SIDE = 6


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def multi_coil() -> tuple[lavps.GaussianPrior, lavps.InverseProblem]:
    """Four coils around a complex image of smooth Gaussian statistics, every second line skipped."""
    grid = torch.linspace(-1, 1, SIDE, dtype=torch.float64)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    corners = torch.tensor([[-1, -1], [-1, 1], [1, -1], [1, 1]], dtype=torch.float64)
    distance = (y - corners[:, 0, None, None]) ** 2 + (x - corners[:, 1, None, None]) ** 2
    coils = torch.polar((-distance / 2).exp(), 0.7 * distance)
    mask = torch.ones(SIDE, SIDE, dtype=torch.bool)
    mask[::2] = False

    place = torch.stack([y, x], -1).reshape(-1, 2)
    smooth = (-torch.cdist(place, place).square()).exp() + 0.01 * torch.eye(SIDE**2)
    prior = lavps.GaussianPrior(torch.zeros(2, SIDE, SIDE), 0.1 * torch.block_diag(smooth, smooth))
    truth = prior.sample(2, seed=1)
    operator = MRI(mask, coils, complex_image=True)
    return prior, lavps.InverseProblem.simulate(truth, operator, lavps.GaussianNoise(0.15))


def test_samplers_meet_the_exact_posterior_of_a_multi_coil_scan() -> None:
    prior, problem = multi_coil()
    assert problem.y.is_complex()
    assert problem.y.shape == (2, 4, SIDE, SIDE)
    posterior = lavps.MMPS(prior, num_steps=40, grid_power=2.0, solver_steps=6).sample(problem, 64)
    for item, exact in enumerate(lavps.exact_posterior(prior, problem)):
        mean, spread = exact.means[0], exact.covariances[0].diagonal().sqrt()
        error = (posterior.mean[item].flatten() - mean.flatten()).abs() / spread
        assert float(error.mean()) < 0.14, "in units of the posterior's own spread; 64 samples alone give .1"
        # 40 steps of DDIM are a little narrow: .92 at 80.
        assert float((posterior.std[item].flatten() / spread).mean()) == pytest.approx(0.88, abs=0.06)
        assert float(spread.mean()) < 0.5 * float(prior.covariances[0].diagonal().sqrt().mean())


def test_mgdm_explains_a_multi_coil_scan() -> None:
    prior, problem = multi_coil()
    samples = lavps.MGDM(prior, num_steps=40, guidance=Gradient(steps=5)).sample(problem).samples
    assert float(problem.chi_square(samples[:, 0]).max()) < 1.5
    assert float(problem.chi_square(torch.zeros_like(samples[:, 0])).min()) > 2.5


def test_unsampled_frequencies_tell_nothing() -> None:
    prior, problem = multi_coil()
    seen = problem.operator.observed(problem.y)
    assert seen is not None
    painted = problem.y + (1 - seen) * 7.0
    again = lavps.InverseProblem(painted, problem.operator, problem.noise)
    x = prior.sample(2, seed=9)
    assert torch.equal(again.log_likelihood(x), problem.log_likelihood(x))


@pytest.mark.parametrize("shape", [(6, 5), (7,), (2, 3, 4)])
def test_it_is_a_centred_orthonormal_transform_of_what_each_coil_sees(shape: tuple[int, ...]) -> None:
    coils = torch.complex(numbers(3, *shape), numbers(3, *shape, seed=1))
    mask = numbers(*shape, seed=2) > 0
    x = numbers(2, 2, *shape, seed=3)
    y = MRI(mask, coils, complex_image=True)(x)
    positions = torch.cartesian_prod(*[torch.arange(n) - n // 2 for n in shape]).reshape(-1, len(shape))
    phases = (positions.double() / torch.tensor(shape)) @ positions.double().T
    fourier = torch.polar(torch.ones_like(phases), -2 * torch.pi * phases) / phases.shape[0] ** 0.5
    image = torch.complex(x[:, 0], x[:, 1]).flatten(1)
    for coil in range(3):
        expected = (fourier @ (coils[coil].flatten() * image).T).T * mask.flatten()
        torch.testing.assert_close(y[:, coil].flatten(1), expected)


def test_a_real_image_is_a_complex_one_without_imaginary_part() -> None:
    coils = torch.complex(numbers(3, 4, 5), numbers(3, 4, 5, seed=1))
    mask, x = numbers(4, 5, seed=2) > 0, numbers(2, 1, 4, 5, seed=3)
    real, both = MRI(mask, coils), MRI(mask, coils, complex_image=True)
    torch.testing.assert_close(real(x), both(torch.cat([x, 0 * x], 1)))
    torch.testing.assert_close(real.adjoint(real(x)), both.adjoint(real(x))[:, :1])


def test_every_item_has_its_mask_and_coils() -> None:
    coils = torch.complex(numbers(3, 2, 4, 5), numbers(3, 2, 4, 5, seed=1))
    masks, x = numbers(3, 4, 5, seed=2) > 0, numbers(3, 1, 4, 5, seed=3)
    together = MRI(masks, coils, batched=True)
    assert together.batch == 3
    for item in range(3):
        alone = MRI(masks[item], coils[item])(x[item : item + 1])
        torch.testing.assert_close(together(x)[item : item + 1], alone)


def test_what_does_not_fit_is_refused() -> None:
    mask = torch.ones(4, 5)
    with pytest.raises(ValueError, match="needs coils"):
        MRI(mask, torch.ones(3, 5, 5, dtype=torch.complex64))
    with pytest.raises(ValueError, match="masks for 2 items"):
        MRI(torch.ones(2, 4, 5), torch.ones(3, 1, 4, 5, dtype=torch.complex64), batched=True)
    with pytest.raises(ValueError, match="nothing between"):
        MRI(0.5 * mask)
    with pytest.raises(ValueError, match=r"needs images \(1, 4, 5\)"):
        MRI(mask)(torch.zeros(1, 2, 4, 5))


def test_it_has_its_own_tensors() -> None:
    mask = torch.ones(4, 5, dtype=torch.bool)
    operator = MRI(mask)
    mask[0] = False
    assert bool(operator.mask.all()), "the operator has a copy"
    x = numbers(1, 1, 4, 5)
    assert torch.equal(operator.to("cpu", torch.float32)(x), operator(x))
    assert repr(operator) == "MRI((4, 5), 1 coils, complex_image=False)"
