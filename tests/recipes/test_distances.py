"""Distances of the studies of prior samples and photographs, against those of Gaussians."""

from __future__ import annotations

import pytest
import torch
from recipes.photos.run import squared_error_of_mean
from recipes.prior_samples.run import frechet_distance, kernel_distance, kid


def test_the_frechet_distance_is_that_of_gaussians() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40_000, 3, generator=generator).double()
    a, b = x @ torch.diag(torch.tensor([1.0, 2.0, 0.5])).double(), 1.0 + 0.5 * x
    expected = 3.0 + 0.5**2 + 1.5**2
    assert frechet_distance(a, b) == pytest.approx(expected, rel=0.02)
    assert frechet_distance(a, a) == pytest.approx(0.0, abs=1e-9)
    few, many = x[:5, :2], x[5:205, :2]  # ranks below and above the dimension
    covariances = [torch.cov(u.T) for u in (few, many)]
    roots = torch.linalg.eigvals(covariances[0] @ covariances[1]).real.sqrt().sum()
    direct = (few.mean(0) - many.mean(0)).square().sum() + sum(c.trace() for c in covariances) - 2 * roots
    assert frechet_distance(few, many) == pytest.approx(float(direct))


def test_the_kernel_distance_is_unbiased() -> None:
    generator = torch.Generator().manual_seed(0)
    same = torch.tensor([kernel_distance(*torch.randn(2, 30, 4, generator=generator)) for _ in range(400)])
    assert abs(float(same.mean())) < 3 * float(same.std()) / 20
    x = torch.randn(2, 300, 4, generator=generator)
    distance, error = kid(x[0], x[1] + 1.0)
    assert distance > 3 * error > 0


def test_the_error_of_the_mean_of_all_samples_is_estimated_from_two() -> None:
    generator = torch.Generator().manual_seed(0)
    bias, spread = 0.3, 0.5  # errors of samples are N(0.3, 0.5^2)
    for count in (2, 5):
        errors = bias + spread * torch.randn(count, 3, 200, 200, generator=generator)
        assert squared_error_of_mean(errors) == pytest.approx(bias**2, abs=0.004)
        assert float(errors.mean(0).square().mean()) > bias**2 + 0.9 * spread**2 / count
