"""The Gaussian kernels of a diffusion are conditionals of one joint law."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lavps.schedule import VE, Cosine, DiscreteVP, Flow, Schedule, VPLinear
from lavps.transitions import IsotropicGaussian, bridge, ddim_step, forward, forward_variance, per_sample

SCHEDULES: list[Schedule] = [
    VPLinear(),
    Cosine(0.0),
    Cosine(),
    Flow(),
    VE(),
    DiscreteVP([0.01, 0.3, 0.05, 0.9, 0.2]),
]
ONE, ZERO = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)

schedules = st.sampled_from(SCHEDULES)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
unit = st.floats(0.0, 1.0)


@st.composite
def ordered(draw: st.DrawFn, count: int, low: float = 0.0) -> tuple[Tensor, ...]:
    """Increasing times, no two of them closer than a thousandth; the last is often the end of time."""
    numbers = sorted(draw(st.lists(st.floats(low, 1.0), min_size=count, max_size=count)))
    numbers[-1] = draw(st.sampled_from([numbers[-1], 1.0]))
    assume(all(b - a >= 1e-3 for a, b in pairwise(numbers)))
    return tuple(torch.tensor(number, dtype=torch.float64) for number in numbers)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def weights(kernel: IsotropicGaussian, other: IsotropicGaussian) -> tuple[Tensor, Tensor, Tensor]:
    """(weight of the first point, weight of the second, variance) from the kernel at unit points."""
    return kernel.mean.squeeze(), other.mean.squeeze(), kernel.std.square().squeeze()


def forward_weights(schedule: Schedule, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    kernel = forward(schedule, ONE, s, t)
    return kernel.mean.squeeze(), kernel.std.square().squeeze()


def bridge_weights(schedule: Schedule, s: Tensor, t: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return weights(bridge(schedule, ONE, ZERO, s, t, u), bridge(schedule, ZERO, ONE, s, t, u))


def ddim_weights(schedule: Schedule, s: Tensor, t: Tensor, eta: float) -> tuple[Tensor, Tensor, Tensor]:
    return weights(ddim_step(schedule, ONE, ZERO, s, t, eta), ddim_step(schedule, ZERO, ONE, s, t, eta))


@settings(deadline=None)
@given(schedules, ordered(1))
def test_forward_from_the_image_is_the_marginal(schedule: Schedule, times: tuple[Tensor]) -> None:
    (t,) = times
    weight, variance = forward_weights(schedule, torch.zeros_like(t), t)
    close(weight, schedule.alpha(t), 1e-14)
    close(variance, schedule.sigma(t).square(), 1e-14)


@settings(deadline=None)
@given(schedules, ordered(3))
def test_forward_after_forward_is_forward(schedule: Schedule, times: tuple[Tensor, ...]) -> None:
    s, t, u = times
    (a, v), (b, w), (c, x) = (forward_weights(schedule, *pair) for pair in ((s, t), (t, u), (s, u)))
    close(a * b, c, 1e-12)
    close(b.square() * v + w, x, 1e-12)


@settings(deadline=None)
@given(schedules, ordered(2, low=1e-3))
def test_bridge_and_forward_compose_to_the_marginal(schedule: Schedule, times: tuple[Tensor, ...]) -> None:
    t, u = times
    zero = torch.zeros_like(t)
    weight_0, weight_u, variance = bridge_weights(schedule, zero, t, u)
    # x_u = alpha_u x_0 + sigma_u eps put into the bridge must leave alpha_t x_0 + sigma_t eps'.
    close(weight_0 + weight_u * schedule.alpha(u), schedule.alpha(t), 1e-10)
    close(
        variance + weight_u.square() * schedule.sigma(u).square(),
        schedule.sigma(t).square(),
        1e-10,
    )


@settings(deadline=None)
@given(schedules, ordered(3))
def test_bridge_integrates_to_forward_from_any_start(schedule: Schedule, times: tuple[Tensor, ...]) -> None:
    s, t, u = times
    weight_s, weight_u, variance = bridge_weights(schedule, s, t, u)
    (a_ts, v_ts), (a_us, v_us) = forward_weights(schedule, s, t), forward_weights(schedule, s, u)
    close(weight_s + weight_u * a_us, a_ts)
    close(variance + weight_u.square() * v_us, v_ts)


@settings(deadline=None)
@given(schedules, ordered(3))
def test_bridge_is_gaussian_conditioning(schedule: Schedule, times: tuple[Tensor, ...]) -> None:
    s, t, u = times
    a_ts, v_ts = forward_weights(schedule, s, t)
    a_ut, v_ut = forward_weights(schedule, t, u)
    # The joint law of (x_t, x_u) given x_s = 1, and x_t given both by the textbook formula.
    mean = torch.stack([a_ts, a_ut * a_ts])
    covariance = torch.stack(
        [torch.stack([v_ts, a_ut * v_ts]), torch.stack([a_ut * v_ts, a_ut.square() * v_ts + v_ut])]
    )
    gain = covariance[0, 1] / covariance[1, 1]
    weight_s, weight_u, variance = bridge_weights(schedule, s, t, u)
    close(weight_u, gain)
    close(weight_s, mean[0] - gain * mean[1])
    close(variance, covariance[0, 0] - gain * covariance[1, 0])


@settings(deadline=None)
@given(schedules, ordered(2, low=1e-3))
def test_bridge_agrees_with_the_form_of_the_paper(schedule: Schedule, times: tuple[Tensor, ...]) -> None:
    s, t = times
    assume(bool(schedule.alpha(t) > 1e-3))
    zero = torch.zeros_like(s)
    variance_ts, variance_t0 = forward_variance(schedule, s, t), forward_variance(schedule, zero, t)
    gamma = variance_ts / variance_t0
    alpha_ts = schedule.alpha(t) / schedule.alpha(s)
    weight_0, weight_t, variance = bridge_weights(schedule, zero, s, t)
    close(weight_0, gamma * schedule.alpha(s))
    close(weight_t, (1 - gamma) / alpha_ts)
    close(variance, variance_ts * schedule.sigma(s).square() / variance_t0)


@settings(deadline=None)
@given(schedules, ordered(2, low=1e-3))
def test_ancestral_ddim_is_the_bridge(schedule: Schedule, times: tuple[Tensor, ...]) -> None:
    s, t = times
    for ours, theirs in zip(
        ddim_weights(schedule, s, t, 1.0), bridge_weights(schedule, torch.zeros_like(s), s, t), strict=True
    ):
        close(ours, theirs, 1e-10)


@settings(deadline=None)
@given(schedules, ordered(2), st.floats(-3, 3), st.floats(-3, 3))
def test_deterministic_ddim_keeps_the_image_and_the_noise(
    schedule: Schedule, times: tuple[Tensor, ...], image: float, noise: float
) -> None:
    s, t = times
    x_0, eps = image * ONE, noise * ONE
    kernel = ddim_step(schedule, x_0, schedule.alpha(t) * x_0 + schedule.sigma(t) * eps, s, t, 0.0)
    assert kernel.std.item() == 0.0
    close(kernel.mean, schedule.alpha(s) * x_0 + schedule.sigma(s) * eps, 1e-11)


@settings(deadline=None)
@given(schedules, ordered(2), unit)
def test_ddim_keeps_the_marginal_for_every_eta(
    schedule: Schedule, times: tuple[Tensor, ...], eta: float
) -> None:
    s, t = times
    weight_0, weight_t, variance = ddim_weights(schedule, s, t, eta)
    close(weight_0 + weight_t * schedule.alpha(t), schedule.alpha(s))
    close(variance + weight_t.square() * schedule.sigma(t).square(), schedule.sigma(s).square())


@settings(deadline=None)
@given(schedules, ordered(2, low=1e-3))
def test_the_noise_of_ddim_grows_in_proportion_to_eta(schedule: Schedule, times: tuple[Tensor, ...]) -> None:
    s, t = times
    full, half = (ddim_step(schedule, ONE, ONE, s, t, eta).std for eta in (1.0, 0.5))
    assert full.item() > 0
    close(half, 0.5 * full, 1e-12)


@every_schedule
def test_no_kernel_makes_nan_at_the_ends_of_time(schedule: Schedule) -> None:
    ends = [torch.tensor(t, dtype=torch.float64) for t in (0.0, 1e-6, 0.3, 1 - 1e-6, 1.0)]
    kernels = []
    for i, s in enumerate(ends):
        for j, t in enumerate(ends[i:], start=i):
            if s < 1:
                kernels.append(forward(schedule, ONE, s, t))
                kernels += [bridge(schedule, ONE, ONE, s, t, u) for u in ends[j + 1 :]]
            if t > 0:
                kernels += [ddim_step(schedule, ONE, ONE, s, t, eta) for eta in (0.0, 0.5, 1.0)]
    assert len(kernels) > 50
    for kernel in kernels:
        assert bool(kernel.mean.isfinite().all())
        assert bool(kernel.std.isfinite().all())
        assert bool((kernel.std >= 0).all())


@settings(deadline=None)
@given(schedules, ordered(2))
def test_a_step_of_no_time_stays_where_it_is(schedule: Schedule, times: tuple[Tensor, ...]) -> None:
    s, u = times
    for kernel in (
        forward(schedule, 3 * ONE, s, s),
        bridge(schedule, 3 * ONE, -5 * ONE, s, s, u),
        ddim_step(schedule, -5 * ONE, 3 * ONE, u, u, 1.0),
    ):
        close(kernel.mean, 3 * ONE, 1e-12)
        assert kernel.std.item() == 0.0


@pytest.mark.parametrize("schedule", [Flow(), Cosine(), Cosine(0.0)], ids=repr)
def test_pure_noise_says_nothing_of_the_past(schedule: Schedule) -> None:
    s, t, u = (torch.tensor(time, dtype=torch.float64) for time in (0.0, 0.4, 1.0))
    weight_s, weight_u, variance = bridge_weights(schedule, s, t, u)
    assert weight_u.item() == 0.0
    close(weight_s, schedule.alpha(t), 1e-12)
    close(variance, schedule.sigma(t).square(), 1e-12)
    close(ddim_weights(schedule, t, u, 1.0)[1], torch.zeros((), dtype=torch.float64), 1e-12)


@every_schedule
@pytest.mark.parametrize("shape", [(5, 2), (5, 2, 3), (5, 3, 4, 2), (5, 1, 2, 3, 2)])
def test_times_per_sample_equal_scalar_times_row_by_row(schedule: Schedule, shape: tuple[int, ...]) -> None:
    random = torch.Generator().manual_seed(0)
    x, z = torch.randn(2, *shape, generator=random, dtype=torch.float64)
    s = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.3], dtype=torch.float64)
    t = torch.tensor([0.2, 0.4, 0.5, 0.3, 0.9], dtype=torch.float64)
    u = torch.tensor([0.3, 0.6, 0.9, 1.0, 1.0], dtype=torch.float64)
    batches = [
        forward(schedule, x, s, t),
        bridge(schedule, x, z, s, t, u),
        ddim_step(schedule, x, z, t, u, 0.7),
    ]
    for row in range(5):
        one = slice(row, row + 1)
        singles = [
            forward(schedule, x[one], s[row], t[row]),
            bridge(schedule, x[one], z[one], s[row], t[row], u[row]),
            ddim_step(schedule, x[one], z[one], t[row], u[row], 0.7),
        ]
        for batch, single in zip(batches, singles, strict=True):
            assert batch.mean.shape == shape
            close(batch.mean[one], single.mean, 1e-14)
            close(batch.std.expand(shape)[one], single.std.expand(1, *shape[1:]), 1e-14)
            close(batch.sample(z)[one], single.sample(z[one]), 1e-14)


@every_schedule
def test_single_precision_equals_double_precision(schedule: Schedule) -> None:
    random = torch.Generator().manual_seed(1)
    x, z = torch.randn(2, 4, 3, 5, 5, generator=random, dtype=torch.float64)
    for s, t, u in ((0.0, 0.01, 0.02), (0.001, 0.5, 1.0), (0.97, 0.98, 0.99)):
        clock = [torch.tensor(time, dtype=torch.float64) for time in (s, t, u)]
        for kernel in (
            lambda a, b, c=clock: bridge(schedule, a, b, *c),
            lambda a, b, c=clock: forward(schedule, a, *c[:2]),
            lambda a, b, c=clock: ddim_step(schedule, a, b, *c[1:], 0.3),
        ):
            double, single = kernel(x, z), kernel(x.float(), z.float())
            assert single.mean.dtype == single.std.dtype == torch.float32
            assert single.sample(z.float()).dtype == torch.float32
            torch.testing.assert_close(single.mean.double(), double.mean, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(single.std.double(), double.std, rtol=1e-6, atol=1e-6)


def test_a_sample_is_the_mean_and_as_much_noise_as_the_std_says() -> None:
    kernel = IsotropicGaussian(torch.tensor([[1.0], [2.0]]), torch.tensor([[0.5], [3.0]]))
    assert kernel.sample(torch.tensor([[2.0], [-1.0]])).tolist() == [[2.0], [-1.0]]


def test_coefficients_are_shaped_to_their_rows() -> None:
    coefficient = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    image = torch.zeros(3, 2, 4, 4)
    assert per_sample(coefficient, image).shape == (3, 1, 1, 1)
    assert per_sample(coefficient, image).dtype == torch.float32
    assert per_sample(coefficient[0], image).shape == ()
    assert per_sample(coefficient[0], image.to(torch.complex64)).dtype == torch.float32
    assert (per_sample(coefficient, image.to(torch.complex64)) * (image + 1))[2, 1, 3, 3].item() == 3.0


@settings(deadline=None)
@given(schedules, ordered(2))
def test_forward_variance_is_zero_without_time_and_all_of_sigma_from_the_start(
    schedule: Schedule, times: tuple[Tensor, ...]
) -> None:
    s, t = times
    assert forward_variance(schedule, s, s).item() == 0.0
    assert forward_variance(schedule, s, t).item() > 0.0
    assert forward_variance(schedule, torch.zeros_like(t), t).item() == schedule.sigma(t).square().item()
