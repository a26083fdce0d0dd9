"""Options, evaluation counts and errors of each sampler."""

from __future__ import annotations

import warnings

import pytest
import torch

import lavps
from lavps.guidance import Amortized, Gradient, Guidance, Linearized, switch
from lavps.operators import AveragePool, HDRClip, PhaseRetrieval
from lavps.samplers import (
    FractionMidpoint,
    MixedMidpoint,
    OutOfDistributionWarning,
    PreviousMidpoint,
    UniformMidpoint,
)
from lavps.schedule import time_grid
from support.problems import network_prior, pooling_problem


def bridge_plus_nothing(context: lavps.Context) -> lavps.DiagonalGaussian:
    return context.bridge


def predicted(steps: int, safeguard_every: int | None = 1) -> Amortized:
    return Amortized(bridge_plus_nothing, steps, safeguard_every=safeguard_every)


@pytest.mark.parametrize(
    ("guidance", "options", "forwards", "backwards"),
    [
        (Gradient(1), {}, 197, 98),
        (Gradient(3), {}, 393, 294),
        pytest.param(Gradient(20), {}, 2059, 1960, marks=pytest.mark.slow),
        (switch(Gradient(1), Gradient(10), at=0.2), {}, 368, 269),
        (Gradient(0), {}, 99, 0),
        (Gradient(0), {"denoising_steps": 5}, 491, 0),
        (Gradient(1), {"repetitions": 2}, 393, 196),
        (Linearized(), {}, 99, 0),
        (switch(Linearized(0.01), Linearized(), at=0.5), {}, 99, 0),
    ],
)
@pytest.mark.thorough
def test_mgdm_spends_what_the_paper_says(
    guidance: Guidance, options: dict[str, int], forwards: int, backwards: int
) -> None:
    trace = lavps.MGDM(network_prior(), guidance=guidance, **options).sample(pooling_problem(1)).trace
    assert (trace.forwards, trace.backwards) == (forwards, backwards)


@pytest.mark.parametrize(
    ("guidance", "options", "forwards", "backwards"),
    [
        (predicted(0, safeguard_every=None), {}, 99, 0),
        (predicted(0), {}, 197, 0),  # two evaluations, x_0 is that of the accepted one
        (predicted(1), {}, 295, 98),  # two evaluations, one of them the gradient's, one for x_0
        (switch(Gradient(1), predicted(1), at=0.3), {}, 226, 98),
        (predicted(0), {"denoising_steps": 2}, 393, 0),
        (predicted(0, safeguard_every=4), {}, 99 + 25, 0),  # decisions at k = 99, 96, 92, ..., 4
        (switch(predicted(0, safeguard_every=None), predicted(1, safeguard_every=None), at=0.3), {}, 128, 29),
        (switch(predicted(0), Linearized(), at=0.5), {}, 99 + 49, 0),  # decisions at k = 99, ..., 51
    ],
)
@pytest.mark.thorough
def test_lavps_pays_for_no_evaluation_twice(
    guidance: Guidance, options: dict[str, int], forwards: int, backwards: int
) -> None:
    sampler = lavps.MGDM(network_prior(), guidance=guidance, **options)
    trace = sampler.sample(pooling_problem(1)).trace
    assert (trace.forwards, trace.backwards) == (forwards, backwards)


def test_a_switch_to_the_linearized_step_replaces_the_model() -> None:
    problem, prior = pooling_problem(1), network_prior()

    def run(guidance: Guidance) -> lavps.Posterior:
        return lavps.MGDM(prior, num_steps=10, guidance=guidance).sample(problem)

    assert run(switch(predicted(0), Linearized(), at=0.5)).trace.model_forwards == 4  # k = 9, 8, 7, 6
    alone = run(Linearized())
    as_prediction = run(Amortized(Linearized(), steps=0, safeguard_every=None))
    assert torch.equal(alone.samples, as_prediction.samples)
    assert alone.trace.model_forwards == as_prediction.trace.model_forwards == 0


def test_the_lavps_of_the_paper_switches_from_gradients_to_the_model() -> None:
    prior = network_prior()
    assert lavps.LAVPS(prior, bridge_plus_nothing) == lavps.MGDM(
        prior, guidance=switch(Gradient(3), Amortized(bridge_plus_nothing, steps=1), at=0.1)
    )
    options = {"num_steps": 20, "renoise": "bridge"}
    whitened = lavps.WhitenedGradient()
    assert lavps.LAVPS(
        prior, bridge_plus_nothing, gradient_steps_start=2, gradient_steps_end=0, r_switch=0.7,
        minimizer=whitened, safeguard_every=None, **options,
    ) == lavps.MGDM(
        prior,
        guidance=switch(
            Gradient(2, whitened), Amortized(bridge_plus_nothing, 0, whitened, safeguard_every=None), at=0.3
        ),
        **options,
    )  # fmt: skip
    assert lavps.LAVPS(prior, bridge_plus_nothing).name == "LAVPS"


def test_a_sampler_is_called_lavps_if_a_model_takes_part() -> None:
    prior = network_prior()
    assert lavps.MGDM(prior).name == lavps.MGDM(prior, guidance=Linearized()).name == "MGDM"
    assert lavps.MGDM(prior, guidance=Amortized(Linearized(), steps=1)).name == "MGDM"
    assert lavps.MGDM(prior, guidance=switch(predicted(0), Linearized(), at=0.5)).name == "LAVPS"
    assert lavps.MGPS(prior).name == "MGPS"


@pytest.mark.parametrize("r_switch", [0.9, 0.8, 0.7])
def test_the_paper_windows_have_9_19_29_of_100_steps(r_switch: float) -> None:
    sampler = lavps.LAVPS(network_prior(), bridge_plus_nothing, r_switch=r_switch)
    parts = [sampler.guidance.part(float(time_grid(100)[k])) for k in range(99, 1, -1)]
    inside = [isinstance(part, Amortized) for part in parts]
    assert sum(inside) == round(100 * (1 - r_switch)) - 1
    assert inside == sorted(inside), "the window is the last steps"
    assert sampler.sample(pooling_problem(1)).trace.model_forwards == sum(inside)


def test_dps_takes_one_forward_and_one_backward_per_step() -> None:
    trace = lavps.DPS(network_prior(), num_steps=17).sample(pooling_problem(2)).trace
    assert trace.step_forwards.tolist() == [1.0] * 17
    assert trace.step_backwards.tolist() == [1.0] * 17


def test_mgps_and_mmps_spend_what_their_docstrings_say() -> None:
    trace = lavps.MGPS(network_prior(), num_steps=20).sample(pooling_problem(1)).trace
    assert (trace.forwards, trace.backwards) == (1 + 19 * 4, 19 * 3)
    prior = lavps.GaussianPrior(torch.zeros(1, 8, 8), 0.2 * torch.eye(64) + 0.05)
    trace = lavps.MMPS(prior, num_steps=20, solver_steps=2).sample(pooling_problem(1)).trace
    assert (trace.forwards, trace.backwards) == (20, 20 * 3)


def test_a_prediction_equal_to_the_bridge_changes_nothing() -> None:
    problem = pooling_problem(3)
    for steps in (2, 0):
        zero_shot = (
            lavps.MGDM(network_prior(), num_steps=12, guidance=Gradient(steps)).sample(problem).samples
        )
        for every in (1, None):
            sampler = lavps.MGDM(network_prior(), num_steps=12, guidance=predicted(steps, every))
            torch.testing.assert_close(sampler.sample(problem).samples, zero_shot, atol=1e-6, rtol=1e-5)


def test_mgps_takes_the_guidance_of_mgdm() -> None:
    problem, whitened = pooling_problem(2), lavps.WhitenedGradient()
    plain = lavps.MGPS(network_prior(), num_steps=12, guidance=Gradient(1, whitened)).sample(problem).samples
    guidance = Amortized(bridge_plus_nothing, 1, whitened)
    warm = lavps.MGPS(network_prior(), num_steps=12, guidance=guidance)
    torch.testing.assert_close(warm.sample(problem).samples, plain, atol=1e-6, rtol=1e-5)
    assert warm.sample(problem).trace.model_forwards == 11
    # The contexts of MGPS are at u = t_{k+1}: 0.5 and below from k = 5 on.
    late = lavps.MGPS(network_prior(), num_steps=12, guidance=switch(Gradient(1, whitened), guidance, at=0.5))
    assert late.sample(problem).trace.step_model_forwards.tolist() == [0.0] * 6 + [1.0] * 5


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
        ({"repetitions": 0}, "at least 1"),
        ({"renoise": "backward"}, "renoise"),
        ({"grid_power": 0.0, "num_steps": 5}, "power"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lavps.MGDM(network_prior(), **options).sample(pooling_problem(1))


@pytest.mark.parametrize("r_switch", [1.5, 1.0, 0.0, -0.5])
def test_a_window_that_holds_no_time_or_all_of_it_is_refused(r_switch: float) -> None:
    with pytest.raises(ValueError, match="leaves one part without any time"):
        lavps.LAVPS(network_prior(), bridge_plus_nothing, r_switch=r_switch)


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


@pytest.mark.parametrize("task", [pytest.param("phase retrieval", marks=pytest.mark.slow), "HDR", "Poisson"])
@pytest.mark.parametrize(
    "make",
    [
        lambda prior: lavps.MGDM(prior, guidance=Gradient(5)),
        lambda prior: lavps.MGDM(prior, guidance=Gradient(2, lavps.WhitenedGradient())),
        lambda prior: lavps.DPS(prior, num_steps=200),
    ],
    ids=["MGDM-Adam", "MGDM-whitened", "DPS"],
)
@pytest.mark.thorough
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


def test_a_model_whose_predictions_are_rejected_is_reported_as_out_of_distribution() -> None:
    sampler = lavps.MGDM(network_prior(), num_steps=5, guidance=Amortized(far_from_it, steps=0))
    with pytest.warns(
        OutOfDistributionWarning, match=r"operator looks out of distribution.*accepted only 0%"
    ):
        trace = sampler.sample(pooling_problem(2)).trace
    assert trace.out_of_distribution
    assert trace.acceptance_by_row.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("safeguard_every", [1, None])
def test_a_model_that_fits_or_has_no_safeguard_is_not(safeguard_every: int | None) -> None:
    sampler = lavps.MGDM(network_prior(), num_steps=5, guidance=predicted(0, safeguard_every))
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutOfDistributionWarning)
        trace = sampler.sample(pooling_problem(2)).trace
    assert trace.advice is None
