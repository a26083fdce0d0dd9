r"""How well a measurement shows the image, as the level of white noise that leaves as much of it open.

Images are taken as Gaussian, :math:`x \sim N(0, S)`. The level r of a measurement solves

.. math:: \mathrm{tr}\, (S^{-1} + r^{-2})^{-1} = \mathrm{tr}\, (S^{-1} + A^T W A)^{-1};

for denoising it is the standard deviation of the noise.
"""

from __future__ import annotations

__all__ = ["FLAT", "equivalent_level"]

import torch
from torch import Tensor

from ..operators.linalg import inner
from ..problem import InverseProblem
from . import Covariance, newton_step

FLAT = torch.tensor(float("inf"), dtype=torch.float64)  # noise level at which the covariance C is S
_RANGE = (1e-3, 80.0)
_BISECTIONS = 40
_TOLERANCE = 1e-3  # error of a solution, in standard deviations


def equivalent_level(
    problem: InverseProblem, x: Tensor, covariance: Covariance, probe: Tensor, solver_steps: int
) -> Tensor:
    """Return the level r of each row, (B,), by bisection.

    Args:
        problem: Operator and noise, B rows.
        x: Images at which a nonlinear operator is linearized.
        covariance: Covariance S of images, at infinite noise.
        probe: Standard normal images that estimate both traces.
        solver_steps: Maximum number of conjugate-gradient steps.
    """
    hessian = problem.gauss_newton_product(x)
    variance = inner(probe, newton_step(hessian, probe, covariance, FLAT, solver_steps, _TOLERANCE)[0])
    low, high = (torch.full_like(variance, level, dtype=torch.float64).log() for level in _RANGE)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        below = inner(probe, covariance.product(middle.exp(), probe)(probe)) < variance
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (0.5 * (low + high)).exp()
