"""What is particular to one sampler: options, counts, errors."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

import lavps
from lavps.operators import AveragePool, HDRClip, PhaseRetrieval
from lavps.samplers import (
    FractionMidpoint,
    MixedMidpoint,
    OutOfDistributionWarning,
    PreviousMidpoint,
    UniformMidpoint,
)
from lavps.schedule import time_grid
from problems import network_prior, pooling_problem


def bridge_plus_nothing(context: lavps.Context) -> lavps.DiagonalGaussian:
    return context.bridge


@pytest.mark.parametrize(
    ("options", "forwards", "backwards"),
    [
        ({"gradient_steps_start": 1}, 197, 98),
        ({"gradient_steps_start": 3}, 393, 294),
        ({"gradient_steps_start": 20}, 2059, 1960),
        ({"gradient_steps_start": 1, "gradient_steps_end": 10, "r_switch": 0.8}, 368, 269),
        ({"gradient_steps_start": 0}, 99, 0),
        ({"gradient_steps_start": 0, "denoising_steps": 5}, 491, 0),
        ({"gradient_steps_start": 1, "repetitions": 2}, 393, 196),
    ],
)
def test_mgdm_spends_what_the_paper_says(options: dict[str, int], forwards: int, backwards: int) -> None:
    trace = lavps.MGDM(network_prior(), **options).sample(pooling_problem(1)).trace
    assert (trace.forwards, trace.backwards) == (forwards, backwards)


@pytest.mark.parametrize(
    ("options", "forwards", "backwards"),
    [
        ({"gradient_steps_start": 0, "safeguard": False}, 99, 0),
        ({"gradient_steps_start": 0}, 197, 0),  # two evaluations, x_0 is the winner's
        ({"gradient_steps_start": 1}, 295, 98),  # two evaluations, one of them the gradient's, one for x_0
        ({"gradient_steps_start": 1, "gradient_steps_end": 1, "r_switch": 0.7}, 226, 98),
        ({"gradient_steps_start": 0, "denoising_steps": 2}, 393, 0),
        ({"gradient_steps_start": 0, "probe_every": 4}, 99 + 25, 0),  # k = 99, 96, 92, ..., 4 are judged
        (
            {
                "gradient_steps_start": 0,
                "gradient_steps_end": 1,
                "r_switch": 0.7,
                "r_model": 0.0,
                "safeguard": False,
            },
            99 + 29,
            29,
        ),
        ({"gradient_steps_start": 0, "r_step": 0.5}, 99 + 49, 0),  # k = 99, ..., 51 are judged
    ],
)
def test_lavps_pays_for_no_evaluation_twice(options: dict[str, int], forwards: int, backwards: int) -> None:
    sampler = lavps.LAVPS(network_prior(), bridge_plus_nothing, **options)
    trace = sampler.sample(pooling_problem(1)).trace
    assert (trace.forwards, trace.backwards) == (forwards, backwards)


def test_a_likelihood_step_takes_the_place_of_the_model() -> None:
    problem = pooling_problem(1)
    late = lavps.LAVPS(network_prior(), bridge_plus_nothing, num_steps=10, gradient_steps_start=0, r_step=0.5)
    assert late.sample(problem).trace.model_forwards == 4  # k = 9, 8, 7, 6
    never = replace(late, model=lavps.LikelihoodStep(), r_step=None, safeguard=False)
    always = replace(late, r_step=0.0)
    assert torch.equal(always.sample(problem).samples, never.sample(problem).samples)
    assert always.sample(problem).trace.model_forwards == 0
    with pytest.raises(ValueError, match="r_step must lie in"):
        replace(late, r_step=1.5)


@pytest.mark.parametrize("r_switch", [0.9, 0.8, 0.7])
def test_the_paper_windows_have_9_19_29_of_100_steps(r_switch: float) -> None:
    sampler = lavps.MGDM(network_prior(), r_switch=r_switch)
    inside = [k for k in range(99, 1, -1) if sampler.in_window(float(time_grid(100)[k]))]
    assert len(inside) == round(100 * (1 - r_switch)) - 1


def test_dps_takes_one_forward_and_one_backward_a_step() -> None:
    trace = lavps.DPS(network_prior(), num_steps=17).sample(pooling_problem(2)).trace
    assert trace.step_forwards.tolist() == [1.0] * 17
    assert trace.step_backwards.tolist() == [1.0] * 17


def test_mgps_and_mmps_spend_what_their_docstrings_say() -> None:
    trace = lavps.MGPS(network_prior(), num_steps=20, gradient_steps=3).sample(pooling_problem(1)).trace
    assert (trace.forwards, trace.backwards) == (1 + 19 * 4, 19 * 3)
    prior = lavps.GaussianPrior(torch.zeros(1, 8, 8), 0.2 * torch.eye(64) + 0.05)
    trace = lavps.MMPS(prior, num_steps=20, solver_steps=2).sample(pooling_problem(1)).trace
    assert (trace.forwards, trace.backwards) == (20, 20 * 3)


def test_a_warm_start_equal_to_the_bridge_changes_nothing() -> None:
    problem = pooling_problem(3)
    for options in ({"gradient_steps_start": 2}, {"gradient_steps_start": 0}):
        zero_shot = lavps.MGDM(network_prior(), num_steps=12, **options).sample(problem).samples
        for safeguard in (True, False):
            sampler = lavps.LAVPS(
                network_prior(), bridge_plus_nothing, num_steps=12, safeguard=safeguard, **options
            )
            torch.testing.assert_close(sampler.sample(problem).samples, zero_shot, atol=1e-6, rtol=1e-5)


def test_mgps_takes_the_warm_start_of_mgdm() -> None:
    problem = pooling_problem(2)
    plain = lavps.MGPS(network_prior(), num_steps=12, gradient_steps=1).sample(problem).samples
    warm = lavps.MGPS(network_prior(), num_steps=12, gradient_steps=1, model=bridge_plus_nothing)
    torch.testing.assert_close(warm.sample(problem).samples, plain, atol=1e-6, rtol=1e-5)
    assert warm.sample(problem).trace.model_forwards == 11


def test_every_midpoint_lies_between_zero_and_t() -> None:
    grid, uniform = time_grid(20), torch.rand(64, generator=torch.Generator().manual_seed(0)).double()
    for rule in (PreviousMidpoint(), UniformMidpoint(), MixedMidpoint(0.5), FractionMidpoint(0.5)):
        for k in range(2, 20):
            s = rule.draw(grid, k, lambda: uniform)
            assert (s > 0).all()
            assert (s < grid[k]).all()
    assert MixedMidpoint(0.5).draw(grid, 19, lambda: uniform).shape == (64,)
    assert MixedMidpoint(0.5).draw(grid, 9, lambda: uniform) == grid[8]


@pytest.mark.parametrize("steps", [3, 4])
def test_three_steps_are_enough_for_a_run(steps: int) -> None:
    for sampler in (
        lavps.MGDM(network_prior(), num_steps=steps),
        lavps.MGPS(network_prior(), num_steps=steps),
    ):
        assert sampler.sample(pooling_problem(1)).samples.isfinite().all()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_ddim_dps_and_mmps_run_with_as_few_as_one_step(steps: int) -> None:
    for kind in (lavps.DDIM, lavps.DPS, lavps.MMPS):
        assert kind(network_prior(), num_steps=steps).sample(pooling_problem(1)).samples.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 2}, "at least 3"),
        ({"gradient_steps_start": -1}, "negative"),
        ({"repetitions": 0}, "at least 1"),
        ({"renoise": "backward"}, "renoise"),
        ({"r_switch": 1.5}, "r_switch"),
        ({"grid_power": 0.0, "num_steps": 5}, "power"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lavps.MGDM(network_prior(), **options).sample(pooling_problem(1))


def test_ddim_samples_its_prior() -> None:
    covariance = 0.2 * torch.eye(4) + 0.1
    prior = lavps.GaussianPrior(torch.tensor([0.5, -0.5, 0.0, 1.0]).reshape(1, 2, 2), covariance)
    for eta in (0.0, 1.0):
        sampler = lavps.DDIM(prior, num_steps=200, eta=eta)
        x = sampler.sample(lavps.Unconditional((1, 2, 2)), 4000).samples[0].flatten(1)
        torch.testing.assert_close(x.mean(0), prior.mean.flatten().float(), atol=0.04, rtol=0)
        torch.testing.assert_close(x.T.cov(), covariance, atol=0.03, rtol=0)


def smooth_prior() -> lavps.GaussianPrior:
    squared = (torch.arange(8.0)[:, None] - torch.arange(8.0)).square()
    smooth = torch.exp(-squared / 4)
    return lavps.GaussianPrior(torch.zeros(1, 8, 8), 0.25 * torch.kron(smooth, smooth) + 0.02 * torch.eye(64))


HARD = {
    "phase retrieval": (PhaseRetrieval(2.0), lavps.GaussianNoise(0.05)),
    "HDR": (HDRClip(2.0), lavps.GaussianNoise(0.05)),
    "Poisson": (AveragePool(2), lavps.PoissonNoise(300.0)),
}


@pytest.mark.parametrize("task", HARD)
@pytest.mark.parametrize(
    "make",
    [
        lambda prior: lavps.MGDM(prior, gradient_steps_start=5),
        lambda prior: lavps.MGDM(prior, gradient_steps_start=2, minimizer=lavps.WhitenedGradient()),
        lambda prior: lavps.DPS(prior, num_steps=200),
    ],
    ids=["MGDM-Adam", "MGDM-whitened", "DPS"],
)
def test_nonlinear_operators_and_counts_are_fitted(task: str, make) -> None:
    prior = smooth_prior()
    truth = prior.sample(3, seed=1).float().clamp(-1, 1)
    problem = lavps.InverseProblem.simulate(truth, *HARD[task])
    misfits = [problem.repeat(4).chi_square(s.x_0).mean() for s in make(prior).iterate(problem, 4, seed=0)]
    first, middle, last = misfits[0], misfits[len(misfits) // 2], misfits[-1]
    assert last < middle, "the misfit falls to the end"
    assert last < 0.35 * first, f"the misfit fell from {first:.2f} to {last:.2f} only"


def far_from_it(context: lavps.Context) -> lavps.DiagonalGaussian:
    return lavps.DiagonalGaussian(context.bridge.mean + 10.0, context.bridge.log_std)


def test_a_model_whose_starts_are_refused_is_called_out_of_distribution() -> None:
    sampler = lavps.LAVPS(network_prior(), far_from_it, gradient_steps_start=0, num_steps=5)
    with pytest.warns(OutOfDistributionWarning, match=r"operator looks out of distribution.*kept only 0%"):
        trace = sampler.sample(pooling_problem(2)).trace
    assert trace.out_of_distribution
    assert trace.acceptance_by_row.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("safeguard", [True, False])
def test_a_model_that_fits_or_cannot_be_judged_is_not(safeguard: bool) -> None:
    sampler = lavps.LAVPS(
        network_prior(), bridge_plus_nothing, gradient_steps_start=0, num_steps=5, safeguard=safeguard
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutOfDistributionWarning)
        trace = sampler.sample(pooling_problem(2)).trace
    assert trace.advice is None
