"""Schedules are the pair (alpha, sigma) of the paper's Eq. 1, exact at both ends of time."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lavps
from lavps.operators import Identity
from lavps.schedule import VE, Cosine, DiscreteVP, Flow, Schedule, VPLinear, as_time, time_grid

mp.mp.dps = 60

BETAS = [0.01, 0.3, 0.05, 0.9, 0.2]
SCHEDULES: list[Schedule] = [VPLinear(), Cosine(0.0), Cosine(), Flow(), VE(), DiscreteVP(BETAS)]
VARIANCE_PRESERVING = [s for s in SCHEDULES if isinstance(s, DiscreteVP | Cosine)]
ENDS_IN_NOISE = [s for s in SCHEDULES if isinstance(s, Flow | Cosine)]

schedules = st.sampled_from(SCHEDULES)
times = st.floats(0.0, 1.0, allow_nan=False)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)


def time(t: float) -> Tensor:
    return torch.tensor(t, dtype=torch.float64)


@every_schedule
def test_time_zero_is_the_clean_image(schedule: Schedule) -> None:
    assert schedule.alpha(time(0.0)).item() == 1.0
    assert schedule.sigma(time(0.0)).item() == 0.0
    assert schedule.noise_level(time(0.0)).item() == 0.0
    assert schedule.log_snr(time(0.0)).item() == float("inf")


@settings(deadline=None)
@given(schedules, times, times)
def test_signal_to_noise_strictly_decreases(schedule: Schedule, s: float, t: float) -> None:
    s, t = min(s, t), max(s, t)
    if t - s < 1e-9:
        return
    early, late = time(s), time(t)
    assert schedule.log_snr(late) < schedule.log_snr(early)
    assert schedule.noise_level(late) > schedule.noise_level(early)
    assert schedule.alpha(late) <= schedule.alpha(early)
    assert schedule.sigma(late) >= schedule.sigma(early)


@settings(deadline=None)
@given(schedules, times)
def test_time_inverts_the_noise_level(schedule: Schedule, t: float) -> None:
    assert schedule.time(schedule.noise_level(time(t))).item() == pytest.approx(t, abs=1e-9)


@settings(deadline=None)
@given(schedules, st.floats(1e-9, 1.0))
def test_noise_level_inverts_time_on_small_levels(schedule: Schedule, fraction: float) -> None:
    level = fraction * min(1.0, schedule.noise_level(time(1.0)).item())
    again = schedule.noise_level(schedule.time(time(level))).item()
    # Where the level falls like the root of time, an absolute 1e-16 in time is 1e-8 in the level.
    assert again == pytest.approx(level, rel=1e-6, abs=2e-8)


@every_schedule
def test_time_of_extreme_levels_is_an_end_of_time(schedule: Schedule) -> None:
    assert schedule.time(time(0.0)).item() == 0.0
    assert schedule.time(time(float("inf"))).item() == 1.0
    assert schedule.time(time(1e300)).item() == 1.0
    times = schedule.time(torch.tensor([0.0, 1e-8, 1.0, 1e6, 1e200, float("inf")], dtype=torch.float64))
    assert bool(((times >= 0) & (times <= 1)).all())
    assert bool((times.diff() >= 0).all())


@every_schedule
@pytest.mark.parametrize("shape", [(), (1,), (7,)])
def test_coefficients_have_the_shape_of_time_and_are_float64(
    schedule: Schedule, shape: tuple[int, ...]
) -> None:
    for dtype in (torch.float64, torch.float32):
        t = torch.full(shape, 0.375, dtype=dtype)
        for function in (
            schedule.alpha,
            schedule.sigma,
            schedule.noise_level,
            schedule.log_snr,
            schedule.time,
        ):
            value = function(t)
            assert value.shape == shape
            assert value.dtype == torch.float64
            assert value.device.type == "cpu"


@every_schedule
def test_a_batch_of_times_equals_single_times(schedule: Schedule) -> None:
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    for function in (schedule.alpha, schedule.sigma, schedule.time):
        singles = torch.stack([function(one) for one in t])
        torch.testing.assert_close(function(t), singles, rtol=1e-14, atol=1e-15)


@every_schedule
def test_coefficients_do_not_alias_the_time_they_were_given(schedule: Schedule) -> None:
    t = torch.tensor([0.25, 0.5], dtype=torch.float64)
    for function in (schedule.alpha, schedule.sigma, schedule.time):
        function(t).zero_()
    assert t.tolist() == [0.25, 0.5]


def test_vp_linear_meets_the_cumulative_product_of_ddpm_at_every_node() -> None:
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    product = (1 - betas).cumprod(0)
    nodes = torch.arange(1, 1001, dtype=torch.float64) / 1000
    schedule = VPLinear()
    torch.testing.assert_close(schedule.alpha(nodes).square(), product, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(schedule.sigma(nodes).square(), 1 - product, rtol=1e-12, atol=1e-14)
    assert schedule.alpha(time(1.0)).square().item() == pytest.approx(4.0358e-05, rel=1e-4)


def test_discrete_vp_is_log_linear_between_nodes() -> None:
    schedule = DiscreteVP(BETAS)
    nodes = torch.arange(6, dtype=torch.float64) / 5
    logs = schedule.alpha(nodes).log()
    middle = schedule.alpha((nodes[1:] + nodes[:-1]) / 2).log()
    torch.testing.assert_close(middle, (logs[1:] + logs[:-1]) / 2, rtol=1e-13, atol=1e-15)


@settings(deadline=None)
@given(st.sampled_from(VARIANCE_PRESERVING), times)
def test_variance_preserving_schedules_preserve_variance(schedule: Schedule, t: float) -> None:
    assert (schedule.alpha(time(t)).square() + schedule.sigma(time(t)).square()).item() == pytest.approx(
        1.0, abs=1e-14
    )


def precise_sigma(schedule: Schedule, t: float) -> mp.mpf:
    """Sigma with 60 digits, straight from the definition."""
    clock = mp.mpf(t)
    if isinstance(schedule, Flow):
        return clock
    if isinstance(schedule, VE):
        low, high, rho = (mp.mpf(number) for number in (0.002, 80.0, 7.0))
        a, b = low ** (1 / rho), high ** (1 / rho)
        return ((a + clock * (b - a)) ** rho - low) * high / (high - low)
    if isinstance(schedule, Cosine):
        offset = mp.mpf(0.008 if schedule == Cosine() else 0.0)
        alpha = mp.cos(mp.pi * (clock + offset) / (2 * (1 + offset))) / mp.cos(
            mp.pi * offset / (2 * (1 + offset))
        )
        return mp.sqrt(1 - alpha**2)
    first = mp.mpf(1e-4) if isinstance(schedule, VPLinear) else mp.mpf(BETAS[0])
    length = 1000 if isinstance(schedule, VPLinear) else len(BETAS)
    return mp.sqrt(1 - (1 - first) ** (clock * length))


@every_schedule
@pytest.mark.parametrize("t", [1e-12, 1e-9, 1e-6, 1e-4, 9e-4])
def test_tiny_noise_levels_keep_their_relative_accuracy(schedule: Schedule, t: float) -> None:
    assert schedule.sigma(time(t)).item() == pytest.approx(
        float(precise_sigma(schedule, t)), rel=1e-11, abs=0
    )


@pytest.mark.parametrize("schedule", ENDS_IN_NOISE, ids=repr)
def test_pure_noise_at_the_end_makes_no_nan(schedule: Schedule) -> None:
    end = time(1.0)
    assert schedule.alpha(end).item() == 0.0
    assert schedule.sigma(end).item() == pytest.approx(1.0, abs=1e-15)
    assert schedule.noise_level(end).item() == float("inf")
    assert schedule.log_snr(end).item() == -float("inf")
    assert schedule.time(schedule.noise_level(end)).item() == 1.0


def test_ve_ends_at_its_largest_sigma_and_keeps_the_signal() -> None:
    schedule = VE(0.01, 50.0, 5.0)
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    assert schedule.sigma(time(1.0)).item() == pytest.approx(50.0, rel=1e-14)
    assert schedule.alpha(t).tolist() == [1.0] * 11


def test_plain_cosine_is_the_quarter_circle() -> None:
    t = torch.linspace(0, 1, 33, dtype=torch.float64)
    torch.testing.assert_close(Cosine(0.0).alpha(t), (torch.pi * t / 2).cos(), rtol=0, atol=1e-15)
    torch.testing.assert_close(Cosine(0.0).sigma(t), (torch.pi * t / 2).sin(), rtol=0, atol=1e-15)


@settings(deadline=None)
@given(st.sampled_from([1, 2, 3, 10, 1000]), st.floats(0.25, 7.0))
def test_grids_run_strictly_from_zero_to_one(num_steps: int, power: float) -> None:
    grid = time_grid(num_steps, power)
    assert grid.shape == (num_steps + 1,)
    assert grid.dtype == torch.float64
    assert grid[0].item() == 0.0
    assert grid[-1].item() == 1.0
    assert bool((grid.diff() > 0).all())
    assert grid[1].item() == pytest.approx((1 / num_steps) ** power, rel=1e-12)


def test_the_plain_grid_is_uniform_and_powers_crowd_at_zero() -> None:
    assert time_grid(1).tolist() == [0.0, 1.0]
    assert time_grid(2).tolist() == [0.0, 0.5, 1.0]
    torch.testing.assert_close(
        time_grid(1000).diff(), torch.full((1000,), 1e-3, dtype=torch.float64), rtol=1e-9, atol=0
    )
    assert time_grid(4, 2.0).tolist() == [0.0, 0.0625, 0.25, 0.5625, 1.0]


@pytest.mark.parametrize("arguments", [(0,), (-3,), (4, 0.0), (4, -1.0)])
def test_grids_refuse_no_steps_and_no_power(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must be"):
        time_grid(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("betas", [[], [0.0, 0.1], [0.1, 1.0], [-0.1], [[0.1]], [float("nan")]])
def test_betas_outside_the_open_interval_are_refused(betas: list[float]) -> None:
    with pytest.raises(ValueError, match="betas"):
        DiscreteVP(betas)


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="offset"):
        Cosine(-0.1)
    for numbers in ((0.0, 1.0, 7.0), (2.0, 1.0, 7.0), (0.1, 1.0, 0.5)):
        with pytest.raises(ValueError, match="VE"):
            VE(*numbers)


def test_schedules_are_values() -> None:
    for make in (VPLinear, Cosine, Flow, VE, lambda: DiscreteVP(BETAS)):
        assert make() == make()
        assert hash(make()) == hash(make())
        assert repr(make()) == repr(make())
    assert len(set(SCHEDULES)) == len(SCHEDULES)
    assert len({VPLinear(), VPLinear(), Flow()}) == 2
    assert VPLinear() != VPLinear(beta_max=0.03)
    assert VPLinear() != VPLinear(num_train_steps=999)
    assert VE() != VE(rho=6.0)
    assert DiscreteVP(BETAS) != DiscreteVP(BETAS[::-1])
    assert Flow() != "Flow()"


def test_the_repr_of_a_schedule_of_numbers_rebuilds_it() -> None:
    for schedule in (VPLinear(2e-4, 0.01, 50), Cosine(0.01), Flow(), VE(0.01, 60.0, 3.0)):
        assert eval(repr(schedule)) == schedule


def test_a_schedule_does_not_change_with_the_betas_it_was_made_from() -> None:
    betas = torch.tensor(BETAS, dtype=torch.float64)
    schedule = DiscreteVP(betas)
    before, name = schedule.alpha(time(1.0)).item(), repr(schedule)
    betas.fill_(0.5)
    assert schedule.alpha(time(1.0)).item() == before
    assert repr(schedule) == name


@every_schedule
def test_a_schedule_has_no_fields_but_its_numbers_and_cannot_be_changed(schedule: Schedule) -> None:
    before = pickle.dumps(schedule)
    schedule.alpha(time(0.3))
    assert pickle.dumps(schedule) == before
    assert pickle.loads(before) == schedule
    assert set(vars(schedule)) == {each.name for each in fields(schedule)}  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        schedule.offset = 1.0  # type: ignore[attr-defined]


@every_schedule
def test_coefficients_are_differentiable_again_and_again_on_a_shared_schedule(schedule: Schedule) -> None:
    prior = lavps.GaussianPrior(torch.zeros(1, 2, 2), torch.eye(4), schedule)
    problem = lavps.InverseProblem(torch.ones(1, 1, 2, 2), Identity(), lavps.GaussianNoise(0.1))
    sampler = lavps.MGDM(prior, num_steps=4)
    gradients = []
    for _ in range(2):
        t = time(0.5).requires_grad_()  # a time of the sampler's grid
        (schedule.alpha(t) + schedule.sigma(t)).backward()
        gradients.append(t.grad)
        first, second = (sampler.sample(problem).samples for _ in range(2))
        assert torch.equal(first, second)
    assert gradients[0] is not None
    assert gradients[0].isfinite()
    assert torch.equal(gradients[0], gradients[1])


def test_numbers_become_float64_times() -> None:
    assert as_time(0.1).dtype == torch.float64
    assert as_time(0.1).item() == 0.1
    assert as_time(torch.tensor([0.5], dtype=torch.float32)).dtype == torch.float64
