"""Fit statistics: per item, and far from usual for a wrong operator or noise level."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

import lavps
from lavps.evaluation import conformal_p_value, exact_samples, fit_statistics, oracle_mixture
from lavps.operators import AveragePool, Blur, Mask

PRIOR = oracle_mixture(dtype=torch.float64)
TRUTH = PRIOR.sample(120, seed=3)
KERNEL = torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.3, 0.2], [0.0, 0.0, 0.0]], dtype=torch.float64)
BLUR, OTHER = Blur(KERNEL), Blur(KERNEL.T.contiguous())


def statistics(measured: lavps.InverseProblem) -> torch.Tensor:
    """The statistics of exact samples under the assumed blur and noise 0.05, whatever made y."""
    problem = lavps.InverseProblem(measured.y, BLUR, 0.05)
    samples = exact_samples(problem, lavps.exact_posterior(PRIOR, problem), 4)
    return fit_statistics(problem, samples, PRIOR)


def test_a_batch_equals_single_items() -> None:
    problem = lavps.InverseProblem.simulate(TRUTH[:3], AveragePool(4), 0.05)
    samples = TRUTH[:3, None].expand(-1, 6, -1, -1, -1) + 0.05 * torch.randn(
        3, 6, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    together = fit_statistics(problem, samples, PRIOR)
    alone = torch.cat([fit_statistics(problem[i], samples[i : i + 1], PRIOR) for i in range(3)])
    torch.testing.assert_close(together, alone)


def test_wrong_noise_and_wrong_kernels_are_found_and_right_ones_are_not() -> None:
    usual = statistics(lavps.InverseProblem.simulate(TRUTH[:104], BLUR, 0.05))
    right = statistics(lavps.InverseProblem.simulate(TRUTH[104:], BLUR, 0.05, seed=1))
    noisy = statistics(lavps.InverseProblem.simulate(TRUTH[104:], BLUR, 0.1, seed=1))
    wrong = statistics(lavps.InverseProblem.simulate(TRUTH[104:], OTHER, 0.05, seed=1))
    found = {
        name: sum(conformal_p_value(usual, row) < 0.01 for row in rows)
        for name, rows in (("right", right), ("noisy", noisy), ("wrong", wrong))
    }
    assert found["right"] <= 1, found
    assert found["noisy"] >= 14, found
    assert found["wrong"] >= 14, found


def test_a_part_without_noise_is_found_and_a_hole_is_none() -> None:
    """A part without noise occurs behind a mask that is not the stated one."""
    mask = torch.ones(8, 8, dtype=torch.float64)
    mask[2:6, 2:6] = 0.0
    measured = lavps.InverseProblem.simulate(TRUTH[:40], Mask(mask), 0.05)
    samples = TRUTH[:40, None].expand(-1, 4, -1, -1, -1)
    quiet = measured.y.clone()
    quiet[..., :2, :] = TRUTH[:40, :, :2] + 1e-4
    usual, found = (fit_statistics(replace(measured, y=y), samples, PRIOR)[:, 6] for y in (measured.y, quiet))
    assert bool((usual > math.log(1e-3)).all())
    assert bool((found < math.log(1e-4)).all())
