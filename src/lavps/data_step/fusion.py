r"""Fusion of :math:`x_t` and the measurement in one noisy image for the denoiser.

Two observations of an image are given, :math:`u = x_t / \alpha_t = x + s z` with the noise level
:math:`s = \sigma_t / \alpha_t`, and :math:`y = A x + n`, which shows as much of it as white noise of level r
does (:mod:`lavps.data_step.levels`).

1. The Wiener estimate of both, :math:`\hat x = (S^{-1} + s^{-2} + A^T W A)^{-1} (A^T W y + s^{-2} u)`.
2. The noisy image :math:`\tilde x = \hat x + \rho^2 S^{-1} \hat x`, whose Wiener estimate is :math:`\hat x`,
   at the level :math:`\rho^{-2} = s^{-2} + \frac12 r^{-2}`: half of y's precision, as its noise is not white.
3. After the denoiser, :math:`x_0 = D(\tilde x, \rho)`, a data step with both observations, in which
   :math:`\tilde x` is not counted twice: :math:`x_0 + C q` with :math:`C = (S^{-1} + \rho^{-2})^{-1}` and

   .. math:: (1 + (A^T W A + s^{-2} - \rho^{-2})\, C)\, q
       = A^T W (y - A x_0) + s^{-2} (u - x_0) - \rho^{-2} (\tilde x - x_0).

For denoising with all of y's precision the right-hand side is 0, and :math:`x_0` is the mean of x given both,
under every prior. Under the prior N(0, S) it is so for every linear operator, with any :math:`\rho`.
"""

from __future__ import annotations

__all__ = ["Fusion"]

from dataclasses import dataclass

from torch import Tensor

from ..problem import InverseProblem
from ..transitions import per_sample
from . import Covariance, data_step, newton_step

_SHARE = 0.5  # share of r's precision in that of the noisy image
_TOLERANCE = 1e-3  # error of a data step, in standard deviations


@dataclass(frozen=True)
class Fusion:
    """The steps 1 to 3 of this module, for a linear operator and Gaussian noise.

    Args:
        problem: Measurement y and operator A, B rows.
        u: Images with white noise.
        noise_level: Their noise level s, (B,).
        level: Level r of y, (B,); infinite if y is to be left out.
        covariance: Covariance S of images, at infinite noise.
        solver_steps: Maximum number of conjugate-gradient steps of each of two linear systems.
    """

    problem: InverseProblem
    u: Tensor
    noise_level: Tensor
    level: Tensor
    covariance: Covariance
    solver_steps: int

    @property
    def fused_level(self) -> Tensor:
        """The noise level rho, (B,)."""
        return (self.noise_level**-2 + _SHARE * self.level**-2).rsqrt()

    def fused(self) -> Tensor:
        """Return the noisy image."""
        s, rho = self.noise_level, self.fused_level
        prior_mean = self.covariance.product(s, self.u)(per_sample(s**-2, self.u) * self.u)
        wiener = data_step(self.problem, prior_mean, self.covariance, s, solver_steps=self.solver_steps)
        return per_sample(rho**2, wiener) * self.covariance.product(rho, wiener, -1.0)(wiener)

    def data_step(
        self, x_0: Tensor, fused: Tensor, measurement_noise: Tensor | None, image_noise: Tensor | None
    ) -> Tensor:
        """Return the data step from the denoised image; with standard normal noise, a draw."""
        of_u, of_both = (per_sample(level**-2, x_0) for level in (self.noise_level, self.fused_level))
        score = self.problem.likelihood_score(x_0, measurement_noise)
        score = score + of_u * (self.u - x_0) - of_both * (fused - x_0)
        if image_noise is not None:
            score = score + self.covariance.product(self.noise_level, x_0, -0.5)(image_noise)
        hessian = self.problem.gauss_newton_product(x_0)

        def product(v: Tensor) -> Tensor:
            return hessian(v) + (of_u - of_both) * v

        args = (self.covariance, self.fused_level, self.solver_steps, _TOLERANCE)
        return x_0 + newton_step(product, score, *args)[0]
