r"""Gaussian and Gaussian-mixture priors with exact denoisers, scores and posteriors.

For :math:`p(x_0) = \sum_k w_k N(m_k, \Sigma_k)` the marginals and the denoiser are known in closed form:

.. math::
    p(x_t) &= \sum_k w_k N(\alpha m_k, \alpha^2 \Sigma_k + \sigma^2 I) \\
    E[x_0 | x_t] &= \sum_k r_k(x_t) \big(m_k + \alpha \Sigma_k (\alpha^2 \Sigma_k + \sigma^2 I)^{-1}
        (x_t - \alpha m_k)\big)

with :math:`r_k` the posterior weight of component k. Under :math:`y = A x_0 + N(0, \sigma_y^2)` the
posterior is again a mixture (:meth:`GaussianMixturePrior.condition`), whose denoiser is
:math:`E[x_0 | x_t, y]`: samplers can be tested against the exact posterior.
"""

from __future__ import annotations

__all__ = ["GaussianMixturePrior", "GaussianPrior"]

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..random import NoiseStreams, Purpose
from ..schedule import Schedule, VPLinear
from ..transitions import per_sample


class GaussianMixturePrior:
    """A mixture of K Gaussians over images of shape (C, *spatial) with D pixels.

    Args:
        weights: Positive weights, shape (K,); normalized here.
        means: Means, shape (K, C, *spatial).
        covariances: Symmetric positive semi-definite covariances, shape (K, D, D).
        schedule: Schedule of the noise; default VP-linear.
        dtype: Precision of the computation; images of another dtype are cast to it and back.

    Example:
        >>> import torch
        >>> from lavps import GaussianMixturePrior
        >>> means = torch.tensor([-0.5, 0.5]).reshape(2, 1, 1, 1).expand(2, 1, 4, 4)
        >>> prior = GaussianMixturePrior([0.5, 0.5], means, 0.01 * torch.eye(16).expand(2, 16, 16))
        >>> prior.sample(3).shape
        torch.Size([3, 1, 4, 4])
    """

    def __init__(
        self,
        weights: Tensor | Sequence[float],
        means: Tensor,
        covariances: Tensor,
        schedule: Schedule | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        weights = torch.as_tensor(weights, dtype=torch.float64)
        self.shape = tuple(means.shape[1:])
        size = math.prod(self.shape)
        if weights.ndim != 1 or len(means) != len(weights) or covariances.shape != (len(weights), size, size):
            raise ValueError(
                "a mixture needs weights (K,), means (K, C, *spatial) and covariances (K, D, D): got "
                f"{tuple(weights.shape)}, {tuple(means.shape)}, {tuple(covariances.shape)}"
            )
        self.schedule: Schedule = VPLinear() if schedule is None else schedule
        self.dtype = dtype
        self.weights = weights / weights.sum()
        self.means = means.to(torch.float64).flatten(1)
        self.covariances = covariances.to(torch.float64)
        eigenvalues, eigenvectors = torch.linalg.eigh(self.covariances)
        self._spectrum = eigenvalues.clamp(min=0.0)
        self._basis = eigenvectors.to(dtype)
        # Means in the eigenbasis of each component: x is multiplied by a basis once in and once out.
        self._means_in_basis = torch.einsum("kd,kde->ke", self.means, eigenvectors).to(dtype)

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Return the exact E[x_0 | x_t]."""
        coordinates, variance, alpha, spectrum = self._whiten(x_t, t)
        estimate = self._means_in_basis + alpha * spectrum / variance * coordinates
        responsibility = self._log_joint(coordinates, variance).softmax(dim=1)
        x_0 = torch.einsum("bk,bke,kde->bd", responsibility, estimate, self._basis)
        return x_0.reshape(x_t.shape).to(x_t.dtype)

    def log_prob(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Return log p_t(x_t), shape (B,)."""
        coordinates, variance, _, _ = self._whiten(x_t, t)
        constant = 0.5 * coordinates.shape[-1] * math.log(2 * math.pi)
        return self._log_joint(coordinates, variance).logsumexp(dim=1) - constant

    def score(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Return the score of p_t at x_t by Tweedie's formula, (alpha E[x_0 | x_t] - x_t) / sigma^2."""
        alpha, sigma = (per_sample(part, x_t) for part in self.schedule.coefficients(t))
        return (alpha * self.denoise(x_t, t) - x_t) / sigma.square()

    def sample(self, num_samples: int, seed: int = 0) -> Tensor:
        """Draw exact samples of x_0, shape (N, C, *spatial); sample n is a function of (seed, n)."""
        streams = NoiseStreams.from_seed(num_samples, seed)
        component = torch.searchsorted(self.weights.cumsum(0), streams.uniform(Purpose.COMPONENT))
        component = component.clamp(max=len(self.weights) - 1)
        z = streams.normal(Purpose.PRIOR, (self.means.shape[1],), self.means)
        scaled = (self._spectrum[component].sqrt() * z).to(self.dtype)
        x = self.means[component] + torch.einsum("nde,ne->nd", self._basis[component], scaled).double()
        return x.reshape(num_samples, *self.shape).to(self.dtype)

    def condition(self, matrix: Tensor, y: Tensor, noise_std: float | Tensor) -> GaussianMixturePrior:
        """Return the exact posterior under y = A x_0 + noise_std z, again a mixture.

        Args:
            matrix: Operator A, shape (M, D).
            y: One measurement of M values, in any shape.
            noise_std: Standard deviation of the measurement noise, one number or M.
        """
        A, y = matrix.to(torch.float64), y.to(torch.float64).flatten()
        if len(y) == 0:
            return self
        std = torch.as_tensor(noise_std, dtype=torch.float64).expand_as(y)
        noise = std.square().diag()
        cross = self.covariances @ A.T
        evidence = torch.distributions.MultivariateNormal(
            self.means @ A.T, covariance_matrix=A @ cross + noise, validate_args=False
        )
        gain = torch.linalg.solve(A @ cross + noise, cross.mT).mT
        means = self.means + torch.einsum("kdm,km->kd", gain, y - self.means @ A.T)
        # Joseph's form keeps the covariance positive semi-definite despite rounding.
        shrink = torch.eye(A.shape[1], dtype=torch.float64) - gain @ A
        covariances = shrink @ self.covariances @ shrink.mT + (gain * std) @ (gain * std).mT
        weights = (self.weights.log() + evidence.log_prob(y)).softmax(0)  # type: ignore[no-untyped-call]
        return GaussianMixturePrior(
            weights, means.reshape(-1, *self.shape), covariances, self.schedule, self.dtype
        )

    @property
    def mean(self) -> Tensor:
        """Mean E[x_0], shape (C, *spatial), float64."""
        return (self.weights @ self.means).reshape(self.shape)

    @property
    def std(self) -> Tensor:
        """Standard deviation of each pixel of x_0, shape (C, *spatial), float64."""
        second = self.covariances.diagonal(dim1=1, dim2=2) + self.means.square()
        variance = (self.weights @ second - self.mean.flatten().square()).clamp(min=0.0)
        return variance.sqrt().reshape(self.shape)

    def _whiten(self, x_t: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return x_t - alpha m_k in the eigenbasis of component k and its variances, shape (B or 1, K, D)."""
        alpha, sigma = (part.reshape(-1, 1, 1) for part in self.schedule.coefficients(t))
        variance = (alpha.square() * self._spectrum + sigma.square()).to(self.dtype)
        variance = variance.clamp(min=torch.finfo(self.dtype).tiny)  # zero eigenvalues at t = 0
        alpha = alpha.to(self.dtype)
        coordinates = torch.einsum("bd,kde->bke", x_t.flatten(1).to(self.dtype), self._basis)
        return coordinates - alpha * self._means_in_basis, variance, alpha, self._spectrum.to(self.dtype)

    def _log_joint(self, coordinates: Tensor, variance: Tensor) -> Tensor:
        """Return log w_k N(x_t; ...) without the constant -D/2 log(2 pi), shape (B, K)."""
        mahalanobis = (coordinates.square() / variance).sum(-1)
        return self.weights.log().to(self.dtype) - 0.5 * (mahalanobis + variance.log().sum(-1))


class GaussianPrior(GaussianMixturePrior):
    """A Gaussian N(mean, covariance), whose denoiser is linear.

    Args:
        mean: Mean, shape (C, *spatial).
        covariance: Covariance, shape (D, D).
        schedule: Schedule of the noise; default VP-linear.
        dtype: Precision of the computation.

    Example:
        >>> import torch
        >>> from lavps import GaussianPrior
        >>> prior = GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16))
        >>> prior.denoise(torch.randn(2, 1, 4, 4), torch.tensor(0.5).double()).shape
        torch.Size([2, 1, 4, 4])
    """

    def __init__(
        self,
        mean: Tensor,
        covariance: Tensor,
        schedule: Schedule | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__([1.0], mean[None], covariance[None], schedule, dtype)
