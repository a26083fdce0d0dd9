from __future__ import annotations

from dataclasses import replace

import torch

import lavps
from lavps.initializers import Remembered, Safeguarded, WarmStart, ZeroShot
from lavps.operators import Blur, HDRClip, Identity
from lavps.priors import MeteredPrior
from lavps.variational import Context, DiagonalGaussian, Objective
from test_variational import context, objective


def descended(c: Context) -> DiagonalGaussian:
    """A good start: the bridge after some descent, under the very noise it will be judged by."""
    problem = objective(c)
    fixed = replace(problem, noise=lambda index: problem.noise(0))
    return lavps.WhitenedGradient().minimize(fixed, c.bridge, 20)[0]


def mixed(c: Context) -> DiagonalGaussian:
    """Good for row 0 and 2, terrible for row 1."""
    good = descended(c)
    bad = DiagonalGaussian(good.mean + 5.0, good.log_std)
    return DiagonalGaussian.where(torch.tensor([True, False, True]), good, bad)


def test_zero_shot_costs_nothing_and_is_the_bridge() -> None:
    prior = MeteredPrior(objective(context()).prior)
    start = ZeroShot().start(objective(context(), prior), differentiable=True)
    assert prior.forwards == 0
    assert start.accepted is None
    torch.testing.assert_close(start.q.mean, context().bridge.mean)


def test_a_warm_start_is_taken_as_it_is() -> None:
    problem = objective(context())
    start = WarmStart(mixed).start(problem, differentiable=True)
    torch.testing.assert_close(start.q.mean, mixed(problem.context).mean)
    assert start.model_forwards == 1


def test_the_safeguard_decides_per_sample() -> None:
    problem = objective(context())
    start = Safeguarded(mixed).start(problem, differentiable=False)
    assert start.accepted.tolist() == [True, False, True]
    torch.testing.assert_close(start.q.mean[1], problem.context.bridge.mean[1])
    torch.testing.assert_close(start.q.mean[0], mixed(problem.context).mean[0])


def test_a_verdict_is_remembered_for_nothing() -> None:
    prior = MeteredPrior(objective(context()).prior)
    problem = objective(context(), prior)
    verdict = torch.tensor([False, True, True])

    def predict(c: Context) -> DiagonalGaussian:
        mean = c.bridge.mean + 1.0
        mean[2] = torch.nan
        return DiagonalGaussian(mean, c.bridge.log_std)

    start = Remembered(predict, verdict).start(problem, differentiable=True)
    shift = (start.q.mean - problem.context.bridge.mean).flatten(1).mean(1)
    torch.testing.assert_close(shift, torch.tensor([0.0, 1.0, 0.0]))  # the last is not finite
    assert (prior.forwards, start.model_forwards, start.accepted) == (0, 1, None)


def test_the_safeguard_compares_with_common_random_numbers() -> None:
    """A candidate that differs by a hair is judged rightly, though the loss itself is noisy."""
    problem = objective(context())

    def hair(towards_optimum: float):
        def model(c: Context) -> DiagonalGaussian:
            gradient = problem.gradient(c.bridge).mean
            return DiagonalGaussian(c.bridge.mean - towards_optimum * gradient, c.bridge.log_std)

        return model

    assert Safeguarded(hair(1e-7)).start(problem, differentiable=False).accepted.all()
    assert not Safeguarded(hair(-1e-5)).start(problem, differentiable=False).accepted.any()


def test_the_safeguard_keeps_what_it_paid_for() -> None:
    prior = MeteredPrior(objective(context()).prior)
    problem = objective(context(), prior)
    start = Safeguarded(mixed).start(problem, differentiable=False)
    assert (prior.forwards, prior.backwards) == (6, 0)
    fresh = problem.evaluate(start.q, 0)
    torch.testing.assert_close(start.evaluation.x_0, fresh.x_0)
    torch.testing.assert_close(start.evaluation.x_s, fresh.x_s)
    torch.testing.assert_close(start.evaluation.loss, fresh.loss)


def test_the_first_gradient_of_a_mixed_batch_is_that_of_the_winners() -> None:
    for model, forwards in (
        (descended, 6),
        (mixed, 7),
        (lambda c: DiagonalGaussian(c.bridge.mean + 5.0, c.bridge.log_std), 9),
    ):
        prior = MeteredPrior(objective(context()).prior)
        problem = objective(context(), prior)
        start = Safeguarded(model).start(problem, differentiable=True)
        assert prior.forwards == forwards, "only rows that fell back pay a new forward"
        fresh = problem.gradient(start.q, 0)
        torch.testing.assert_close(start.gradient.loss, fresh.loss)
        torch.testing.assert_close(start.gradient.mean, fresh.mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(start.gradient.log_std, fresh.log_std, rtol=1e-4, atol=1e-4)


def test_a_prediction_that_is_not_finite_loses() -> None:
    def broken(c: Context) -> DiagonalGaussian:
        mean = c.bridge.mean.clone()
        mean[1] = float("nan")
        mean[2] = float("inf")
        return DiagonalGaussian(mean, c.bridge.log_std)

    for differentiable in (False, True):
        start = Safeguarded(broken).start(objective(context()), differentiable)
        assert start.accepted.tolist() == [True, False, False]
        assert start.q.mean.isfinite().all()
        if differentiable:
            assert start.gradient.mean.isfinite().all()


def test_a_likelihood_step_solves_the_inner_problem_of_independent_pixels() -> None:
    shape, v = (1, 2, 3), 0.25
    prior = lavps.GaussianPrior(torch.zeros(shape), v * torch.eye(6), lavps.Flow())
    x_t, y = (torch.randn(3, *shape, generator=torch.Generator().manual_seed(i)).double() for i in (0, 1))
    problem = lavps.InverseProblem(y, Identity(), lavps.GaussianNoise(0.3))
    s, t = (torch.tensor(time, dtype=torch.float64) for time in (0.5, 0.6))
    x_0 = x_t
    for _ in range(200):  # the x_0 that the denoiser sees in the bridge's own mean
        c = Context(x_0, x_t, s, t, problem, prior.schedule)
        x_0 = prior.denoise(c.bridge.mean, s)
    exact = Objective(prior, c, lambda index: torch.zeros_like(x_t))
    solved = exact.gradient(lavps.LikelihoodStep(v)(c)).mean
    assert float(solved.abs().max()) < 1e-6 < 0.1 < float(exact.gradient(c.bridge).mean.abs().max())


def test_a_likelihood_step_solves_the_linearised_problem_of_a_blur() -> None:
    generator = torch.Generator().manual_seed(0)
    shape, v, std = (1, 4, 4), 1.0, 0.2
    x_0, x_t, y = (torch.randn(2, *shape, generator=generator).double() for _ in range(3))
    blur = Blur(torch.rand(3, 3, generator=generator).double())
    s, t = (torch.tensor(time, dtype=torch.float64) for time in (0.4, 0.5))
    c = Context(x_0, x_t, s, t, lavps.InverseProblem(y, blur, lavps.GaussianNoise(std)), lavps.Flow())
    dense = blur(torch.eye(16, dtype=torch.float64).reshape(16, *shape)).flatten(1).T  # A
    reach = c.bridge.log_std.exp() * 0.6 * v / (0.36 * v + 0.16)
    matrix = torch.eye(16).double() + reach.flatten()[0] ** 2 * dense.T @ dense / std**2
    pull = (y.flatten(1) - x_0.flatten(1) @ dense.T) @ dense / std**2
    u = torch.linalg.solve(matrix, (reach.flatten()[0] * pull).T).T.reshape(x_0.shape)
    expected = c.bridge.mean + c.bridge.log_std.exp() * u
    errors = [float((lavps.LikelihoodStep(v, n)(c).mean - expected).abs().max()) for n in (1, 3, 20)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-4


def test_a_likelihood_step_linearises_what_is_not_linear() -> None:
    generator = torch.Generator().manual_seed(0)
    x_0, x_t = (torch.randn(2, 1, 4, 4, generator=generator) for _ in range(2))
    s, t = torch.tensor(0.1), torch.tensor(0.2)
    problem = lavps.InverseProblem.simulate(x_0 + 0.1, HDRClip(), lavps.GaussianNoise(0.05))
    c = Context(x_0, x_t, s, t, problem, lavps.Flow())
    moved = lavps.LikelihoodStep()(c).mean - c.bridge.mean
    clipped = HDRClip()(x_0).abs() >= 1
    assert moved[~clipped].abs().min() > 0
    assert not moved[clipped].any()  # nothing is known of them, to first order


def test_a_likelihood_step_asks_the_denoiser_for_nothing_and_keeps_rows_apart() -> None:
    c = context()
    q = lavps.LikelihoodStep()(c)
    assert not torch.equal(q.mean, c.bridge.mean)
    assert torch.equal(q.log_std, c.bridge.log_std.expand_as(q.mean))
    alone = lavps.LikelihoodStep()(replace(c, x_0=c.x_0[1:2], x_t=c.x_t[1:2], problem=c.problem[1]))
    torch.testing.assert_close(alone.mean, q.mean[1:2])
