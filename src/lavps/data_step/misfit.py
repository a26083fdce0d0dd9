r"""Misfit of a prediction before its data step, relative to the expected one.

The data step treats the image as :math:`N(x_0, C(\sigma_t))`. If that is right, the misfit is about

.. math:: n + z^T C^{1/2} A^T W A\, C^{1/2} z, \qquad z \sim N(0, I),

n the number of observed entries and W the precision of their noise. A ratio far above 1 shows a prediction
that contradicts the measurement, whatever the operator and its noise.
"""

from __future__ import annotations

__all__ = ["relative_misfit"]

import torch
from torch import Tensor

from ..operators.linalg import inner
from ..problem import InverseProblem
from . import Covariance


def relative_misfit(
    problem: InverseProblem, x_0: Tensor, covariance: Covariance, noise_level: Tensor, probe: Tensor
) -> Tensor:
    """Return the misfit of x_0 relative to that expected for N(x_0, C), shape (B,).

    Args:
        problem: Measurement y and operator A, B rows.
        x_0: Predictions (B, C, *spatial).
        covariance: Covariance C of x_0 given x_t.
        noise_level: Noise level sigma_t / alpha_t of x_t, shape () or (B,).
        probe: Standard normal images z.
    """
    drawn = covariance.product(noise_level, x_0, 0.5)(probe)
    expected = inner(drawn, problem.gauss_newton_product(x_0)(drawn))
    observed = problem.operator.observed(problem.y)
    entries = torch.ones_like(problem.y.real) if observed is None else observed.expand(problem.y.shape)
    count = entries.flatten(1).sum(1).to(expected) * (2.0 if problem.y.is_complex() else 1.0)
    return 2.0 * problem.half_squared_misfit(x_0) / (count + expected)
