from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

import lavps
from lavps.schedule import as_time
from lavps.transitions import bridge
from lavps.variational import Context, DiagonalGaussian, Objective
from support.problems import images
from support.variational import context, objective


def gaussian(batch: int, seed: int) -> DiagonalGaussian:
    generator = torch.Generator().manual_seed(seed)
    mean, log_std = torch.randn(2, batch, 1, 8, 8, generator=generator, dtype=torch.float64)
    return DiagonalGaussian(mean, 0.3 * log_std)


def test_kl_is_that_of_torch_per_sample() -> None:
    q, p = gaussian(4, 0), gaussian(4, 1)
    expected = kl_divergence(
        Independent(Normal(q.mean, q.log_std.exp()), 3), Independent(Normal(p.mean, p.log_std.exp()), 3)
    )
    torch.testing.assert_close(q.kl(p), expected)
    assert q.kl(p).shape == (4,)
    torch.testing.assert_close(q.kl(q), torch.zeros(4, dtype=torch.float64))


def test_kl_counts_every_pixel_of_a_broadcast_spread() -> None:
    q = gaussian(2, 0)
    narrow = DiagonalGaussian(q.mean, torch.tensor(-1.0))
    full = DiagonalGaussian(q.mean, torch.full_like(q.mean, -1.0))
    torch.testing.assert_close(narrow.kl(q), full.kl(q))


def test_the_zero_shot_start_is_the_bridge() -> None:
    c = context(s=torch.tensor([0.1, 0.2, 0.3]), t=torch.tensor([0.4, 0.5, 0.35]))
    kernel = bridge(c.schedule, c.x_0, c.x_t, as_time(0.0), c.s, c.t)
    torch.testing.assert_close(c.bridge.mean, kernel.mean)
    torch.testing.assert_close(c.bridge.log_std.exp(), kernel.std)


def test_objective_is_negative_log_likelihood_plus_kl() -> None:
    c = context()
    problem, q = objective(c), DiagonalGaussian(images(3, seed=5), torch.full((3, 1, 8, 8), -1.0))
    evaluation = problem.evaluate(q, 1)
    x_s = q.mean + q.log_std.exp() * problem.noise(1)
    x_0 = problem.prior.denoise(x_s, c.s)
    expected = -c.problem.log_likelihood(x_0) + q.kl(c.bridge)
    torch.testing.assert_close(evaluation.loss, expected)
    torch.testing.assert_close(evaluation.x_s, x_s)
    torch.testing.assert_close(evaluation.x_0, x_0)
    assert evaluation.loss.shape == (3,)


def test_gradient_agrees_with_finite_differences() -> None:
    c = context()
    c = Context(c.x_0.double(), c.x_t.double(), c.s, c.t, c.problem.to(torch.float64), c.schedule)
    prior = lavps.GaussianPrior(torch.zeros(1, 8, 8), 0.3 * torch.eye(64) + 0.1)
    problem, q = objective(c, prior), gaussian(3, 3)
    gradient = problem.gradient(q, 0)
    step, direction = 1e-6, gaussian(3, 4)

    def loss(h: float) -> Tensor:
        moved = DiagonalGaussian(q.mean + h * direction.mean, q.log_std + h * direction.log_std)
        return problem.evaluate(moved, 0).loss

    slope = (loss(step) - loss(-step)) / (2 * step)
    expected = (gradient.mean * direction.mean + gradient.log_std * direction.log_std).flatten(1).sum(1)
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-4)


def test_a_row_of_the_objective_knows_nothing_of_the_others() -> None:
    problem = objective(context(s=torch.tensor([0.1, 0.2, 0.3]), t=torch.tensor([0.4, 0.5, 0.35])))
    q, rows = problem.context.bridge, torch.tensor([2, 0])
    whole, part = problem.gradient(q, 1), problem.select(rows).gradient(q.select(rows), 1)
    torch.testing.assert_close(part.loss, whole.loss[rows])
    torch.testing.assert_close(part.mean, whole.mean[rows])
    torch.testing.assert_close(part.log_std, whole.log_std[rows])
    torch.testing.assert_close(problem.select(rows).curvature, problem.curvature[rows])


def test_the_likelihoods_gradient_can_be_asked_of_some_rows() -> None:
    problem = objective(context())
    whole = problem.gradient(problem.context.bridge)
    some = problem.evaluate_with_graph(problem.context.bridge).gradient(torch.tensor([1]))
    torch.testing.assert_close(some.mean[1], whole.mean[1])
    torch.testing.assert_close(some.log_std[1], whole.log_std[1])
    assert some.mean[[0, 2]].abs().max() == 0, "at the bridge the KL has no slope"


def test_the_gradient_by_hand_is_that_of_torch() -> None:
    problem, q = objective(context()), DiagonalGaussian(images(3, seed=5), 0.3 * images(3, seed=6) - 1.0)
    leaves = DiagonalGaussian(q.mean.clone().requires_grad_(), q.log_std.clone().requires_grad_())
    mean, log_std = torch.autograd.grad(problem.evaluate(leaves, 2).loss.sum(), (leaves.mean, leaves.log_std))
    gradient = problem.gradient(q, 2)
    torch.testing.assert_close(gradient.mean, mean, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(gradient.log_std, log_std, rtol=1e-4, atol=1e-3)


def test_where_picks_row_by_row() -> None:
    a, b = gaussian(3, 0), gaussian(3, 1)
    mixed = DiagonalGaussian.where(torch.tensor([True, False, True]), a, b)
    assert torch.equal(mixed.mean[0], a.mean[0])
    assert torch.equal(mixed.mean[1], b.mean[1])
    assert torch.equal(mixed.log_std[1], b.log_std[1])


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_for_a_gaussian_prior_the_optimum_is_known(share: float) -> None:
    """With a linear denoiser D x = m + c (x - alpha m) the optimal mean solves a linear system."""
    prior = lavps.GaussianPrior(torch.zeros(1, 8, 8), 0.3 * torch.eye(64), dtype=torch.float64)
    c = context(1, s=0.3 * share, t=0.3)
    c = Context(c.x_0.double(), c.x_t.double(), c.s, c.t, c.problem.to(torch.float64), c.schedule)
    A = c.problem.operator.matrix((1, 8, 8))
    gain = float(prior.denoise(torch.ones(1, 1, 8, 8, dtype=torch.float64), c.s)[0, 0, 0, 0])
    variance, noise = float((2 * c.bridge.log_std).exp()), float(c.problem.noise.std) ** 2
    hessian = torch.eye(64, dtype=torch.float64) / variance + gain**2 * A.T @ A / noise
    target = c.bridge.mean.flatten() / variance + gain * A.T @ c.problem.y.flatten() / noise
    optimum = torch.linalg.solve(hessian, target).reshape(1, 1, 8, 8)

    def zero_noise(index: int) -> Tensor:
        return torch.zeros_like(c.x_0)

    problem = Objective(prior, c, zero_noise)
    gradient = problem.gradient(DiagonalGaussian(optimum, c.bridge.log_std))
    assert gradient.mean.abs().max() < 1e-8
    start = problem.evaluate(c.bridge).loss
    assert (problem.evaluate(DiagonalGaussian(optimum, c.bridge.log_std)).loss < start).all()
    # The whitened gradient finds it; a single step of it already closes most of the gap in loss.
    gaps = []
    for steps in (1, 200):
        q, _ = lavps.WhitenedGradient().minimize(problem, c.bridge, steps)
        gaps.append(float((q.mean - optimum).abs().max()))
    first = float((c.bridge.mean - optimum).abs().max())
    assert gaps[0] < first
    assert gaps[1] < 1e-3 * first
