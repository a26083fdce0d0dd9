from __future__ import annotations

import pytest
import torch

import lavps
from lavps.minimizers import Minimizer
from lavps.variational import DiagonalGaussian
from support.variational import context, objective

MINIMIZERS = {
    "adam": lavps.Adam(0.01),
    "adam-mean-only": lavps.Adam(0.01, fit_std=False),
    "whitened": lavps.WhitenedGradient(),
    "whitened-std": lavps.WhitenedGradient(fit_std=True),
}
EVERY = pytest.mark.parametrize("minimizer", MINIMIZERS.values(), ids=MINIMIZERS)


def test_adam_is_torchs_adam() -> None:
    problem = objective(context())
    mean = problem.context.bridge.mean.clone().requires_grad_()
    log_std = problem.context.bridge.log_std.expand_as(mean).clone().requires_grad_()
    optimizer = torch.optim.Adam([mean, log_std], lr=0.03)
    for step in range(5):
        gradient = problem.gradient(DiagonalGaussian(mean.detach(), log_std.detach()), step)
        mean.grad, log_std.grad = gradient.mean, gradient.log_std
        optimizer.step()
    q, _ = lavps.Adam(0.03).minimize(problem, problem.context.bridge, 5)
    torch.testing.assert_close(q.mean, mean.detach(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(q.log_std, log_std.detach(), atol=1e-6, rtol=1e-5)


@EVERY
def test_descending_lowers_the_loss(minimizer: Minimizer) -> None:
    problem = objective(context())
    q, loss = minimizer.minimize(problem, problem.context.bridge, 30)
    start = torch.stack([problem.evaluate(problem.context.bridge, 500 + n).loss for n in range(20)]).mean(0)
    end = torch.stack([problem.evaluate(q, 500 + n).loss for n in range(20)]).mean(0)
    assert (end < start).all()
    assert loss.shape == (3,)


@EVERY
def test_a_gradient_at_hand_is_used_instead_of_a_new_one(minimizer: Minimizer) -> None:
    prior = lavps.priors.CountingPrior(objective(context()).prior)
    problem = objective(context(), prior)
    expected, _ = minimizer.minimize(problem, problem.context.bridge, 3)
    assert (prior.forwards, prior.backwards) == (9, 9)
    first = problem.gradient(problem.context.bridge, 0)
    prior.forwards = prior.backwards = 0
    q, _ = minimizer.minimize(problem, problem.context.bridge, 3, first)
    assert (prior.forwards, prior.backwards) == (6, 6)
    torch.testing.assert_close(q.mean, expected.mean)
    torch.testing.assert_close(q.log_std.expand_as(q.mean), expected.log_std.expand_as(q.mean))


@EVERY
def test_rows_descend_alone(minimizer: Minimizer) -> None:
    problem, rows = objective(context()), torch.tensor([2])
    whole, _ = minimizer.minimize(problem, problem.context.bridge, 4)
    alone, _ = minimizer.minimize(problem.select(rows), problem.context.bridge.select(rows), 4)
    torch.testing.assert_close(alone.mean, whole.mean[rows], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("minimizer", [lavps.Adam(fit_std=False), lavps.WhitenedGradient()], ids=repr)
def test_the_spread_is_left_alone_on_request(minimizer: Minimizer) -> None:
    problem = objective(context())
    q, _ = minimizer.minimize(problem, problem.context.bridge, 3)
    torch.testing.assert_close(q.log_std, problem.context.bridge.log_std)
    assert not torch.allclose(q.mean, problem.context.bridge.mean)


def test_adams_first_step_has_the_size_of_its_learning_rate_and_the_whitened_one_that_of_the_bridge() -> None:
    problem = objective(context(s=0.01, t=0.02))
    start = problem.context.bridge
    adam, _ = lavps.Adam(0.03).minimize(problem, start, 1)
    assert (adam.mean - start.mean).abs().max() == pytest.approx(0.03, rel=1e-3)
    whitened, _ = lavps.WhitenedGradient().minimize(problem, start, 1)
    gradient = problem.gradient(start)
    bound = start.log_std.exp().square() * gradient.mean.abs()
    assert ((whitened.mean - start.mean).abs() <= bound + 1e-7).all()
