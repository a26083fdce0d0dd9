r"""Gaussian and Gaussian-mixture priors: exact denoisers, exact scores, exact posteriors.

For :math:`p(x_0) = \sum_k w_k N(m_k, \Sigma_k)` everything a diffusion sampler approximates is known:

.. math::
    p(x_t) &= \sum_k w_k N(\alpha m_k, \alpha^2 \Sigma_k + \sigma^2 I) \\
    E[x_0 | x_t] &= \sum_k r_k(x_t) \big(m_k + \alpha \Sigma_k (\alpha^2 \Sigma_k + \sigma^2 I)^{-1}
        (x_t - \alpha m_k)\big)

with :math:`r_k` the posterior weight of component k. Under :math:`y = A x_0 + N(0, \sigma_y^2)` the
posterior is a mixture again (:meth:`GaussianMixturePrior.condition`), whose own denoiser is
:math:`E[x_0 | x_t, y]`. So every sampler, warm start and safeguard can be judged against the truth before
it sees an image.
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
    """A mixture of K Gaussians over images of shape (C, *spatial), D pixels in all.

    Args:
        weights: (K,), positive; normalised here.
        means: (K, C, *spatial).
        covariances: (K, D, D), symmetric positive semi-definite.
        schedule: default DDPM's VP-linear.
        dtype: the arithmetic's precision; images of another dtype are cast in and out.
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
        # The means in each component's own eigenbasis: x meets a basis once in and once out.
        self._means_in_basis = torch.einsum("kd,kde->ke", self.means, eigenvectors).to(dtype)

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """E[x_0 | x_t], exact."""
        coordinates, variance, alpha, spectrum = self._whiten(x_t, t)
        estimate = self._means_in_basis + alpha * spectrum / variance * coordinates
        responsibility = self._log_joint(coordinates, variance).softmax(dim=1)
        x_0 = torch.einsum("bk,bke,kde->bd", responsibility, estimate, self._basis)
        return x_0.reshape(x_t.shape).to(x_t.dtype)

    def log_prob(self, x_t: Tensor, t: Tensor) -> Tensor:
        """log p_t(x_t), shape (B,)."""
        coordinates, variance, _, _ = self._whiten(x_t, t)
        constant = 0.5 * coordinates.shape[-1] * math.log(2 * math.pi)
        return self._log_joint(coordinates, variance).logsumexp(dim=1) - constant

    def score(self, x_t: Tensor, t: Tensor) -> Tensor:
        r"""\nabla log p_t(x_t) = (alpha E[x_0 | x_t] - x_t) / sigma^2 (Tweedie)."""
        alpha, sigma = per_sample(self.schedule.alpha(t), x_t), per_sample(self.schedule.sigma(t), x_t)
        return (alpha * self.denoise(x_t, t) - x_t) / sigma.square()

    def sample(self, num_samples: int, seed: int = 0) -> Tensor:
        """Exact draws of x_0, (N, C, *spatial); draw n is a function of (seed, n)."""
        streams = NoiseStreams.of(num_samples, seed)
        component = torch.searchsorted(self.weights.cumsum(0), streams.uniform(Purpose.COMPONENT))
        component = component.clamp(max=len(self.weights) - 1)
        z = streams.normal(Purpose.PRIOR, (self.means.shape[1],), self.means)
        scaled = (self._spectrum[component].sqrt() * z).to(self.dtype)
        x = self.means[component] + torch.einsum("nde,ne->nd", self._basis[component], scaled).double()
        return x.reshape(num_samples, *self.shape).to(self.dtype)

    def condition(self, matrix: Tensor, y: Tensor, noise_std: float) -> GaussianMixturePrior:
        """The exact posterior under y = A x_0 + noise_std z, a mixture again.

        Args:
            matrix: A as (M, D).
            y: one measurement, M values in any shape.
            noise_std: standard deviation of the measurement noise.
        """
        A, y = matrix.to(torch.float64), y.to(torch.float64).flatten()
        if len(y) == 0:
            return self
        noise = noise_std**2 * torch.eye(len(y), dtype=torch.float64)
        cross = self.covariances @ A.T
        evidence = torch.distributions.MultivariateNormal(
            self.means @ A.T, covariance_matrix=A @ cross + noise, validate_args=False
        )
        gain = torch.linalg.solve(A @ cross + noise, cross.mT).mT
        means = self.means + torch.einsum("kdm,km->kd", gain, y - self.means @ A.T)
        # Joseph's form keeps the covariance positive where the plain one cancels.
        shrink = torch.eye(A.shape[1], dtype=torch.float64) - gain @ A
        covariances = shrink @ self.covariances @ shrink.mT + noise_std**2 * gain @ gain.mT
        weights = (self.weights.log() + evidence.log_prob(y)).softmax(0)  # type: ignore[no-untyped-call]
        return GaussianMixturePrior(
            weights, means.reshape(-1, *self.shape), covariances, self.schedule, self.dtype
        )

    @property
    def mean(self) -> Tensor:
        """E[x_0], (C, *spatial), float64."""
        return (self.weights @ self.means).reshape(self.shape)

    @property
    def std(self) -> Tensor:
        """Standard deviation of every pixel of x_0, (C, *spatial), float64."""
        second = self.covariances.diagonal(dim1=1, dim2=2) + self.means.square()
        return (
            (self.weights @ second - self.mean.flatten().square()).clamp(min=0.0).sqrt().reshape(self.shape)
        )

    def _whiten(self, x_t: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x_t - alpha m_k in component k's eigenbasis, and its variances there: both (B or 1, K, D)."""
        alpha, sigma = self.schedule.alpha(t).reshape(-1, 1, 1), self.schedule.sigma(t).reshape(-1, 1, 1)
        variance = (alpha.square() * self._spectrum + sigma.square()).to(self.dtype)
        variance = variance.clamp(min=torch.finfo(self.dtype).tiny)  # a flat direction at t = 0
        alpha = alpha.to(self.dtype)
        coordinates = torch.einsum("bd,kde->bke", x_t.flatten(1).to(self.dtype), self._basis)
        return coordinates - alpha * self._means_in_basis, variance, alpha, self._spectrum.to(self.dtype)

    def _log_joint(self, coordinates: Tensor, variance: Tensor) -> Tensor:
        """log w_k N(x_t; ...) up to the constant of pi, (B, K)."""
        mahalanobis = (coordinates.square() / variance).sum(-1)
        return self.weights.log().to(self.dtype) - 0.5 * (mahalanobis + variance.log().sum(-1))


class GaussianPrior(GaussianMixturePrior):
    """One Gaussian N(mean, covariance): the mixture of a single component, for which D is linear.

    Args:
        mean: (C, *spatial).
        covariance: (D, D).
        schedule: default DDPM's VP-linear.
        dtype: the arithmetic's precision.
    """

    def __init__(
        self,
        mean: Tensor,
        covariance: Tensor,
        schedule: Schedule | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__([1.0], mean[None], covariance[None], schedule, dtype)
