"""Exact priors are exact, and an adapter gives back the denoiser whatever the network predicts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from lavps.priors import (
    CountingPrior,
    EDMPrior,
    GaussianMixturePrior,
    GaussianPrior,
    NetworkPrior,
    Prior,
    RescaledPrior,
    Rescheduled,
)
from lavps.random import NoiseStreams, Purpose
from lavps.schedule import VE, Cosine, Flow, Schedule, VPLinear
from lavps.transitions import ddim_step, forward, per_sample

SHAPE = (1, 2, 3)
SIZE = 6
SCHEDULES: list[Schedule] = [VPLinear(), Cosine(), Flow(), VE()]
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)


def clock(t: float) -> Tensor:
    return torch.tensor(t, dtype=torch.float64)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixture(
    schedule: Schedule | None = None, components: int = 3, scale: float = 1.0
) -> GaussianMixturePrior:
    roots = numbers(components, SIZE, SIZE, seed=1)
    return GaussianMixturePrior(
        torch.arange(1.0, components + 1),
        scale * numbers(components, *SHAPE, seed=2),
        scale**2 * (0.3 * roots @ roots.mT / SIZE + 0.02 * torch.eye(SIZE, dtype=torch.float64)),
        schedule,
    )


def noisy(prior: GaussianMixturePrior, t: Tensor, rows: int = 8) -> Tensor:
    return forward(prior.schedule, prior.sample(rows, seed=5), clock(0.0), t).sample(
        numbers(rows, *SHAPE, seed=6)
    )


def marginal(prior: GaussianMixturePrior, t: Tensor) -> MixtureSameFamily:
    """p_t by torch's own distributions."""
    alpha, sigma = prior.schedule.alpha(t), prior.schedule.sigma(t)
    covariances = alpha**2 * prior.covariances + sigma**2 * torch.eye(SIZE, dtype=torch.float64)
    return MixtureSameFamily(
        Categorical(prior.weights), MultivariateNormal(alpha * prior.means, covariances), validate_args=False
    )


def dense_denoiser(prior: GaussianMixturePrior, x_t: Tensor, t: Tensor) -> Tensor:
    """E[x_0 | x_t] by solving with every component's dense covariance."""
    alpha, sigma = prior.schedule.alpha(t), prior.schedule.sigma(t)
    x = x_t.flatten(1)
    logs, estimates = [], []
    for weight, mean, covariance in zip(prior.weights, prior.means, prior.covariances, strict=True):
        total = alpha**2 * covariance + sigma**2 * torch.eye(len(mean), dtype=torch.float64)
        residual = x - alpha * mean
        estimates.append(mean + alpha * torch.linalg.solve(total, residual.T).T @ covariance)
        logs.append(weight.log() + MultivariateNormal(alpha * mean, total).log_prob(x))
    responsibility = torch.stack(logs, 1).softmax(1)
    return torch.einsum("bk,kbd->bd", responsibility, torch.stack(estimates)).reshape(x_t.shape)


# -- exact priors ---------------------------------------------------------------------------------------


@every_schedule
@pytest.mark.parametrize("t", [0.01, 0.2, 0.6, 0.99])
def test_the_denoiser_is_the_dense_posterior_mean(schedule: Schedule, t: float) -> None:
    prior = mixture(schedule)
    x_t = noisy(prior, clock(t))
    torch.testing.assert_close(
        prior.denoise(x_t, clock(t)), dense_denoiser(prior, x_t, clock(t)), rtol=1e-8, atol=1e-8
    )


@every_schedule
@pytest.mark.parametrize("t", [0.0, 0.05, 0.5, 1.0])
def test_the_density_is_that_of_the_noisy_mixture(schedule: Schedule, t: float) -> None:
    prior = mixture(schedule)
    x_t = noisy(prior, clock(t))
    torch.testing.assert_close(
        prior.log_prob(x_t, clock(t)),
        marginal(prior, clock(t)).log_prob(x_t.flatten(1)),
        rtol=1e-9,
        atol=1e-9,
    )


@every_schedule
@pytest.mark.parametrize("t", [0.05, 0.5, 1.0])
def test_the_score_is_the_gradient_of_the_density(schedule: Schedule, t: float) -> None:
    prior = mixture(schedule)
    x_t = noisy(prior, clock(t)).requires_grad_()
    (gradient,) = torch.autograd.grad(prior.log_prob(x_t, clock(t)).sum(), x_t)
    torch.testing.assert_close(prior.score(x_t.detach(), clock(t)), gradient, rtol=1e-7, atol=1e-8)


@given(st.sampled_from(SCHEDULES), st.floats(0.02, 0.999))
@settings(deadline=None, max_examples=30)
def test_the_denoiser_is_tweedies_formula(schedule: Schedule, t: float) -> None:
    prior, time = mixture(schedule), clock(t)
    alpha, sigma = schedule.alpha(time), schedule.sigma(time)
    x_t = noisy(prior, time).requires_grad_()
    (gradient,) = torch.autograd.grad(marginal(prior, time).log_prob(x_t.flatten(1)).sum(), x_t)
    torch.testing.assert_close(
        alpha * prior.denoise(x_t.detach(), time), x_t.detach() + sigma**2 * gradient, rtol=1e-7, atol=1e-7
    )


@every_schedule
def test_the_denoiser_leaves_a_clean_image_alone(schedule: Schedule) -> None:
    prior = mixture(schedule)
    x = prior.sample(6)
    torch.testing.assert_close(prior.denoise(x, clock(0.0)), x, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(prior.denoise(x, clock(1e-9)), x, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("schedule", [Flow(), Cosine()], ids=repr)
def test_the_denoiser_of_pure_noise_is_the_mean(schedule: Schedule) -> None:
    prior = mixture(schedule)
    estimate = prior.denoise(5 * numbers(4, *SHAPE), clock(1.0))
    expected = (prior.weights[:, None] * prior.means).sum(0).reshape(SHAPE)
    torch.testing.assert_close(estimate, expected.expand_as(estimate), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(prior.mean, expected)


def test_samples_have_the_moments_of_the_mixture() -> None:
    prior = mixture()
    x = prior.sample(20_000, seed=1).flatten(1)
    mean = prior.mean.flatten()
    centred = prior.means - mean
    covariance = torch.einsum(
        "k,kde->de", prior.weights, prior.covariances + centred[:, :, None] * centred[:, None]
    )
    torch.testing.assert_close(x.mean(0), mean, rtol=0, atol=0.04)
    torch.testing.assert_close(x.T.cov(), covariance, rtol=0, atol=0.06)
    torch.testing.assert_close(prior.std.flatten(), covariance.diagonal().sqrt(), rtol=1e-10, atol=1e-10)
    log_prob = prior.log_prob(x.reshape(-1, *SHAPE), clock(0.0))
    other = marginal(prior, clock(0.0)).sample((20_000,))
    entropy = prior.log_prob(other.reshape(-1, *SHAPE), clock(0.0))
    assert abs(log_prob.mean() - entropy.mean()) < 4 * (log_prob.var() / 10_000).sqrt()


def test_a_sample_is_a_function_of_seed_and_number() -> None:
    prior = mixture()
    assert torch.equal(prior.sample(3, seed=4), prior.sample(7, seed=4)[:3])
    assert not torch.equal(prior.sample(3, seed=4), prior.sample(3, seed=5))


def test_components_are_drawn_by_weight() -> None:
    means = torch.tensor([-10.0, 0.0, 10.0]).reshape(3, 1, 1)
    prior = GaussianMixturePrior([1, 0, 3], means, 1e-4 * torch.ones(3, 1, 1))
    x = prior.sample(4000).flatten()
    assert (x < -5).double().mean().item() == pytest.approx(0.25, abs=0.03)
    assert (x > 5).double().mean().item() == pytest.approx(0.75, abs=0.03)


def brute_posterior(
    prior: GaussianMixturePrior, A: Tensor, y: Tensor, std: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(weights, means, covariances) of x_0 given y in information form; evidence by Bayes' rule at 0."""
    means, covariances, logs = [], [], []
    zero = torch.zeros(SIZE, dtype=torch.float64)
    likelihood = MultivariateNormal(torch.zeros_like(y), std**2 * torch.eye(len(y), dtype=torch.float64))
    for weight, mean, covariance in zip(prior.weights, prior.means, prior.covariances, strict=True):
        precision = torch.linalg.inv(covariance) + A.T @ A / std**2
        posterior = torch.linalg.inv(precision)
        posterior = (posterior + posterior.T) / 2
        centre = posterior @ (torch.linalg.solve(covariance, mean) + A.T @ y / std**2)
        evidence = (
            likelihood.log_prob(y)
            + MultivariateNormal(mean, covariance).log_prob(zero)
            - MultivariateNormal(centre, posterior).log_prob(zero)
        )
        means.append(centre)
        covariances.append(posterior)
        logs.append(weight.log() + evidence)
    return torch.stack(logs).softmax(0), torch.stack(means), torch.stack(covariances)


@pytest.mark.parametrize("rows", [1, 3, 6, 9])
def test_conditioning_is_bayes_rule(rows: int) -> None:
    prior, A, y = mixture(Flow()), numbers(rows, SIZE, seed=8), numbers(rows, seed=9)
    posterior = prior.condition(A, y, 0.3)
    weights, means, covariances = brute_posterior(prior, A, y, 0.3)
    torch.testing.assert_close(posterior.weights, weights, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(posterior.means, means, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(posterior.covariances, covariances, rtol=1e-7, atol=1e-9)
    assert posterior.schedule == prior.schedule
    assert posterior.shape == prior.shape


def test_conditioning_one_after_the_other_is_conditioning_on_both() -> None:
    prior, A, y = mixture(), numbers(5, SIZE, seed=8), numbers(5, seed=9)
    joint = prior.condition(A, y, 0.2)
    sequential = prior.condition(A[:2], y[:2], 0.2).condition(A[2:], y[2:], 0.2)
    torch.testing.assert_close(sequential.weights, joint.weights, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(sequential.means, joint.means, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(sequential.covariances, joint.covariances, rtol=1e-8, atol=1e-10)


def test_conditioning_on_nothing_changes_nothing() -> None:
    prior = mixture()
    posterior = prior.condition(torch.zeros(0, SIZE), torch.zeros(0), 0.1)
    torch.testing.assert_close(posterior.weights, prior.weights)
    torch.testing.assert_close(posterior.means, prior.means)
    torch.testing.assert_close(posterior.covariances, prior.covariances)


@pytest.mark.parametrize("noise_std", [1e-5, 1e-3, 1.0])
def test_posterior_covariances_stay_positive(noise_std: float) -> None:
    posterior = mixture().condition(numbers(4, SIZE, seed=8), numbers(4, seed=9), noise_std)
    eigenvalues = torch.linalg.eigvalsh(posterior.covariances)
    assert eigenvalues.min().item() > 0
    torch.testing.assert_close(posterior.covariances, posterior.covariances.mT, rtol=1e-8, atol=1e-12)


@every_schedule
@pytest.mark.parametrize("t", [0.1, 0.5, 0.9])
def test_the_denoiser_of_the_posterior_knows_both_the_measurement_and_the_noisy_image(
    schedule: Schedule, t: float
) -> None:
    prior, A, y = mixture(schedule), numbers(2, SIZE, seed=8), numbers(2, seed=9)
    x_t = noisy(prior, clock(t), rows=4)
    estimates = prior.condition(A, y, 0.3).denoise(x_t, clock(t))
    # x_t is a second linear measurement of x_0: alpha I with noise sigma.
    alpha, sigma = schedule.alpha(clock(t)), schedule.sigma(clock(t)).item()
    B = alpha * torch.eye(SIZE, dtype=torch.float64)
    for row in range(4):
        both = prior.condition(A, y, 0.3).condition(B, x_t[row], sigma)
        swapped = prior.condition(B, x_t[row], sigma).condition(A, y, 0.3)
        torch.testing.assert_close(estimates[row], both.mean, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(estimates[row], swapped.mean, rtol=1e-6, atol=1e-6)


def test_a_singular_covariance_is_allowed() -> None:
    direction = numbers(SIZE, 2, seed=4)
    prior = GaussianPrior(numbers(*SHAPE, seed=5), direction @ direction.T, Flow())
    x = prior.sample(5)
    offset = (x.flatten(1) - prior.mean.flatten()).T
    residual = offset - direction @ torch.linalg.lstsq(direction, offset).solution
    assert residual.abs().max().item() < 1e-6
    torch.testing.assert_close(prior.denoise(x, clock(0.0)), x, rtol=1e-6, atol=1e-6)
    for t in (1e-6, 0.3, 1.0):
        x_t = forward(prior.schedule, x, clock(0.0), clock(t)).sample(numbers(5, *SHAPE, seed=7))
        estimate = prior.denoise(x_t, clock(t))
        assert bool(estimate.isfinite().all())
        assert bool(prior.score(x_t, clock(t)).isfinite().all())
    posterior = prior.condition(torch.eye(SIZE)[:1], torch.zeros(1), 0.1)
    assert bool(posterior.denoise(x, clock(0.5)).isfinite().all())


def test_the_spread_of_certain_pixels_is_zero_and_not_nan() -> None:
    means = numbers(1, 1, 50).expand(7, 1, 50)
    prior = GaussianMixturePrior(
        torch.rand(7, generator=torch.Generator().manual_seed(0)), means, torch.zeros(7, 50, 50)
    )
    torch.testing.assert_close(prior.std, torch.zeros(1, 50, dtype=torch.float64), rtol=0, atol=1e-7)


def test_one_gaussian_is_a_mixture_of_one() -> None:
    several = mixture(Flow(), components=1)
    single = GaussianPrior(several.means[0].reshape(SHAPE), several.covariances[0], Flow())
    x_t = noisy(several, clock(0.4))
    assert torch.equal(single.denoise(x_t, clock(0.4)), several.denoise(x_t, clock(0.4)))
    a, b = numbers(2, 3, *SHAPE, seed=12)
    middle = single.denoise((a + b) / 2, clock(0.4))
    torch.testing.assert_close(
        middle, (single.denoise(a, clock(0.4)) + single.denoise(b, clock(0.4))) / 2, rtol=1e-10, atol=1e-12
    )


def test_single_precision_arithmetic_is_close_to_double() -> None:
    exact = mixture()
    fast = GaussianMixturePrior(
        exact.weights, exact.means.reshape(-1, *SHAPE), exact.covariances, dtype=torch.float32
    )
    for t in (0.05, 0.5, 1.0):
        x_t = noisy(exact, clock(t))
        torch.testing.assert_close(
            fast.denoise(x_t, clock(t)), exact.denoise(x_t, clock(t)), rtol=1e-3, atol=1e-3
        )
    assert fast.sample(2).dtype == torch.float32


@pytest.mark.parametrize(
    ("weights", "means", "covariances"),
    [((1, 2), (3, 1, 2), (3, 2, 2)), ((1, 2), (2, 1, 2), (2, 3, 3)), ((1, 2), (2, 1, 2), (1, 2, 2))],
)
def test_shapes_that_do_not_fit_are_refused(
    weights: tuple[float, ...], means: tuple[int, ...], covariances: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="a mixture needs"):
        GaussianMixturePrior(weights, torch.zeros(means), torch.zeros(covariances))


# -- networks -------------------------------------------------------------------------------------------

Reading = Callable[[Schedule, Tensor], Tensor]
READINGS: dict[str, Reading] = {
    "time": lambda schedule, c: c,
    "index": lambda schedule, c: (c + 1) / 1000,
    "noise_level": lambda schedule, c: schedule.time(c),
    "log_snr": lambda schedule, c: schedule.time((-c / 2).exp()),
}


class ExactNetwork(nn.Module):
    """What a perfectly trained network would predict, and an own copy of its last condition."""

    def __init__(self, prior: GaussianMixturePrior, prediction: str, time_input: str) -> None:
        super().__init__()
        self.prior, self.prediction, self.time_input = prior, prediction, time_input

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        assert not self.training
        assert c.shape == (len(x),)
        schedule = self.prior.schedule
        t = READINGS[self.time_input](schedule, c.double())
        x_0 = self.prior.denoise(x, t)
        alpha, sigma = per_sample(schedule.alpha(t), x), per_sample(schedule.sigma(t), x)
        eps = (x - alpha * x_0) / sigma
        return {
            "x0": x_0,
            "eps": eps,
            "v": alpha * eps - sigma * x_0,
            "score": -eps / sigma,
            "velocity": eps - x_0,
        }[self.prediction]


@pytest.mark.parametrize("prediction", ["x0", "eps", "v", "score", "velocity"])
@pytest.mark.parametrize(
    ("schedule", "time_input"),
    [
        (VPLinear(), "index"),
        (VPLinear(), "time"),
        (Cosine(), "log_snr"),
        (Flow(), "time"),
        (Flow(), "noise_level"),
        (VE(), "noise_level"),
        (VE(), "log_snr"),
    ],
    ids=str,
)
def test_a_network_gives_back_the_denoiser_whatever_it_predicts(
    schedule: Schedule, time_input: str, prediction: str
) -> None:
    exact = mixture(schedule)
    prior = NetworkPrior(ExactNetwork(exact, prediction, time_input), schedule, prediction, time_input)  # type: ignore[arg-type]
    times = torch.tensor([0.01, 0.05, 0.3, 0.5, 0.8, 0.95], dtype=torch.float64)
    x_t = noisy(exact, times, rows=6)
    # The condition is float32: a relative 1e-7 of a loud image.
    atol = 1e-6 * max(10.0, schedule.sigma(times[-1]).item())
    torch.testing.assert_close(prior.denoise(x_t, times), exact.denoise(x_t, times), rtol=1e-5, atol=atol)
    for t in times:
        x_t = noisy(exact, t)
        torch.testing.assert_close(prior.denoise(x_t, t), exact.denoise(x_t, t), rtol=1e-5, atol=atol)


@pytest.mark.parametrize("prediction", ["x0", "eps", "v", "score", "velocity"])
@pytest.mark.parametrize(
    ("schedule", "time_input"),
    [(Flow(), "time"), (Cosine(), "log_snr"), (Flow(), "noise_level"), (VE(sigma_max=5000.0), "noise_level")],
    ids=str,
)
def test_a_network_is_finite_and_near_the_mean_at_the_end_of_time(
    schedule: Schedule, time_input: str, prediction: str
) -> None:
    exact = mixture(schedule)
    prior = NetworkPrior(ExactNetwork(exact, prediction, time_input), schedule, prediction, time_input)  # type: ignore[arg-type]
    x_t = schedule.sigma(clock(1.0)) * numbers(4, *SHAPE, seed=6)
    estimate = prior.denoise(x_t, clock(1.0))
    torch.testing.assert_close(estimate, exact.mean.expand_as(estimate), rtol=0, atol=0.02)


@pytest.mark.parametrize("prediction", ["x0", "eps", "v", "score", "velocity"])
@pytest.mark.parametrize("schedule", [Flow(), Cosine(), VE(sigma_max=5000.0)], ids=repr)
def test_a_network_is_told_a_finite_level_that_fits_its_image(schedule: Schedule, prediction: str) -> None:
    def network(x: Tensor, c: Tensor) -> Tensor:
        assert bool(c.isfinite().all())
        alpha, sigma = (f(schedule.time((-c / 2).exp())) for f in (schedule.alpha, schedule.sigma))
        torch.testing.assert_close(x.std(), torch.hypot(alpha, sigma)[0], rtol=0.2, atol=0)
        return torch.zeros_like(x)

    prior = NetworkPrior(network, schedule, prediction, "log_snr")  # type: ignore[arg-type]
    for t in (0.3, 0.9, 1.0):
        x_t = torch.hypot(schedule.alpha(clock(t)), schedule.sigma(clock(t))) * numbers(50, *SHAPE)
        assert bool(prior.denoise(x_t, clock(t)).isfinite().all())


def test_a_discrete_network_sees_the_index_it_was_trained_at() -> None:
    seen: list[Tensor] = []

    def network(x: Tensor, c: Tensor) -> Tensor:
        seen.append(c)
        return torch.zeros_like(x)

    prior = NetworkPrior(network, VPLinear(), "eps", "index")
    prior.denoise(torch.zeros(3, *SHAPE), torch.tensor([0.0, 1.0 / 1000, 1.0], dtype=torch.float64))
    prior.denoise(torch.zeros(2, *SHAPE), clock(0.5))
    assert seen[0].tolist() == [0.0, 0.0, 999.0]
    assert seen[1].tolist() == [499.0, 499.0]
    assert seen[0].dtype == torch.float32


def test_channels_of_a_learned_variance_are_cut() -> None:
    exact = mixture()
    network = ExactNetwork(exact, "eps", "index").eval()

    def with_variance(x: Tensor, c: Tensor) -> Tensor:
        return torch.cat([network(x, c), torch.full_like(x, 1e6)], dim=1)

    x_t = noisy(exact, clock(0.5))
    plain = NetworkPrior(network, exact.schedule, "eps", "index").denoise(x_t, clock(0.5))
    cut = NetworkPrior(with_variance, exact.schedule, "eps", "index").denoise(x_t, clock(0.5))
    assert torch.equal(cut, plain)


def test_modules_are_put_in_eval_mode() -> None:
    for make in (lambda m: NetworkPrior(m, VPLinear()), EDMPrior):
        module = nn.Sequential(nn.Dropout(0.5))
        assert module.training
        make(module)
        assert not module.training


@pytest.mark.parametrize("sigma_data", [0.5, 1.3])
def test_edm_preconditioning_gives_back_the_denoiser(sigma_data: float) -> None:
    exact = mixture(VE())

    def raw(scaled: Tensor, c_noise: Tensor) -> Tensor:
        sigma = (4 * c_noise.double()).exp().reshape(-1, *[1] * (scaled.ndim - 1))
        norm = (sigma**2 + sigma_data**2).sqrt()
        x = scaled * norm
        x_0 = exact.denoise(x, exact.schedule.time(sigma.flatten()))
        return (x_0 - sigma_data**2 / norm**2 * x) * norm / (sigma * sigma_data)

    prior = EDMPrior(raw, VE(), sigma_data)
    times = torch.tensor([0.01, 0.1, 0.4, 0.7, 0.9, 1.0], dtype=torch.float64)
    x_t = noisy(exact, times, rows=6)
    torch.testing.assert_close(prior.denoise(x_t, times), exact.denoise(x_t, times), rtol=1e-5, atol=1e-5)
    for t in times:
        x_t = noisy(exact, t)
        torch.testing.assert_close(prior.denoise(x_t, t), exact.denoise(x_t, t), rtol=1e-5, atol=1e-5)


def test_edm_at_time_zero_is_the_image_itself() -> None:
    x = numbers(2, *SHAPE)
    prior = EDMPrior(lambda x, c: c.to(x).reshape(-1, 1, 1, 1) * torch.ones_like(x))
    torch.testing.assert_close(prior.denoise(x, clock(0.0)), x, rtol=1e-10, atol=1e-10)


def test_unknown_predictions_and_times_are_refused() -> None:
    with pytest.raises(ValueError, match="prediction must be"):
        NetworkPrior(lambda x, c: x, Flow(), "epsilon")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="time_input must be"):
        NetworkPrior(lambda x, c: x, Flow(), "eps", "step")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a DiscreteVP"):
        NetworkPrior(lambda x, c: x, Flow(), "eps", "index")


# -- adapters of priors ---------------------------------------------------------------------------------

WIDE = VE(sigma_max=200.0)  # reaches beyond the last noise level of VPLinear, about 157


@given(st.floats(1e-3, 1.0))
@settings(deadline=None, max_examples=40)
def test_a_round_trip_through_schedules_leaves_the_denoiser_unchanged(t: float) -> None:
    exact = mixture(VPLinear())
    there_and_back = Rescheduled(Rescheduled(Rescheduled(exact, WIDE), Flow()), VPLinear())
    x_t = noisy(exact, clock(t))
    torch.testing.assert_close(
        there_and_back.denoise(x_t, clock(t)), exact.denoise(x_t, clock(t)), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("old", [VPLinear(), Cosine(), Flow(), WIDE], ids=repr)
@pytest.mark.parametrize("new", [VPLinear(), Cosine(), Flow(), WIDE], ids=repr)
def test_a_rescheduled_prior_is_the_prior_made_for_that_schedule(old: Schedule, new: Schedule) -> None:
    direct, adapted = mixture(new), Rescheduled(mixture(old), new)
    assert adapted.schedule == new
    times = torch.tensor([0.01, 0.1, 0.5, 0.8, 0.9, 0.95], dtype=torch.float64)
    x_t = noisy(direct, times, rows=6)
    torch.testing.assert_close(adapted.denoise(x_t, times), direct.denoise(x_t, times), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("old", [VPLinear(), WIDE], ids=repr)
def test_levels_beyond_the_last_are_read_at_the_last(old: Schedule) -> None:
    adapted = Rescheduled(mixture(old), Flow())
    estimate = adapted.denoise(numbers(4, *SHAPE), clock(1.0))
    torch.testing.assert_close(estimate, mixture().mean.expand_as(estimate), rtol=0, atol=0.05)


def ddim(prior: Prior, x: Tensor, times: list[Tensor], eta: float, seed: int = 0) -> Tensor:
    """DDIM down these times, and D at the last of them."""
    streams = NoiseStreams.from_seed(1, seed)
    for k, (t, s) in enumerate(pairwise(times)):
        kernel = ddim_step(prior.schedule, prior.denoise(x, t), x, s, t, eta)
        x = kernel.sample(streams.normal(Purpose.DDIM, x.shape, x, step=k)[0])
    return prior.denoise(x, times[-1])


@pytest.mark.parametrize("new", [Flow(), WIDE, Cosine()], ids=repr)
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_rescheduling_leaves_ddim_unchanged_point_by_point_on_matched_noise_levels(
    new: Schedule, eta: float
) -> None:
    exact = mixture(VPLinear())
    old_times = [clock(t) for t in (1.0, 0.8, 0.5, 0.3, 0.1, 0.02)]
    new_times = [new.time(exact.schedule.noise_level(t)) for t in old_times]
    scale = [
        torch.hypot(s.alpha(t[0]), s.sigma(t[0])) for s, t in ((exact.schedule, old_times), (new, new_times))
    ]
    x = numbers(5, *SHAPE, seed=3)
    torch.testing.assert_close(
        ddim(Rescheduled(exact, new), scale[1] * x, new_times, eta),
        ddim(exact, scale[0] * x, old_times, eta),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("new", [Flow(), WIDE, VPLinear()], ids=repr)
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_rescheduling_leaves_the_samples_of_ddim_in_distribution(new: Schedule, eta: float) -> None:
    gaussian = mixture(Cosine(), components=1)
    prior = Rescheduled(gaussian, new)
    start = clock(0.99 if isinstance(new, Flow) else 1.0)
    x = new.sigma(start) * numbers(4000, *SHAPE, seed=13) + new.alpha(start) * gaussian.mean
    times = [start * (k / 100) ** 1.5 for k in range(100, 0, -1)]
    samples = ddim(prior, x, times, eta).flatten(1)
    std = gaussian.std.flatten()
    torch.testing.assert_close(samples.mean(0), gaussian.mean.flatten(), rtol=0, atol=0.06)
    torch.testing.assert_close(samples.std(0) / std, torch.ones_like(std), rtol=0, atol=0.09)
    torch.testing.assert_close(samples.T.cov(), gaussian.covariances[0], rtol=0, atol=0.06)


@pytest.mark.parametrize("schedule", [VE(sigma_max=2e4), Flow(), Cosine()], ids=repr)
def test_a_prior_over_bytes_is_the_prior_over_the_unit_range(schedule: Schedule) -> None:
    unit = mixture(schedule)
    half = middle = 127.5
    pixels = GaussianMixturePrior(
        unit.weights, middle + half * unit.means.reshape(-1, *SHAPE), half**2 * unit.covariances, schedule
    )
    ranged = RescaledPrior(pixels, 0.0, 255.0)
    assert ranged.schedule == schedule
    times = schedule.time(torch.tensor([0.01, 0.1, 0.3, 1.0, 10.0, 100.0], dtype=torch.float64))
    x_t = noisy(unit, times, rows=6)
    torch.testing.assert_close(ranged.denoise(x_t, times), unit.denoise(x_t, times), rtol=1e-6, atol=1e-6)
    if not isinstance(schedule, VE):
        estimate = ranged.denoise(numbers(3, *SHAPE), clock(1.0))
        torch.testing.assert_close(estimate, unit.mean.expand_as(estimate), rtol=0, atol=1e-6)


def test_a_range_of_the_unit_range_is_no_change() -> None:
    exact = mixture()
    x_t = noisy(exact, clock(0.4))
    torch.testing.assert_close(
        RescaledPrior(exact, -1.0, 1.0).denoise(x_t, clock(0.4)),
        exact.denoise(x_t, clock(0.4)),
        rtol=1e-8,
        atol=1e-8,
    )


def test_a_meter_counts_images_and_their_gradients() -> None:
    meter = CountingPrior(mixture())
    assert meter.schedule == VPLinear()
    x = numbers(5, *SHAPE)
    plain = meter.denoise(x, clock(0.5))
    assert torch.equal(plain, mixture().denoise(x, clock(0.5)))
    assert (meter.forwards, meter.backwards) == (5, 0)
    x.requires_grad_()
    with torch.no_grad():
        meter.denoise(x[:2], clock(0.5))
    assert (meter.forwards, meter.backwards) == (7, 0)
    estimate = meter.denoise(x, clock(0.5))
    assert (meter.forwards, meter.backwards) == (12, 0)
    estimate.sum().backward()
    assert (meter.forwards, meter.backwards) == (12, 5)
    (gradient,) = torch.autograd.grad(meter.denoise(x[:3], clock(0.5)).sum(), x)
    assert (meter.forwards, meter.backwards) == (15, 8)
    assert torch.equal(gradient[3:], torch.zeros(2, *SHAPE, dtype=torch.float64))
