"""Against deepinv itself: its physics in our problems, denoisers both ways."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("deepinv")

import deepinv
from deepinv import physics as P
from deepinv.optim.data_fidelity import L2

import lavps
from lavps.data_step import Isotropic
from lavps.guidance import Gradient
from lavps.operators import MRI, PhysicsOperator, RescaledOperator, as_operator, check
from lavps.priors import DeepinvDenoiser, from_deepinv
from lavps.problem import PixelRangeWarning
from lavps.random import NoiseStreams, Purpose
from support.problems import network_prior

SIDE, ROWS, SIGMA = 12, 3, 0.05
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def kernels(rows: int) -> Tensor:
    kernel = uniform(rows, 1, 3, 5)
    return kernel / kernel.sum((-1, -2), keepdim=True)


def mask(*shape: int) -> Tensor:
    return (uniform(*shape, seed=3) > 0.5).float()


def coils(rows: int) -> Tensor:
    shape = (rows, 4, SIDE, SIDE)
    return torch.complex(uniform(*shape, seed=4), uniform(*shape, seed=5) - 0.5)


def noisy() -> P.GaussianNoise:
    return P.GaussianNoise(SIGMA)


IMAGE = (1, SIDE, SIDE)


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], P.Physics]
    channels: int = 1
    rows: int = 1
    linear: bool = True


CASES = [
    Case("blur", lambda: P.Blur(kernels(1), padding="circular", noise_model=noisy())),
    Case("blur valid", lambda: P.Blur(kernels(1), padding="valid", noise_model=noisy())),
    Case("blurs", lambda: P.Blur(kernels(ROWS), padding="reflect", noise_model=noisy()), rows=ROWS),
    Case("blur by FFT", lambda: P.BlurFFT(IMAGE, filter=kernels(1), noise_model=noisy())),
    Case(
        "downsampling",
        lambda: P.Downsampling(IMAGE, filter="gaussian", factor=2, padding="circular", noise_model=noisy()),
    ),
    Case("inpainting", lambda: P.Inpainting(IMAGE, mask=mask(*IMAGE), noise_model=noisy())),
    Case("inpaintings", lambda: P.Inpainting(IMAGE, mask=mask(ROWS, *IMAGE), noise_model=noisy()), rows=ROWS),
    Case("MRI", lambda: P.MRI(mask=mask(SIDE, SIDE), noise_model=noisy()), 2),
    Case("MRIs", lambda: P.MRI(mask=mask(ROWS, *IMAGE), noise_model=noisy()), 2, ROWS),
    Case(
        "multi-coil MRI",
        lambda: P.MultiCoilMRI(mask(SIDE, SIDE), coils(1), (SIDE, SIDE), noise_model=noisy()),
        2,
    ),
    Case(
        "multi-coil MRIs",
        lambda: P.MultiCoilMRI(mask(SIDE, SIDE), coils(ROWS), (SIDE, SIDE), noise_model=noisy()),
        2,
        ROWS,
    ),
    Case("tomography", lambda: P.Tomography(7, SIDE, normalize=True, noise_model=noisy())),
    Case("compressed sensing", lambda: P.CompressedSensing(40, IMAGE, noise_model=noisy())),
    Case(
        "composition",
        lambda: (
            P.Blur(kernels(1), padding="circular", noise_model=noisy()) * P.Inpainting(IMAGE, mask(*IMAGE))
        ),
    ),
    Case("phase retrieval", lambda: P.RandomPhaseRetrieval(300, IMAGE, noise_model=noisy()), linear=False),
]
SCAN = next(case for case in CASES if case.name == "MRI")
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def images(case: Case, seed: int = 7) -> Tensor:
    return 2.0 * uniform(ROWS, case.channels, SIDE, SIDE, seed=seed) - 1.0


def theirs(physics: P.Physics, x: Tensor) -> Tensor:
    """An image as the physics wants it: deepinv's random phase retrieval takes complex ones only."""
    return x.to(physics.dtype) if isinstance(physics, P.PhaseRetrieval) else x


@every_case
class TestPhysics:
    def test_measurement_and_adjoint_are_deepinvs(self, case: Case) -> None:
        physics, x = case.make(), images(case)
        operator = as_operator(physics)
        y = operator(x)
        assert isinstance(operator, PhysicsOperator)
        assert operator.batch == case.rows
        assert operator.linear == case.linear
        assert operator.input_shape(y.shape[1:]) == tuple(x.shape[1:])
        torch.testing.assert_close(y, physics.A(theirs(physics, x)), **CLOSE)
        v = y.flip(-1)
        if case.linear:
            torch.testing.assert_close(operator.adjoint(v), physics.A_adjoint(v), **CLOSE)
        product = physics.A_vjp(theirs(physics, x), v)
        torch.testing.assert_close(
            operator.vjp(x, v), product.real if product.is_complex() else product, **CLOSE
        )

    def test_the_likelihoods_gradient_is_that_of_deepinvs_data_fidelity(self, case: Case) -> None:
        physics, x = case.make(), images(case)
        y = physics(theirs(physics, images(case, seed=8)))
        problem = lavps.InverseProblem(y, physics)
        assert float(problem.noise.std) == pytest.approx(SIGMA)
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(problem.log_likelihood(leaf).sum(), leaf)
        expected = -L2(sigma=SIGMA).grad(theirs(physics, x), y, physics)
        expected = expected.real if expected.is_complex() else expected
        scale = float(expected.abs().max())
        torch.testing.assert_close(gradient / scale, expected / scale, **CLOSE)

    def test_check_finds_nothing_wrong(self, case: Case) -> None:
        report = check(as_operator(case.make()), (case.channels, SIDE, SIDE))
        assert report.ok, str(report)

    def test_rows_are_what_they_would_be_alone(self, case: Case) -> None:
        physics, x = case.make(), images(case)
        operator = as_operator(physics)
        whole = lavps.InverseProblem(operator(x), operator, lavps.GaussianNoise(SIGMA))
        values = whole.log_likelihood(x.flip(-1))
        for row in range(ROWS):
            one = whole[row].log_likelihood(x[row : row + 1].flip(-1))
            torch.testing.assert_close(one, values[row : row + 1], rtol=1e-4, atol=1e-3)

    def test_a_short_run_of_mgdm(self, case: Case) -> None:
        physics, truth = case.make(), 0.5 * images(case)
        problem = lavps.InverseProblem(physics(theirs(physics, truth)), as_operator(physics))
        prior = network_prior(channels=case.channels)
        guided, free = (
            lavps.MGDM(prior, num_steps=12, guidance=Gradient(steps=steps)).sample(problem, 2).samples
            for steps in (4, 0)
        )
        assert guided.shape == (ROWS, 2, case.channels, SIDE, SIDE)
        misfit = [float(problem.chi_square(samples[:, 0]).mean()) for samples in (guided, free)]
        assert misfit[0] < misfit[1]

    def test_images_in_0_1_give_the_same_problem(self, case: Case) -> None:
        physics, x = case.make(), images(case)
        y = physics(theirs(physics, (images(case, seed=8) + 1) / 2))
        problem = lavps.InverseProblem(y, RescaledOperator(physics, 0, 1))
        assert problem.operator.linear == case.linear
        expected = lavps.GaussianNoise(SIGMA).log_prob(y, physics.A(theirs(physics, (x + 1) / 2)))
        free = lavps.GaussianNoise(SIGMA).log_prob(0 * y, 0 * y)
        seen = problem.operator.observed(y)
        expected = expected if seen is None else torch.where(seen.bool(), expected, 0 * free)
        values = problem.log_likelihood(x)
        torch.testing.assert_close(values, expected.flatten(1).sum(1), rtol=1e-4, atol=1e-2)


def test_updates_of_the_physics_do_not_reach_the_operator() -> None:
    physics, x = P.Inpainting(IMAGE, mask=mask(*IMAGE)), uniform(2, *IMAGE)
    operator = as_operator(physics)
    before = operator(x)
    physics.update(mask=torch.zeros(1, *IMAGE))
    assert torch.equal(operator(x), before)
    assert not torch.equal(physics.A(x), before)


def test_a_noise_level_per_item_is_picked_up() -> None:
    sigma = torch.tensor([0.1, 0.2, 0.3])
    physics = P.Inpainting(IMAGE, mask=mask(*IMAGE), noise_model=P.GaussianNoise(sigma))
    problem = lavps.InverseProblem(physics.A(images(CASES[0])), physics)
    torch.testing.assert_close(problem.noise.std, sigma)
    torch.testing.assert_close(problem[1].noise.std, sigma[1:2])


@pytest.mark.parametrize("noise", [P.PoissonNoise(0.1), P.ZeroNoise(), P.RicianNoise(0.1)])
def test_noise_of_another_law_is_asked_for(noise: P.NoiseModel) -> None:
    with pytest.raises(ValueError, match="states no Gaussian noise: pass noise="):
        lavps.InverseProblem(uniform(1, *IMAGE), P.Inpainting(IMAGE, mask=mask(*IMAGE), noise_model=noise))


def test_measurements_of_images_in_0_1_are_noticed() -> None:
    physics = P.Blur(kernels(1), padding="circular", noise_model=noisy())
    with pytest.warns(PixelRangeWarning, match="RescaledOperator"):
        lavps.InverseProblem(physics(uniform(2, *IMAGE)), physics)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PixelRangeWarning)
        lavps.InverseProblem(physics(2 * uniform(2, *IMAGE) - 1), physics)
        lavps.InverseProblem(physics(uniform(2, *IMAGE)), RescaledOperator(physics, 0, 1))


def test_complex_measurements_are_read_by_a_physics_of_two_channels() -> None:
    physics = P.MultiCoilMRI(mask(SIDE, SIDE), coils(1), (SIDE, SIDE), noise_model=noisy())
    x, truth = images(SCAN), images(SCAN, seed=8)
    pairs = lavps.InverseProblem(physics(truth), physics)
    complex_y = torch.complex(pairs.y[:, 0], pairs.y[:, 1])
    problem = lavps.InverseProblem(complex_y, physics)
    assert float(problem.noise.std) == pytest.approx(SIGMA * 2**0.5)
    torch.testing.assert_close(problem.log_likelihood(x), pairs.log_likelihood(x), rtol=1e-5, atol=1e-2)
    torch.testing.assert_close(problem.chi_square(x), pairs.chi_square(x), **CLOSE)
    torch.testing.assert_close(problem.operator.adjoint(complex_y), physics.A_adjoint(pairs.y), **CLOSE)


def test_our_mri_is_deepinvs() -> None:
    physics = P.MultiCoilMRI(mask(SIDE, SIDE), coils(1), (SIDE, SIDE))
    ours, x = MRI(mask(SIDE, SIDE), coils(1)[0], complex_image=True), images(SCAN)
    pairs = physics.A(x)
    torch.testing.assert_close(ours(x), torch.complex(pairs[:, 0], pairs[:, 1]), **CLOSE)
    torch.testing.assert_close(ours.adjoint(ours(x)), physics.A_adjoint(pairs), **CLOSE)


class Shrinkage(nn.Module):
    """The exact denoiser of N(.5, .04) pixels in [0, 1], in deepinv's form."""

    def forward(self, x: Tensor, sigma: float | Tensor, **kwargs: object) -> Tensor:
        variance = torch.as_tensor(sigma).double().reshape(-1, *[1] * (x.ndim - 1)).square()
        return (0.5 + 0.04 / (0.04 + variance) * (x.double() - 0.5)).to(x.dtype)


def shrinkage_prior() -> lavps.GaussianPrior:
    """The same law over pixels in [-1, 1]: N(0, .16), up to noise as large as DiffPIR asks for."""
    return lavps.GaussianPrior(torch.zeros(IMAGE), 0.16 * torch.eye(SIDE**2), lavps.VE(sigma_max=200.0))


class TestDenoisers:
    def drunet(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return deepinv.models.DRUNet(1, 1, nc=(8, 8, 8, 8), nb=1, pretrained=None).eval()

    def test_a_denoiser_is_a_prior(self) -> None:
        network, x = self.drunet(), images(CASES[0])
        prior = from_deepinv(network)
        t = prior.schedule.time(torch.tensor([0.1, 0.4, 1.0]))
        with torch.no_grad():
            ours = prior.denoise(x, t)
            expected = 2 * network((x + 1) / 2, torch.tensor([0.05, 0.2, 0.5])) - 1
        torch.testing.assert_close(ours, expected, **CLOSE)

    def test_a_prior_is_a_denoiser_and_back(self) -> None:
        network, x = self.drunet(), uniform(ROWS, *IMAGE)
        back = DeepinvDenoiser(from_deepinv(network))
        sigma = torch.tensor([0.05, 0.2, 0.5])
        with torch.no_grad():
            for level in (0.1, sigma, sigma.reshape(-1, 1, 1, 1)):
                expected = network(x, level if isinstance(level, float) else sigma)
                torch.testing.assert_close(back(x, level), expected, **CLOSE)

    @pytest.mark.parametrize("name", ["DDRM", "DiffPIR", "DPS"])
    def test_deepinvs_samplers_run_on_our_priors_as_on_their_own_denoisers(self, name: str) -> None:
        physics = P.Inpainting(IMAGE, mask=mask(*IMAGE), noise_model=noisy())
        y = physics(uniform(1, *IMAGE))

        def restored(denoiser: nn.Module) -> Tensor:
            torch.manual_seed(1)
            if name == "DDRM":
                return deepinv.sampling.DDRM(denoiser)(y, physics)
            if name == "DiffPIR":
                return deepinv.sampling.DiffPIR(denoiser, L2(), sigma=SIGMA, max_iter=10)(y, physics)
            sampler = deepinv.sampling.DPS(denoiser, num_steps=20, rng=torch.Generator().manual_seed(1))
            return sampler(y, physics)

        ours, own = restored(DeepinvDenoiser(shrinkage_prior())), restored(Shrinkage())
        assert float(own.std()) > 0.01
        torch.testing.assert_close(ours, own, **CLOSE)

    def test_our_samplers_run_on_deepinvs_denoisers_as_on_our_priors(self) -> None:
        physics = P.Inpainting(IMAGE, mask=mask(*IMAGE), noise_model=noisy())
        problem = lavps.InverseProblem(physics(uniform(2, *IMAGE)), RescaledOperator(physics, 0, 1))
        theirs, ours = (
            lavps.MGDM(prior, num_steps=12).sample(problem, 2, seed=3).samples
            for prior in (from_deepinv(Shrinkage(), schedule=lavps.VE(sigma_max=200.0)), shrinkage_prior())
        )
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)


@dataclass(frozen=True)
class TheirGrid(lavps.DiffPIR):
    """DiffPIR at deepinv's times: nodes of a chain of 1000, sqrt-spaced."""

    def times(self, schedule: lavps.schedule.Schedule) -> Tensor:
        nodes = torch.linspace(0.0, 1000.0**2, self.num_steps).sqrt().int()
        nodes[-1] -= 1
        return torch.cat([torch.zeros(1), (1000 - nodes.flip(0)) / 1000]).double()


class Recorded:
    """A prior clamped to [-1, 1], as deepinv clamps it, that records its estimates."""

    def __init__(self) -> None:
        self.prior = lavps.GaussianPrior(torch.zeros(IMAGE), 0.1 * torch.eye(SIDE**2) + 0.05)
        self.schedule, self.estimates = self.prior.schedule, []

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        self.estimates.append(self.prior.denoise(x_t, t).clamp(-1, 1))
        return self.estimates[-1]


def sharp_blur() -> P.Physics:
    """A blur that conjugate gradients invert in a few steps."""
    kernel = 0.5 * kernels(1)
    kernel[..., 1, 2] += 0.5
    return P.BlurFFT(IMAGE, filter=kernel, noise_model=noisy())


@pytest.mark.parametrize(
    "make", [sharp_blur, lambda: P.Inpainting(IMAGE, mask=mask(*IMAGE), noise_model=noisy())]
)
@pytest.mark.parametrize(("strength", "zeta"), [(7.0, 0.1), (1.0, 1.0)])
def test_diffpir_is_deepinvs(
    make: Callable[[], P.Physics], strength: float, zeta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same estimates D(x_t, t) at every step, from the same noise.

    Where deepinv differs: its grid (``times``); a factor 2 in its proximal step (``Isotropic(lambda / 2)``);
    its initialization with A^T y, replaced here by noise. It has no data step at the end, so the estimates
    before the data step are compared. Downsampling is left out: deepinv's closed form of the proximal step is
    not the exact solution there.
    """
    steps = 8
    physics = make()
    y = physics(uniform(1, *IMAGE))
    ours = Recorded()
    problem = lavps.InverseProblem(y, RescaledOperator(physics, 0, 1))
    covariance = Isotropic(strength / 2)
    sampler = TheirGrid(ours, num_steps=steps, covariance=covariance, zeta=zeta, solver_steps=200)
    sampler.sample(problem)

    streams, theirs = NoiseStreams.from_seed(1), Recorded()
    noise = [streams.normal(Purpose.DDIM, IMAGE, y, k) for k in range(steps, 1, -1)]
    alpha, sigma = (c.to(y) for c in ours.schedule.coefficients(torch.ones(())))
    initial = streams.normal(Purpose.INITIAL, IMAGE, y) * sigma
    draws = iter([initial / alpha / ((sigma / alpha) ** 2 - 4 * SIGMA**2).sqrt(), *noise])
    monkeypatch.setattr(torch, "randn_like", lambda x: next(draws))
    algorithm = deepinv.sampling.DiffPIR(
        DeepinvDenoiser(theirs), L2(), sigma=SIGMA, max_iter=steps, zeta=zeta, lambda_=strength
    )
    algorithm(y, physics, x_init=torch.full((1, *IMAGE), 0.5))
    assert len(ours.estimates) == len(theirs.estimates) == steps
    for a, b in zip(ours.estimates, theirs.estimates, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
