"""Training times: their distribution on every schedule, and the record of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import lavps
from lavps.random import NoiseStreams, Purpose
from lavps.schedule import Schedule
from lavps.training.denoiser import DenoiserTask, Denoising, draw_times

COUNT = 20_000
SCHEDULES: list[Schedule] = [lavps.Flow(), lavps.VE(), lavps.Cosine(), lavps.VPLinear()]


def kolmogorov(values: Tensor, mean: float, std: float) -> float:
    """Largest distance between the distribution of the values and a normal one."""
    values = values.sort().values
    normal = 0.5 * (1 + torch.erf((values - mean) / (std * math.sqrt(2))))
    steps = torch.arange(len(values) + 1, dtype=torch.float64) / len(values)
    return max((normal - steps[:-1]).max().item(), (steps[1:] - normal).max().item())


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize(("mean", "std"), [(-1.2, 1.2), (-0.4, 1.0)])
def test_log_noise_levels_are_normal_on_every_schedule(schedule: Schedule, mean: float, std: float) -> None:
    streams = NoiseStreams.from_seed(COUNT, seed=1)
    t = draw_times("log-normal", schedule, streams, mean, std)
    assert t.dtype == torch.float64
    assert bool(((t >= 0) & (t <= 1)).all())
    levels = schedule.noise_level(t).log()
    normal = streams.normal(Purpose.TIME, (), torch.zeros((), dtype=torch.float64))
    # exact: the logarithm of the noise level is the normal draw itself, scaled and shifted
    torch.testing.assert_close(levels, mean + std * normal, rtol=0, atol=1e-8)
    assert kolmogorov(levels, mean, std) < 1.95 / math.sqrt(COUNT)  # 99.9 % quantile


def test_levels_beyond_the_schedule_become_its_last_one() -> None:
    t = draw_times("log-normal", lavps.VE(sigma_max=2.0), NoiseStreams.from_seed(100), 5.0, 0.1)
    assert bool((t == 1).all())


def test_log_normal_is_logit_normal_on_the_flow() -> None:
    streams = NoiseStreams.from_seed(1000)
    log_normal = draw_times("log-normal", lavps.Flow(), streams, 0.0, 1.0)
    torch.testing.assert_close(log_normal, draw_times("logit-normal", lavps.Flow(), streams))


def test_the_distribution_is_part_of_the_run_only_where_it_is_used() -> None:
    plain = Denoising(lavps.Flow(), (1, 8, 8), "velocity", "logit-normal").describe()
    assert not {"times_mean", "times_std"} & plain.keys()  # runs of before resume
    described = Denoising(lavps.Flow(), (1, 8, 8), "velocity", "log-normal", times_mean=-0.5).describe()
    assert (described["times_mean"], described["times_std"]) == (-0.5, 1.2)
    task = DenoiserTask(nn.Identity(), lavps.Flow(), (1, 8, 8), times="log-normal", times_std=0.7)
    assert task.model_config().training["times_std"] == 0.7
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive standard deviation"):
            Denoising(lavps.Flow(), (1, 8, 8), times="log-normal", times_std=wrong)


def test_the_loss_is_taken_at_the_drawn_times() -> None:
    seen: list[Tensor] = []

    def network(x: Tensor, t: Tensor) -> Tensor:
        seen.append(t)
        return torch.zeros_like(x)

    denoising = Denoising(lavps.Flow(), (1, 2, 2), "velocity", "log-normal", seed=4)
    denoising.loss(network, torch.zeros(6, 1, 2, 2), range(10, 16))
    expected = draw_times("log-normal", lavps.Flow(), NoiseStreams.from_seed(6, 4, range(10, 16)))
    assert torch.equal(seen[0], expected.float())
