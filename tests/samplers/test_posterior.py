from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lavps
from lavps.guidance import Gradient
from lavps.samplers import Posterior, RunningStatistics, Trace
from support.problems import network_prior, pooling_problem


class Convolution(torch.nn.Module):
    """A network with weights, which torch does not mix with another precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


SAMPLER = lavps.MGDM(network_prior(), num_steps=8, guidance=Gradient(steps=1))


def test_samples_are_item_major_and_statistics_are_theirs() -> None:
    posterior = SAMPLER.sample(pooling_problem(3), 7, seed=1)
    assert posterior.samples.shape == (3, 7, 1, 8, 8)
    torch.testing.assert_close(posterior.mean, posterior.samples.mean(1))
    torch.testing.assert_close(posterior.std, posterior.samples.std(1))
    torch.testing.assert_close(posterior.quantile(0.3), posterior.samples.quantile(0.3, dim=1))
    low, high = posterior.interval(0.75)  # 6 / 8
    torch.testing.assert_close(low, posterior.samples.amin(1))
    torch.testing.assert_close(high, posterior.samples.amax(1))


def test_a_posterior_is_described_in_three_lines() -> None:
    problem = pooling_problem(3)
    posterior = SAMPLER.sample(problem, 2, batch_size=4)
    first, second, third = repr(posterior).splitlines()
    assert first == "Posterior: 3 x 2 samples of shape (1, 8, 8)"
    assert second.strip().startswith("MGDM, 6 steps, ")
    misfit = torch.stack([problem.chi_square(x) for x in posterior.samples.unbind(1)], 1)
    torch.testing.assert_close(posterior.chi_square, misfit)
    assert f"{posterior.trace.forwards:g} denoiser evaluations per sample" in third
    assert third.endswith(f"misfit {float(misfit.mean()):.3g}")
    torch.testing.assert_close(posterior[1].chi_square, misfit[1:2])
    assert posterior[1].sampler == "MGDM"
    streamed = SAMPLER.sample(problem, 2, keep_samples=False)
    torch.testing.assert_close(streamed.chi_square, misfit)


def test_a_posterior_without_measurements_has_no_misfit() -> None:
    posterior = lavps.DDIM(network_prior(), num_steps=4).sample(lavps.Unconditional((1, 8, 8)))
    assert "misfit" not in repr(posterior)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_samples": 0}, "number of samples must be an integer of at least 1, got 0"),
        ({"num_samples": 1.5}, "number of samples must be an integer of at least 1, got 1.5"),
        ({"seed": 0.5}, "seeds and item ids are integers, got seed 0.5"),
        ({"seed": [0.5, 1.0]}, "seeds and item ids are integers"),
        ({"items": [0.0, 1.0]}, "seeds and item ids are integers"),
    ],
)
def test_numbers_that_are_no_counts_or_seeds_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        SAMPLER.sample(pooling_problem(2), **arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_mixed_precisions_are_named(dtype: torch.dtype) -> None:
    prior = lavps.NetworkPrior(Convolution(), lavps.Flow(), "velocity")
    with pytest.raises(
        TypeError, match=f"measurements are in {dtype} and the prior's network is in torch.float32"
    ):
        lavps.MGDM(prior, num_steps=4).sample(pooling_problem(1).to(dtype))


def test_images_that_are_not_the_priors_are_refused() -> None:
    prior = network_prior()
    prior.image_shape = (3, 8, 8)
    sampler = lavps.MGDM(prior, num_steps=4)
    with pytest.raises(ValueError, match=r"images are \(1, 8, 8\), the prior's are \(3, 8, 8\): y.expand"):
        sampler.sample(pooling_problem(1))
    unbatched = lavps.InverseProblem(torch.zeros(3, 4, 4), lavps.operators.AveragePool(2), 0.1)
    with pytest.raises(ValueError, match=r"no batch axis: use y\[None\]"):
        sampler.sample(unbatched)
    prior.image_shape = (1, 16, 16)  # other sizes are left to the network
    sampler.sample(pooling_problem(1))


def test_one_sample_has_no_spread_to_speak_of() -> None:
    assert SAMPLER.sample(pooling_problem(2)).std.isnan().all()


def test_streaming_gives_the_same_statistics_without_the_samples() -> None:
    kept = SAMPLER.sample(pooling_problem(2), 30, seed=1)
    streamed = SAMPLER.sample(pooling_problem(2), 30, seed=1, keep_samples=False, batch_size=7)
    assert streamed.samples is None
    torch.testing.assert_close(streamed.mean, kept.mean.double(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(streamed.std, kept.std.double(), atol=1e-5, rtol=1e-4)
    error = (streamed.quantile(0.5) - kept.quantile(0.5)).abs() / kept.std
    assert error.mean() < 0.15
    with pytest.raises(KeyError, match="quantiles="):
        streamed.quantile(0.33)


@settings(max_examples=8)
@given(st.floats(0.05, 0.95), st.integers(0, 5))
@pytest.mark.thorough
def test_running_quantiles_approach_the_true_ones(q: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    stream = torch.randn(800, 5, 4, generator=generator).exp()
    statistics = RunningStatistics([q])
    for x in stream:
        statistics.update(x)
    exact = stream.double().quantile(q, dim=0)
    # In ranks, where the scale of the distribution does not matter.
    rank = (stream.double() <= statistics.quantile(q)).double().mean(0)
    assert (rank - q).abs().max() < 0.06
    assert (rank - q).abs().mean() < 0.02
    assert exact.shape == statistics.quantile(q).shape
    torch.testing.assert_close(statistics.mean, stream.double().mean(0))
    torch.testing.assert_close(statistics.std, stream.double().std(0))


def test_running_quantiles_of_few_samples_are_exact() -> None:
    stream = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()
    statistics = RunningStatistics([0.25])
    for x in stream:
        statistics.update(x)
    torch.testing.assert_close(statistics.quantile(0.25), stream.quantile(0.25, dim=0))


def test_the_trace_records_every_step() -> None:
    sampler = lavps.LAVPS(
        network_prior(),
        lambda c: lavps.DiagonalGaussian(c.bridge.mean + 1.0, c.bridge.log_std),
        num_steps=12,
        gradient_steps_start=1,
        r_switch=0.5,
    )
    trace = sampler.sample(pooling_problem(2), 2).trace
    inside = trace.times <= 0.5 + 1e-9
    assert trace.losses.shape == trace.accepted.shape == (10, 4)
    assert trace.accepted[inside].isfinite().all()
    assert trace.accepted[~inside].isnan().all(), "no safeguard decision while t > 0.5"
    assert trace.model_forwards == inside.sum()
    assert trace.acceptance_by_step.shape == (10,)
    assert 0 <= trace.acceptance <= 1
    assert trace.seconds > 0
    assert (trace.step_backwards[~inside] == 1).all()
    assert (trace.step_forwards[~inside][1:] == 2).all(), "one for the gradient, one for x_0"


def test_a_trace_of_zero_shot_has_no_acceptance() -> None:
    assert (
        SAMPLER.sample(pooling_problem(1)).trace.acceptance
        != SAMPLER.sample(pooling_problem(1)).trace.acceptance
    )


def test_the_posterior_of_one_item_is_its_part_of_all() -> None:
    samples = torch.randn(3, 4, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    rows, steps = 12, 5
    losses = torch.arange(steps * rows, dtype=torch.float64).reshape(steps, rows)
    ones = torch.ones(steps, dtype=torch.float64)
    accepted = (losses % 3 == 0).double()
    trace = Trace(ones, losses, accepted, 2 * ones, ones, 0 * ones, 6 * ones)
    posterior = Posterior(samples, samples.mean(1), samples.std(1), 4, trace)
    last = posterior[-1]
    assert last.samples is not None
    torch.testing.assert_close(last.samples, samples[2:])
    torch.testing.assert_close(last.mean, posterior.mean[2:])
    torch.testing.assert_close(last.trace.losses, losses[:, 8:])
    assert last.trace.acceptance == float(accepted[:, 8:].mean())
    assert last.trace.forwards == posterior.trace.forwards == 10
    assert last.trace.seconds == pytest.approx(posterior.trace.seconds / 3)
    with pytest.raises(IndexError):
        posterior[3]
