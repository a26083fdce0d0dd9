"""Operators and denoisers from elsewhere, by their form alone: physics, NumPy functions, foreign denoisers.

The physics and denoisers here are small ones in the form of deepinv and azula, as a user may write them;
``tests/interop`` has the same against the libraries themselves.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lavps
from lavps.guidance import Amortized, Gradient
from lavps.operators import (
    Blur,
    CallableOperator,
    NotDifferentiableError,
    PhysicsOperator,
    RescaledOperator,
    as_operator,
    check,
    from_numpy,
)
from lavps.priors import AzulaDenoiser, AzulaPrior, DeepinvDenoiser, from_deepinv
from lavps.problem import PixelRangeWarning
from lavps.variational import Context, DiagonalGaussian
from support.other_libraries import Azula, Masking, shrink
from support.problems import images, network_prior

SHAPE = (1, 4, 4)


class Scan(Masking):
    """A complex image and a complex measurement, as two real channels each."""

    def to_torch_complex(self, x: Tensor) -> Tensor:
        return torch.complex(x[:, 0], x[:, 1])


class Squares(nn.Module):
    """A nonlinear physics without parameters."""

    noise_model = None
    img_size = SHAPE

    def A(self, x: Tensor) -> Tensor:  # noqa: N802
        return x.square()


def masks(rows: int) -> Tensor:
    return (torch.rand(rows, *SHAPE, generator=torch.Generator().manual_seed(0)) < 0.5).float()


class TestPhysics:
    def test_it_works_as_it_is(self) -> None:
        physics, x = Masking(masks(1)), images(3, SHAPE)
        problem = lavps.InverseProblem(physics.A(x), physics)
        assert problem.operator.linear
        assert problem.image_shape == SHAPE
        assert float(problem.noise.std) == pytest.approx(0.1)
        own = lavps.InverseProblem(physics.A(x), lavps.operators.Mask(masks(1)[0]), lavps.GaussianNoise(0.1))
        for z in (x, images(3, SHAPE, seed=1)):
            torch.testing.assert_close(problem.log_likelihood(z), own.log_likelihood(z))
            torch.testing.assert_close(problem.chi_square(z), own.chi_square(z))
        assert check(problem.operator, SHAPE).ok

    def test_a_mask_and_a_noise_level_per_item(self) -> None:
        sigma = torch.tensor([0.1, 0.2, 0.3])
        physics, x = Masking(masks(3), sigma), images(3, SHAPE)
        problem = lavps.InverseProblem(physics.A(x), physics)
        assert problem.operator.batch == 3
        values = problem.log_likelihood(-x)
        turned = torch.tensor([2, 0])
        torch.testing.assert_close(problem.select(turned).log_likelihood(-x[turned]), values[turned])
        torch.testing.assert_close(problem.operator.select(turned).noise_std, sigma[turned])
        with pytest.raises(ValueError, match="but the batch has 2"):
            problem.operator(x[:2])

    def test_it_is_immutable(self) -> None:
        physics, x = Masking(masks(1)), images(2, SHAPE)
        operator = as_operator(physics)
        before = operator(x)
        physics.mask = torch.zeros(1, *SHAPE)
        assert torch.equal(operator(x), before)
        assert not hasattr(operator.physics, "last"), "a call leaves nothing behind"

    def test_complex_measurements_of_two_channels(self) -> None:
        physics, x = Scan(torch.ones(1, 2, 3, 3)), images(2, (2, 3, 3))
        pairs = lavps.InverseProblem(physics.A(x), physics)
        problem = lavps.InverseProblem(torch.complex(x[:, 0], x[:, 1]), physics)
        assert float(problem.noise.std) == pytest.approx(0.1 * 2**0.5)
        z = images(2, (2, 3, 3), seed=1)
        torch.testing.assert_close(problem.log_likelihood(z), pairs.log_likelihood(z))
        torch.testing.assert_close(problem.operator.adjoint(problem.y), physics.A_adjoint(x))

    def test_a_nonlinear_physics_is_differentiated_by_torch(self) -> None:
        x = images(2, SHAPE)
        problem = lavps.InverseProblem(x.square(), Squares(), lavps.GaussianNoise(0.1))
        assert not problem.operator.linear
        torch.testing.assert_close(problem.operator.vjp(x, torch.ones_like(x)), 2 * x)
        assert check(problem.operator, SHAPE).ok

    def test_precision_is_the_physics_own_and_the_image_keeps_its_own(self) -> None:
        operator = as_operator(Masking(masks(1)))
        assert operator.to(torch.float64, "cpu")(images(1, SHAPE).double()).dtype == torch.float64

    def test_what_is_missing_is_asked_for(self) -> None:
        with pytest.raises(ValueError, match="states no Gaussian noise: pass noise="):
            lavps.InverseProblem(images(1, SHAPE), Masking(masks(1), None))
        silent = Squares()
        silent.img_size = None
        with pytest.raises(ValueError, match="pass in_shape"):
            as_operator(silent).input_shape(SHAPE)
        assert as_operator(silent, SHAPE).input_shape(SHAPE) == SHAPE
        with pytest.raises(TypeError, match="has A"):
            PhysicsOperator(torch.sin)


class TestRange:
    def test_the_measurement_of_images_in_0_1_is_a_linear_problem(self) -> None:
        physics, x = Masking(masks(2)), images(2, SHAPE).clamp(-1, 1)
        y = physics.A((x + 1) / 2) + 0.1 * images(2, SHAPE, seed=2) * physics.mask
        problem = lavps.InverseProblem(y, RescaledOperator(physics, 0, 1))
        assert problem.operator.linear
        expected = lavps.GaussianNoise(0.1).log_prob(y, physics.A((x + 1) / 2)) * physics.mask
        torch.testing.assert_close(problem.log_likelihood(x), expected.flatten(1).sum(1))
        torch.testing.assert_close(problem[1].log_likelihood(x[1:]), problem.log_likelihood(x)[1:])

    def test_relabelling_the_range_leaves_the_posterior_where_it_is(self) -> None:
        """The same scene in [-1, 1] and in [0, 255], the noise in the units of each measurement."""
        operator, x = Blur(torch.tensor([[0.2, 0.5, 0.3]]), "circular"), images(2, SHAPE).clamp(-1, 1)
        prior = lavps.GaussianPrior(torch.zeros(SHAPE), 0.25 * torch.eye(16))
        noise = 0.05 * images(2, SHAPE, seed=3)
        plain = lavps.InverseProblem(operator(x) + noise, operator, lavps.GaussianNoise(0.05))
        wide = lavps.InverseProblem(
            operator(127.5 * (x + 1)) + 127.5 * noise,
            RescaledOperator(operator, 0, 255),
            lavps.GaussianNoise(127.5 * 0.05),
        )
        for one, other in zip(
            lavps.exact_posterior(prior, plain), lavps.exact_posterior(prior, wide), strict=True
        ):
            torch.testing.assert_close(one.means, other.means, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(one.covariances, other.covariances, rtol=1e-4, atol=1e-6)

    def test_counts_keep_their_origin(self) -> None:
        problem = lavps.InverseProblem(
            torch.full((1, *SHAPE), 3.0),
            RescaledOperator(Blur(torch.ones(1, 1)), 0, 1),
            lavps.PoissonNoise(5.0),
        )
        assert not problem.operator.linear
        assert torch.equal(problem.y, torch.full((1, *SHAPE), 3.0))

    def test_measurements_of_images_in_0_1_are_noticed(self) -> None:
        physics, x = Masking(torch.ones(1, *SHAPE), 0.02), images(2, SHAPE).clamp(-1, 1)
        with pytest.warns(PixelRangeWarning, match=r"RescaledOperator\(physics, 0, 1\)"):
            lavps.InverseProblem((x + 1) / 2, physics)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            lavps.InverseProblem(x, physics)
            lavps.InverseProblem((x + 1) / 2, RescaledOperator(physics, 0, 1))
            lavps.InverseProblem((x + 1) / 2, as_operator(physics))

    def test_an_empty_range_is_refused(self) -> None:
        with pytest.raises(ValueError, match="low < high"):
            RescaledOperator(Squares(), 1, 0)


def simulator(x: np.ndarray) -> np.ndarray:
    return np.tanh(2 * x)


def warm_start(context: Context) -> DiagonalGaussian:
    """A model that does not differentiate A."""
    return DiagonalGaussian(0.9 * context.bridge.mean, context.bridge.log_std)


class Reader:
    """A conditional denoiser that reads y itself."""

    def __init__(self) -> None:
        self.schedule = lavps.VPLinear()

    def denoise(self, x_t: Tensor, t: Tensor, problem: lavps.InverseProblem) -> Tensor:
        return 0.5 * problem.y + 0.0 * x_t


class TestBlackBox:
    @pytest.mark.parametrize(
        "operator",
        [
            from_numpy(simulator, SHAPE),
            CallableOperator(lambda x: torch.from_numpy(simulator(x.numpy())), SHAPE, linear=False),
            CallableOperator(lambda x: torch.tanh(2 * x.detach()), SHAPE, linear=False),
        ],
        ids=["NumPy", "NumPy inside", "detached"],
    )
    def test_without_a_gradient_the_message_tells_what_remains_and_it_does(self, operator) -> None:
        prior = network_prior()
        problem = lavps.InverseProblem.simulate(images(2, SHAPE), operator, lavps.GaussianNoise(0.1))
        for sampler in (lavps.MGDM(prior, num_steps=4), lavps.DPS(prior, num_steps=2), lavps.MMPS(prior)):
            with pytest.raises(
                NotDifferentiableError,
                match=r"Without a gradient, use .*Amortized\(model, steps=0\).*Supervised",
            ):
                sampler.sample(problem)
        remaining = (
            lavps.MGDM(prior, num_steps=4, guidance=Amortized(warm_start, steps=0)),
            lavps.Supervised(Reader(), num_steps=3),
        )
        for sampler in remaining:
            assert sampler.sample(problem).samples.shape == (2, 1, *SHAPE)

    def test_a_numpy_function_with_its_vjp_is_as_good_as_torch(self) -> None:
        black_box = from_numpy(simulator, SHAPE, vjp=lambda x, v: 2 * v / np.cosh(2 * x) ** 2)
        plain = CallableOperator(lambda x: torch.tanh(2 * x), SHAPE, linear=False)
        noise, prior = lavps.GaussianNoise(0.1), network_prior()
        problems = [lavps.InverseProblem.simulate(images(2, SHAPE), op, noise) for op in (black_box, plain)]
        for sampler in (lavps.MGDM(prior, num_steps=5), lavps.DPS(prior, num_steps=4)):
            found, expected = (sampler.sample(problem).samples for problem in problems)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert check(black_box, SHAPE).ok

    def test_its_jvp_does_not_depend_on_the_size_of_the_direction(self) -> None:
        black_box = from_numpy(simulator, SHAPE, vjp=lambda x, v: 2 * v / np.cosh(2 * x) ** 2)
        x, u = images(2, SHAPE).double(), images(2, SHAPE, seed=1).double()
        for size in (0.0, 1e-8, 1.0, 1e8):
            expected = 2 * size * u / torch.cosh(2 * x) ** 2
            torch.testing.assert_close(black_box.jvp(x, size * u), expected, rtol=1e-8, atol=1e-16)

    def test_a_complex_linear_function_with_its_adjoint(self) -> None:
        fourier = from_numpy(
            lambda x: np.fft.fft2(x, norm="ortho"),
            SHAPE,
            linear=True,
            adjoint=lambda y: np.fft.ifft2(y, norm="ortho").real,
        )
        assert check(fourier, SHAPE).ok
        x = images(2, SHAPE)
        torch.testing.assert_close(fourier(x), torch.fft.fft2(x, norm="ortho"))
        problem = lavps.InverseProblem(fourier(x), fourier, lavps.GaussianNoise(0.1))
        leaf = torch.zeros_like(x).requires_grad_()
        (gradient,) = torch.autograd.grad(problem.log_likelihood(leaf).sum(), leaf)
        torch.testing.assert_close(gradient, 2 * x / 0.01)

    def test_other_errors_of_a_function_are_its_own(self) -> None:
        def broken(x: Tensor) -> Tensor:
            raise RuntimeError("no licence")

        with pytest.raises(RuntimeError, match="no licence"):
            CallableOperator(broken, SHAPE, linear=False).vjp(images(1, SHAPE), images(1, SHAPE))

    def test_a_linear_function_is_asked_for_its_adjoint(self) -> None:
        with pytest.raises(ValueError, match="pass adjoint= instead of vjp="):
            CallableOperator(torch.sin, SHAPE, linear=True, vjp=lambda x, v: v)


PRIORS = [lavps.VPLinear(), lavps.Cosine(), lavps.Flow(), lavps.VE()]


class TestDenoisers:
    x = images(4, SHAPE).double()
    exact = staticmethod(lambda s: lavps.GaussianPrior(torch.zeros(SHAPE), 0.16 * torch.eye(16), s))

    def test_deepinvs_is_a_prior(self) -> None:
        prior = from_deepinv(shrink)
        for t in (torch.tensor(0.4), torch.tensor([0.1, 0.3, 0.5, 1.0])):
            expected = self.exact(lavps.VE()).denoise(self.x, t.double())
            torch.testing.assert_close(prior.denoise(self.x, t.double()), expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("schedule", PRIORS, ids=repr)
    def test_a_prior_is_a_denoiser_of_deepinv(self, schedule: lavps.schedule.Schedule) -> None:
        denoiser, levels = DeepinvDenoiser(self.exact(schedule)), torch.tensor([0.01, 0.1, 1.0, 5.0])
        for sigma in (0.3, levels, levels.reshape(-1, 1, 1, 1)):
            torch.testing.assert_close(denoiser(self.x, sigma), shrink(self.x, sigma), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("schedule", PRIORS, ids=repr)
    def test_azulas_is_a_prior(self, schedule: lavps.schedule.Schedule) -> None:
        prior, exact = AzulaPrior(Azula(), schedule), self.exact(schedule)
        for t in (torch.tensor(0.4), torch.tensor([0.1, 0.3, 0.5, 0.8])):
            torch.testing.assert_close(prior.denoise(self.x, t.double()), exact.denoise(self.x, t.double()))

    def test_something_without_a_schedule_is_no_denoiser_of_azula(self) -> None:
        with pytest.raises(TypeError, match="no schedule"):
            AzulaPrior(shrink)

    def test_azulas_is_read_no_further_than_it_goes(self) -> None:
        prior = AzulaPrior(Azula(), lavps.Flow())
        for t in (0.0, 1.0):
            estimate = prior.denoise(self.x, torch.tensor(t, dtype=torch.float64))
            assert bool(estimate.isfinite().all())

    @pytest.mark.parametrize("schedule", PRIORS, ids=repr)
    def test_a_prior_is_a_denoiser_of_azula_and_back(self, schedule: lavps.schedule.Schedule) -> None:
        exact = self.exact(schedule)
        denoiser, t = AzulaDenoiser(exact), torch.tensor([0.1, 0.3, 0.5, 0.8], dtype=torch.float64)
        alpha, sigma = denoiser.schedule(t.float())
        assert alpha.dtype == sigma.dtype == torch.float32
        torch.testing.assert_close(denoiser(self.x, t, label=None).mean, exact.denoise(self.x, t))
        torch.testing.assert_close(
            AzulaPrior(denoiser, schedule).denoise(self.x, t), exact.denoise(self.x, t)
        )


def attending(x: Tensor) -> Tensor:
    """Fused attention among the pixels of an image: torch differentiates it once, not twice."""
    rows = x.flatten(2).transpose(1, 2)[:, None].repeat_interleave(8, -1)
    return nn.functional.scaled_dot_product_attention(rows, rows, rows)[..., 0]


def test_where_torch_has_no_second_derivative_the_jvp_is_a_difference() -> None:
    operator = CallableOperator(attending, SHAPE, linear=False)
    x, u, v = images(2, SHAPE), images(2, SHAPE, seed=1), attending(images(2, SHAPE, seed=2))
    forward, backward = operator.jvp(x, u), operator.vjp(x, v)
    torch.testing.assert_close((forward * v).sum(), (backward * u).sum(), rtol=1e-2, atol=1e-3)
    problem = lavps.InverseProblem(attending(x), operator, lavps.GaussianNoise(0.1))
    sampler = lavps.MGDM(network_prior(), num_steps=4, guidance=Gradient(3, lavps.WhitenedGradient()))
    assert sampler.sample(problem).samples is not None
