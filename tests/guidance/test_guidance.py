"""Guidance: how the midpoint is drawn, at what cost, and row by row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

import lavps
from lavps.guidance import (
    Amortized,
    Gradient,
    Guidance,
    GuidedStep,
    Linearized,
    MidpointDraw,
    linearized_step,
    switch,
)
from lavps.operators import Blur, CallableOperator, HDRClip, Identity
from lavps.priors import CountingPrior
from lavps.samplers import UNBOUND, Sampler, Settings
from lavps.schedule import as_time, time_grid
from lavps.transitions import per_sample
from lavps.variational import Context, DiagonalGaussian, Objective, ObjectiveGradient
from support.problems import images, masking_problem, network_prior, pooling_problem
from support.variational import context, objective

FINAL_NOISE = images(3, seed=50)


def guided(problem: Objective, index: int = 0, accepted: Tensor | None = None) -> GuidedStep:
    return GuidedStep(problem, lambda: FINAL_NOISE[: len(problem.context.x_t)], index, accepted)


def start_of(draw: MidpointDraw, problem: Objective) -> Tensor:
    """The mean of q, for a draw without gradient steps and with the bridge's standard deviation."""
    return draw.x_s - problem.context.bridge.log_std.exp() * problem.noise(0)


def descended(c: Context) -> DiagonalGaussian:
    """A good prediction: the bridge after some descent, under the noise the safeguard compares with."""
    problem = objective(c)
    fixed = replace(problem, noise=lambda index: problem.noise(0))
    return lavps.WhitenedGradient().minimize(fixed, c.bridge, 20)[0]


def mixed(c: Context) -> DiagonalGaussian:
    """Good for rows 0 and 2, terrible for row 1."""
    good = descended(c)
    bad = DiagonalGaussian(good.mean + 5.0, good.log_std)
    return DiagonalGaussian.where(torch.tensor([True, False, True]), good, bad)


@dataclass(frozen=True)
class Recording:
    """A minimizer that stays at its start and records what it was given."""

    given: list[tuple[DiagonalGaussian, ObjectiveGradient | None]] = field(default_factory=list)

    def minimize(
        self,
        objective: Objective,
        start: DiagonalGaussian,
        steps: int,
        first: ObjectiveGradient | None = None,
    ) -> tuple[DiagonalGaussian, Tensor]:
        self.given.append((start, first))
        return start, torch.zeros(len(start.mean))


# --- gradients --------------------------------------------------------------------------------------------


def test_no_gradient_step_draws_from_the_bridge_without_a_denoiser_evaluation() -> None:
    prior = CountingPrior(objective(context()).prior)
    problem = objective(context(), prior)
    draw = Gradient(steps=0).draw(guided(problem))
    assert (prior.forwards, prior.backwards) == (0, 0)
    assert (draw.x_0, draw.loss, draw.accepted, draw.model_forwards) == (None, None, None, 0)
    torch.testing.assert_close(draw.x_s, context().bridge.sample(problem.noise(0)))


@pytest.mark.parametrize("minimizer", [lavps.Adam(0.1), lavps.WhitenedGradient()], ids=repr)
def test_gradient_steps_descend_from_the_bridge(minimizer: lavps.Adam | lavps.WhitenedGradient) -> None:
    prior = CountingPrior(objective(context()).prior)
    problem = objective(context(), prior)
    draw = Gradient(steps=2, minimizer=minimizer).draw(guided(problem))
    assert (prior.forwards, prior.backwards) == (6, 6)
    q, loss = minimizer.minimize(problem, problem.context.bridge, 2)
    torch.testing.assert_close(draw.x_s, q.sample(FINAL_NOISE))
    torch.testing.assert_close(draw.loss, loss)
    assert (draw.accepted, draw.model_forwards) == (None, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gradient(steps=-1), "steps must not be negative, got -1"),
        (lambda: Amortized(mixed, steps=-2), "steps must not be negative, got -2"),
        (lambda: Amortized(mixed, safeguard_every=0), "safeguard_every must be at least 1, or None: got 0"),
        (lambda: Linearized(data_variance=0.0), "data_variance must be positive"),
        (lambda: Linearized(solver_steps=0), "solver_steps at least 1"),
    ],
)
def test_invalid_guidance_is_refused(make: Callable[[], Guidance], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# --- predictions of a model -------------------------------------------------------------------------------


def test_without_a_safeguard_every_prediction_is_taken_as_it_is() -> None:
    prior = CountingPrior(objective(context()).prior)
    problem, recording = objective(context(), prior), Recording()
    prediction = mixed(problem.context)
    draw = Amortized(mixed, steps=0, safeguard_every=None).draw(guided(problem))
    torch.testing.assert_close(draw.x_s, prediction.sample(problem.noise(0)))
    assert (prior.forwards, draw.model_forwards, draw.accepted) == (0, 1, None)
    Amortized(mixed, steps=2, minimizer=recording, safeguard_every=None).draw(guided(problem))
    ((start, first),) = recording.given
    torch.testing.assert_close(start.mean, prediction.mean)
    assert first is None


def test_the_safeguard_decides_per_sample() -> None:
    problem = objective(context())
    draw = Amortized(mixed, steps=0).draw(guided(problem))
    assert draw.accepted.tolist() == [True, False, True]
    torch.testing.assert_close(draw.x_s[1], problem.context.bridge.sample(problem.noise(0))[1])
    torch.testing.assert_close(draw.x_s[0], mixed(problem.context).sample(problem.noise(0))[0])


def test_a_decision_is_kept_between_safeguards_at_no_cost() -> None:
    prior = CountingPrior(objective(context()).prior)
    problem = objective(context(), prior)
    last = torch.tensor([False, True, True])

    def predict(c: Context) -> DiagonalGaussian:
        mean = c.bridge.mean + 1.0
        mean[2] = torch.nan
        return DiagonalGaussian(mean, c.bridge.log_std)

    draw = Amortized(predict, steps=0, safeguard_every=3).draw(guided(problem, index=4, accepted=last))
    shift = (start_of(draw, problem) - problem.context.bridge.mean).flatten(1).mean(1)
    torch.testing.assert_close(shift, torch.tensor([0.0, 1.0, 0.0]))  # the last one is not finite
    assert (prior.forwards, draw.model_forwards, draw.accepted) == (0, 1, None)


@pytest.mark.parametrize(("index", "known", "decides"), [(6, True, True), (7, True, False), (7, False, True)])
def test_the_safeguard_decides_at_multiples_of_its_interval_and_when_first_used(
    index: int, known: bool, decides: bool
) -> None:
    prior = CountingPrior(objective(context()).prior)
    last = torch.tensor([True, True, True]) if known else None
    draw = Amortized(mixed, steps=0, safeguard_every=3).draw(
        guided(objective(context(), prior), index, accepted=last)
    )
    assert prior.forwards == (6 if decides else 0)
    assert (draw.accepted is not None) == decides


def test_the_safeguard_compares_with_common_random_numbers() -> None:
    """A prediction that differs by a hair is judged correctly, though the loss itself is noisy."""
    problem = objective(context())

    def hair(towards_optimum: float):
        def model(c: Context) -> DiagonalGaussian:
            gradient = problem.gradient(c.bridge).mean
            return DiagonalGaussian(c.bridge.mean - towards_optimum * gradient, c.bridge.log_std)

        return model

    assert Amortized(hair(1e-7), steps=0).draw(guided(problem)).accepted.all()
    assert not Amortized(hair(-1e-5), steps=0).draw(guided(problem)).accepted.any()


def test_the_evaluations_of_the_safeguard_are_returned() -> None:
    prior = CountingPrior(objective(context()).prior)
    problem = objective(context(), prior)
    draw = Amortized(mixed, steps=0).draw(guided(problem))
    assert (prior.forwards, prior.backwards) == (6, 0)
    start = DiagonalGaussian.where(draw.accepted, mixed(problem.context), problem.context.bridge)
    fresh = problem.evaluate(start, 0)
    torch.testing.assert_close(draw.x_0, fresh.x_0)
    torch.testing.assert_close(draw.x_s, fresh.x_s)
    torch.testing.assert_close(draw.loss, fresh.loss)


@pytest.mark.parametrize(
    ("model", "forwards"),
    [
        (descended, 6),
        (mixed, 7),
        (lambda c: DiagonalGaussian(c.bridge.mean + 5.0, c.bridge.log_std), 9),
    ],
    ids=["accepted", "mixed", "rejected"],
)
def test_the_first_gradient_of_a_mixed_batch_is_that_of_each_row_s_start(model, forwards: int) -> None:
    prior = CountingPrior(objective(context()).prior)
    problem, recording = objective(context(), prior), Recording()
    draw = Amortized(model, steps=1, minimizer=recording).draw(guided(problem))
    assert prior.forwards == forwards, "only rows that fell back pay another forward pass"
    ((start, first),) = recording.given
    expected = DiagonalGaussian.where(draw.accepted, model(problem.context), problem.context.bridge)
    torch.testing.assert_close(start.mean, expected.mean)
    torch.testing.assert_close(start.log_std, expected.log_std)
    fresh = problem.gradient(start, 0)
    torch.testing.assert_close(first.loss, fresh.loss)
    torch.testing.assert_close(first.mean, fresh.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(first.log_std, fresh.log_std, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(draw.x_s, start.sample(FINAL_NOISE))


@pytest.mark.parametrize("steps", [0, 1])
def test_a_prediction_that_is_not_finite_is_rejected(steps: int) -> None:
    def broken(c: Context) -> DiagonalGaussian:
        mean = c.bridge.mean.clone()
        mean[1] = float("nan")
        mean[2] = float("inf")
        return DiagonalGaussian(mean, c.bridge.log_std)

    recording = Recording()
    draw = Amortized(broken, steps, minimizer=recording).draw(guided(objective(context())))
    assert draw.accepted.tolist() == [True, False, False]
    assert draw.x_s.isfinite().all()
    if steps:
        ((start, first),) = recording.given
        assert start.mean.isfinite().all()
        assert first.mean.isfinite().all()
    else:
        assert draw.x_0.isfinite().all()


# --- the linearized problem -------------------------------------------------------------------------------


def test_the_linearized_step_solves_the_inner_problem_of_independent_pixels() -> None:
    shape, v = (1, 2, 3), 0.25
    prior = lavps.GaussianPrior(torch.zeros(shape), v * torch.eye(6), lavps.Flow())
    x_t, y = (torch.randn(3, *shape, generator=torch.Generator().manual_seed(i)).double() for i in (0, 1))
    problem = lavps.InverseProblem(y, Identity(), lavps.GaussianNoise(0.3))
    s, t = (torch.tensor(time, dtype=torch.float64) for time in (0.5, 0.6))
    x_0 = x_t
    for _ in range(200):  # the x_0 that the denoiser returns at the bridge's own mean
        c = Context(x_0, x_t, s, t, problem, prior.schedule)
        x_0 = prior.denoise(c.bridge.mean, s)
    exact = Objective(prior, c, lambda index: torch.zeros_like(x_t))
    solved = exact.gradient(Linearized(v)(c)).mean
    assert float(solved.abs().max()) < 1e-6 < 0.1 < float(exact.gradient(c.bridge).mean.abs().max())


def test_the_linearized_step_solves_the_linear_system_of_a_blur() -> None:
    generator = torch.Generator().manual_seed(0)
    shape, v, std = (1, 4, 4), 1.0, 0.2
    x_0, x_t, y = (torch.randn(2, *shape, generator=generator).double() for _ in range(3))
    blur = Blur(torch.rand(3, 3, generator=generator).double())
    s, t = (torch.tensor(time, dtype=torch.float64) for time in (0.4, 0.5))
    c = Context(x_0, x_t, s, t, lavps.InverseProblem(y, blur, lavps.GaussianNoise(std)), lavps.Flow())
    dense = blur(torch.eye(16, dtype=torch.float64).reshape(16, *shape)).flatten(1).T  # A
    jacobian = c.bridge.log_std.exp() * 0.6 * v / (0.36 * v + 0.16)
    matrix = torch.eye(16).double() + jacobian.flatten()[0] ** 2 * dense.T @ dense / std**2
    score = (y.flatten(1) - x_0.flatten(1) @ dense.T) @ dense / std**2
    u = torch.linalg.solve(matrix, (jacobian.flatten()[0] * score).T).T.reshape(x_0.shape)
    expected = c.bridge.mean + c.bridge.log_std.exp() * u
    errors = [float((Linearized(v, n)(c).mean - expected).abs().max()) for n in (1, 3, 20)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-4
    step, _ = linearized_step(c, v, solver_steps=20)
    torch.testing.assert_close(step, u, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("schedule", [lavps.Flow(), lavps.VPLinear()], ids=repr)
@pytest.mark.parametrize("data_variance", [1.0, 0.01])
def test_the_linearized_step_is_the_proximal_step_of_diffpir(
    schedule: lavps.schedule.Schedule, data_variance: float
) -> None:
    """J (m - m_b) = prox(x_0) - x_0, prox(x_0) = argmin_z |y - A z|^2 / std^2 + |z - x_0|^2 / r^2."""
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    x_0, x_t = torch.randn(2, 3, 1, 2, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    std = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    operator = CallableOperator(lambda x: x.flatten(1) @ A.T, (1, 2, 3))
    s, t = as_time(torch.tensor([0.1, 0.4, 0.85])), as_time(torch.tensor([0.2, 0.6, 0.9]))
    c = Context(x_0, x_t, s, t, lavps.InverseProblem(y, operator, lavps.GaussianNoise(std)), schedule)
    m = Linearized(data_variance, solver_steps=30)(c).mean
    alpha, sigma = schedule.alpha(s), schedule.sigma(s)
    slope = alpha * data_variance / (alpha**2 * data_variance + sigma**2)  # J
    r_squared = (2 * c.bridge.log_std).exp().flatten() * slope**2
    for row in range(3):
        system = A.T @ A / std[row] ** 2 + torch.eye(6, dtype=torch.float64) / r_squared[row]
        z = torch.linalg.solve(system, A.T @ y[row] / std[row] ** 2 + x_0[row].flatten() / r_squared[row])
        moved = slope[row] * (m - c.bridge.mean)[row].flatten()
        assert (moved - (z - x_0[row].flatten())).norm() < 1e-5 * moved.norm()


def test_the_linearized_step_linearizes_a_nonlinear_operator() -> None:
    generator = torch.Generator().manual_seed(0)
    x_0, x_t = (torch.randn(2, 1, 4, 4, generator=generator) for _ in range(2))
    s, t = torch.tensor(0.1), torch.tensor(0.2)
    problem = lavps.InverseProblem.simulate(x_0 + 0.1, HDRClip(), lavps.GaussianNoise(0.05))
    c = Context(x_0, x_t, s, t, problem, lavps.Flow())
    moved = Linearized()(c).mean - c.bridge.mean
    clipped = HDRClip()(x_0).abs() >= 1
    assert moved[~clipped].abs().min() > 0
    assert not moved[clipped].any()  # to first order, nothing is known about them


def test_the_linearized_step_evaluates_no_denoiser_and_keeps_rows_apart() -> None:
    c = context()
    q = Linearized()(c)
    assert not torch.equal(q.mean, c.bridge.mean)
    assert torch.equal(q.log_std, c.bridge.log_std.expand_as(q.mean))
    alone = Linearized()(replace(c, x_0=c.x_0[1:2], x_t=c.x_t[1:2], problem=c.problem[1]))
    torch.testing.assert_close(alone.mean, q.mean[1:2])
    prior = CountingPrior(network_prior())
    problem = objective(c, prior)
    draw = Linearized().draw(guided(problem))
    torch.testing.assert_close(draw.x_s, q.sample(problem.noise(0)))
    assert (prior.forwards, draw.x_0, draw.loss, draw.accepted, draw.model_forwards) == (
        0,
        None,
        None,
        None,
        0,
    )


@pytest.mark.filterwarnings("ignore::lavps.samplers.OutOfDistributionWarning")
@pytest.mark.parametrize("kind", [lavps.MGDM, lavps.MGPS])
@pytest.mark.parametrize(
    "guidance",
    [
        Linearized(),
        Amortized(Linearized(), steps=0, safeguard_every=None),
        Amortized(Linearized(), steps=1),
        Amortized(Linearized(), steps=0, safeguard_every=3),
        switch(Amortized(Linearized(0.01), steps=0), Linearized(), at=0.5),
    ],
    ids=["alone", "unguarded", "refined", "every third", "switched"],
)
def test_a_linearized_step_never_counts_as_a_model_forward(kind, guidance: Guidance) -> None:
    problem, prior = pooling_problem(2), network_prior()
    assert kind(prior, num_steps=8, guidance=guidance).sample(problem).trace.model_forwards == 0
    model = kind(prior, num_steps=8, guidance=Amortized(lambda c: Linearized()(c), steps=0))
    assert model.sample(problem).trace.model_forwards == model.total_steps, "any other model counts"


# --- switches ---------------------------------------------------------------------------------------------

A, B, C, D = (Gradient(steps) for steps in (1, 2, 3, 4))


@pytest.mark.parametrize("at", [0.0, 1.0, -0.1, 1.3, float("nan")])
def test_a_switch_outside_the_time_is_refused(at: float) -> None:
    with pytest.raises(ValueError, match=r"leaves one part without any time: .* between 0 and 1"):
        switch(A, B, at=at)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: switch(switch(A, B, at=0.3), C, at=0.5), r"t = 0.3 .* between 0.5 and 1"),
        (lambda: switch(switch(A, B, at=0.5), C, at=0.5), r"t = 0.5 .* between 0.5 and 1"),
        (lambda: switch(A, switch(B, C, at=0.7), at=0.5), r"t = 0.7 .* between 0 and 0.5"),
        (
            lambda: switch(A, switch(switch(B, C, at=0.2), D, at=0.3), at=0.5),
            r"t = 0.2 .* between 0.3 and 1",
        ),
        (
            lambda: switch(A, switch(switch(B, C, at=0.7), D, at=0.3), at=0.5),
            r"t = 0.7 .* between 0.3 and 0.5",
        ),
    ],
)
def test_a_nested_part_that_is_never_reached_is_refused(make: Callable[[], Guidance], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("kind", "options", "guidance", "message"),
    [
        # K = 4: MGDM's steps are at t = 0.75 and 0.5, MGPS's at 1, 0.75 and 0.5.
        (lavps.MGDM, {"num_steps": 4}, switch(A, B, at=0.4), r"steps=2.* no step with t <= 0.4"),
        (lavps.MGDM, {"num_steps": 4}, switch(A, B, at=0.8), r"steps=1.* no step with t > 0.8"),
        (lavps.MGPS, {"num_steps": 4}, switch(A, B, at=0.4), r"steps=2.* no step with t <= 0.4"),
        (lavps.MGDM, {}, switch(A, B, at=0.015), r"run from t = 0.99 to 0.02"),
        (
            lavps.MGDM,
            {"num_steps": 4, "grid_power": 3.0},
            switch(A, B, at=0.5),
            r"steps=1.* no step with t > 0.5",
        ),
        (
            lavps.MGDM,
            {"num_steps": 4},
            switch(A, switch(B, C, at=0.3), at=0.6),
            r"steps=3.* no step with t <= 0.3",
        ),
        (
            lavps.MGDM,
            {"num_steps": 4},
            switch(switch(A, B, at=0.9), C, at=0.6),
            r"steps=1.* no step with t > 0.9",
        ),
    ],
)
def test_a_part_that_no_step_of_the_grid_reaches_is_refused(kind, options, guidance, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(network_prior(), guidance=guidance, **options)


def test_a_part_that_one_step_reaches_is_accepted() -> None:
    prior = network_prior()
    for at in (0.5, 0.6, 0.74):
        lavps.MGDM(prior, num_steps=4, guidance=switch(A, B, at=at))
    for at in (0.5, 0.75, 0.99):
        lavps.MGPS(prior, num_steps=4, guidance=switch(A, B, at=at))


def test_the_part_in_effect_is_found_by_time() -> None:
    nested = switch(switch(A, B, at=0.8), switch(C, D, at=0.2), at=0.5)
    found = [nested.part(t) for t in (1.0, 0.81, 0.8, 0.51, 0.5, 0.21, 0.2, 0.01)]
    assert found == [A, A, B, B, C, C, D, D]
    assert A.part(0.3) is A
    # Times of a grid are quotients in binary; a switch at the same decimal time includes them.
    for count in (7, 10, 49, 100, 1000):
        for k, t in enumerate(time_grid(count).tolist()[1:-1], start=1):
            assert switch(A, B, at=round(k / count, 9)).part(t) is B
            assert switch(A, B, at=round(1.0 - (count - k) / count, 9)).part(t) is B


def test_parts_that_are_not_reached_can_be_left_out() -> None:
    nested = switch(switch(A, B, at=0.8), switch(C, D, at=0.2), at=0.5)
    assert nested.reached([0.9, 0.7, 0.4, 0.1]) == nested
    assert nested.reached([0.9, 0.4, 0.1]) == switch(A, switch(C, D, at=0.2), at=0.5)
    assert nested.reached([0.7, 0.1]) == switch(B, D, at=0.5)
    assert nested.reached([0.9, 0.7]) == switch(A, B, at=0.8)
    assert nested.reached([0.1]) == D
    assert A.reached([0.3]) is A
    times = lavps.MGDM(network_prior(), num_steps=5).guided_times
    nested.reached(times).check_times(times)


@pytest.mark.parametrize(
    ("guidance", "parts"),
    [
        (switch(Gradient(2), Linearized(), at=0.5), 2),
        (switch(switch(Linearized(0.01), Gradient(1), at=0.7), Gradient(2), at=0.5), 3),
    ],
    ids=["two parts", "three parts"],
)
def test_rows_at_different_times_are_drawn_by_their_own_parts(guidance: Guidance, parts: int) -> None:
    s, t = torch.tensor([0.1, 0.5, 0.7]), torch.tensor([0.4, 0.6, 0.9])
    step = guided(objective(context(s=s, t=t)))
    whole = guidance.draw(step).x_s
    assert len({guidance.part(float(time)) for time in t}) == parts
    for row in range(3):
        alone = guidance.part(float(t[row])).draw(step.select(torch.tensor([row]))).x_s
        torch.testing.assert_close(whole[row : row + 1], alone, atol=1e-6, rtol=1e-5)


def test_rows_at_different_times_keep_their_own_safeguard_decisions() -> None:
    """Each half is safeguarded by itself, and between decisions each row keeps its own last one."""
    far = Amortized(lambda c: DiagonalGaussian(c.bridge.mean + 5.0, c.bridge.log_std), 0, safeguard_every=2)
    near = replace(far, model=lambda c: DiagonalGaussian(c.bridge.mean + 1.0, c.bridge.log_std))
    c = context(s=torch.tensor([0.1, 0.5, 0.7]), t=torch.tensor([0.4, 0.6, 0.9]))
    problem = objective(c)
    guidance = switch(far, near, at=0.5)
    draw = guidance.draw(guided(problem, index=1, accepted=torch.tensor([True, False, True])))
    shift = (start_of(draw, problem) - c.bridge.mean).flatten(1).mean(1)
    torch.testing.assert_close(shift, torch.tensor([1.0, 0.0, 5.0]))


# --- guidance of one's own --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nudge(Guidance):
    """One step of the bridge's mean along the likelihood's gradient at x_0.

    Args:
        strength: Step size, relative to the inverse of the curvature.
        bound: Largest step of a pixel in units of the bridge's standard deviation; None for no bound.
        weights: Weights of the channels.
    """

    strength: float = 1.0
    bound: float | None = 3.0
    weights: tuple[float, ...] = (1.0,)

    def draw(self, step: GuidedStep) -> MidpointDraw:
        c = step.context
        std = c.bridge.log_std.exp()
        curvature = per_sample(step.objective.curvature, c.x_0)
        u = self.strength * std * c.problem.likelihood_score(c.x_0) / (1.0 + std.square() * curvature)
        if self.bound is not None:
            u = u.clamp(-self.bound, self.bound)
        weights = torch.tensor(self.weights).reshape(1, -1, *[1] * (u.ndim - 2))
        q = DiagonalGaussian(c.bridge.mean + std * weights * u, c.bridge.log_std)
        return MidpointDraw(q.sample(step.objective.noise(0)))


WHITENED = Gradient(1, lavps.WhitenedGradient())
OWN = {
    "MGDM": lambda p: lavps.MGDM(p, num_steps=10, guidance=Nudge()),
    "MGDM-then-gradients": lambda p: lavps.MGDM(p, num_steps=10, guidance=switch(Nudge(), WHITENED, at=0.5)),
    "MGPS": lambda p: lavps.MGPS(p, num_steps=10, guidance=Nudge()),
    "MGPS-from-gradients": lambda p: lavps.MGPS(p, num_steps=10, guidance=switch(WHITENED, Nudge(), at=0.5)),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("make", [pooling_problem, masking_problem])
def test_guidance_of_ones_own_works_and_a_row_of_a_batch_equals_the_single_run(
    name: str, make: Callable[[int], lavps.InverseProblem]
) -> None:
    prior = lavps.GaussianPrior(torch.zeros(1, 8, 8), 0.25 * torch.eye(64))
    sampler, problem = OWN[name](prior), make(4)
    posterior = sampler.sample(problem, seed=3)
    for item in (0, 3):
        single = sampler.sample(problem[item], seed=3, items=[item]).samples
        torch.testing.assert_close(single[0], posterior.samples[item], atol=1e-5, rtol=1e-5)
    free = replace(sampler, guidance=Gradient(0)).sample(problem, seed=3).samples
    fits = [float(problem.chi_square(samples[:, 0]).mean()) for samples in (posterior.samples, free)]
    assert fits[0] < 0.7 * fits[1], "it guides"
    assert posterior.trace.model_forwards == 0


@pytest.mark.parametrize("name", OWN)
def test_guidance_of_ones_own_is_stored_and_read_back(name: str) -> None:
    sampler: Sampler = OWN[name](UNBOUND)
    settings = Settings(replace(sampler, guidance=switch(Nudge(0.3, None, (2.0,)), A, at=0.4)))
    values = json.loads(json.dumps(settings.to_dict()))
    again = Settings.from_dict(values, parts=(Nudge,))
    assert again == settings
    assert again.key == settings.key != Settings(sampler).key
    assert again.template.guidance.first == Nudge(0.3, None, (2.0,))
    with pytest.raises(ValueError, match=r"Switch.first must be one of Gradient, .*, got 'Nudge'"):
        Settings.from_dict(values)
    values["guidance"]["first"]["strength"] = "strong"
    with pytest.raises(ValueError, match=r"Nudge.strength cannot be 'strong'"):
        Settings.from_dict(values, parts=(Nudge,))
    trace = settings.sampler(network_prior()).sample(pooling_problem(1)).trace
    assert (settings.counts.forwards, settings.counts.backwards) == (trace.forwards, trace.backwards)
