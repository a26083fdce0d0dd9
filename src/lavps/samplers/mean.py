r"""The posterior mean from one denoiser evaluation.

Images are first taken as Gaussian, :math:`x \sim N(0, S)` with the power spectrum of images:

1. the Wiener estimate :math:`\hat x = \Sigma A^T W y` with :math:`\Sigma = (S^{-1} + A^T W A)^{-1}`;
2. the noise level :math:`\sigma` at which white noise leaves as much variance as the measurement does,
   :math:`\mathrm{tr}\, C = \mathrm{tr}\, \Sigma` with :math:`C = (S^{-1} + \sigma^{-2})^{-1}`, and the noisy
   image :math:`\tilde x = \hat x + \sigma^2 S^{-1} \hat x`, whose Wiener estimate is :math:`\hat x` again;
3. the denoiser takes the place of the Gaussian prior, :math:`x_0 = D(\tilde x, \sigma)`;
4. one damped Newton step towards the mean of the posterior, in which :math:`\tilde x` is not counted twice:

   .. math:: x_0 + C q, \qquad (1 + A^T W A\, C)\, q = A^T W (y - A x_0) + \sigma^{-2} (x_0 - \tilde x).

The result is exact for denoising under every prior, since then :math:`\tilde x = y` and the right-hand side
is 0, and for the Gaussian prior N(0, S) under linear operators. At a high noise level, where the measurement
leaves much open, and for nonlinear operators :math:`\tilde x = \hat x + \sigma z` with white noise z, and
step 4 is the plain data step (:mod:`lavps.data_step`).

Reference: this library; close to one iteration of expectation propagation (Minka, 2001).
"""

from __future__ import annotations

__all__ = ["PosteriorMean"]

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from ..data_step import Covariance, Stationary, data_step, newton_step
from ..data_step.levels import FLAT, equivalent_level
from ..priors import Prior
from ..problem import InverseProblem
from ..random import Purpose
from ..transitions import per_sample
from .base import Progress, Run, Sampler
from .ddim import denoising_noise

_TOLERANCE = 1e-3  # error of a data step, in standard deviations
_HIGH = 0.35  # noise level above which x~ does not resemble a noisy image


@dataclass(frozen=True)
class PosteriorMean(Sampler):
    """Estimate of the posterior mean with one denoiser evaluation; all its samples are nearly equal.

    Biased: images are no Gaussian process. Smoother than any sample.

    Args:
        prior: Denoiser D.
        covariance: Covariance S of images, at infinite noise.
        solver_steps: Maximum number of conjugate-gradient steps of each of three linear systems.

    Example:
        >>> import torch, lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> problem = lavps.InverseProblem(torch.ones(1, 1, 4, 4), lavps.operators.Identity(), noise=0.5)
        >>> round(float(lavps.PosteriorMean(prior).sample(problem).mean.mean()), 3)
        0.8
    """

    prior: Prior
    _: KW_ONLY
    covariance: Covariance = Stationary()
    solver_steps: int = 100

    def __post_init__(self) -> None:
        if self.solver_steps < 1:
            raise ValueError(f"solver_steps must be positive: {self}")

    @property
    def num_steps(self) -> int:
        """One denoiser evaluation."""
        return 1

    @property
    def total_steps(self) -> int:
        """One step."""
        return 1

    def steps(self, run: Run) -> Iterator[Progress]:
        """The four steps of this module."""
        problem, schedule = run.measured, run.prior.schedule
        if (std := denoising_noise(problem)) is not None:  # x~ is y
            t = schedule.time(std)
            yield Progress(t, run.prior.denoise(per_sample(schedule.alpha(t), problem.y) * problem.y, t))
            return
        blank = problem.like.new_zeros(len(problem), *problem.image_shape)
        wiener = data_step(problem, blank, self.covariance, FLAT, solver_steps=self.solver_steps)
        probe = run.normal(Purpose.PROBE)
        t = schedule.time(equivalent_level(problem, wiener, self.covariance, probe, self.solver_steps))
        level = schedule.noise_level(t)
        precision = per_sample(level**-2, wiener)
        sharpened = self.covariance.product(level, wiener, -1.0)(wiener) / precision
        noised = wiener + per_sample(level, wiener) * run.normal(Purpose.DDIM)
        low = per_sample(self._is_low(problem, level).to(wiener.dtype), wiener)
        noisy = noised + low * (sharpened - noised)
        x_0 = run.prior.denoise(per_sample(schedule.alpha(t), wiener) * noisy, t)
        if problem.is_linear_gaussian:
            score = problem.likelihood_score(x_0) + low * precision * (x_0 - noisy)
            estimate = x_0 + self._solution(problem, x_0, level, score)
        else:
            estimate = data_step(problem, x_0, self.covariance, level, solver_steps=self.solver_steps)
        yield Progress(t, estimate)

    def _is_low(self, problem: InverseProblem, level: Tensor) -> Tensor:
        """Return for each row whether the sharpened Wiener estimate resembles a noisy image, (B,)."""
        if not problem.is_linear_gaussian:
            return torch.zeros_like(level, dtype=torch.bool)
        return level <= _HIGH

    def _solution(self, problem: InverseProblem, x: Tensor, level: Tensor, score: Tensor) -> Tensor:
        """Return C q with (1 + A^T W A C) q = score."""
        hessian = problem.gauss_newton_product(x)
        return newton_step(hessian, score, self.covariance, level, self.solver_steps, _TOLERANCE)[0]
