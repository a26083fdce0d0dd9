r"""Reference posteriors of mixture priors for nonlinear operators and non-Gaussian noise.

Sequential Monte Carlo moves exact samples of the prior to the posterior:

.. math:: \pi_j(x) \propto p(x)\, l(y | A(x))^{\beta_j}, \qquad 0 = \beta_0 < \dots < \beta_J = 1.

Every stage reweights the particles, resamples them, and moves them by Hamiltonian Monte Carlo in the whitened
coordinates of their component, :math:`x = m_k + L_k z`. The component is redrawn from :math:`p(k | x)` before
every move. :math:`\beta_{j+1}` is the largest that keeps the effective sample size. The method is exact in
the limit of many particles; tests compare it with the exact posterior of linear problems.

Reference: Del Moral, Doucet and Jasra, Sequential Monte Carlo Samplers, 2006.
"""

from __future__ import annotations

__all__ = ["tempered_posterior"]

import torch
from torch import Tensor

from ..priors import GaussianMixturePrior
from ..problem import InverseProblem
from ..random import NoiseStreams, Purpose


def tempered_posterior(
    prior: GaussianMixturePrior,
    problem: InverseProblem,
    num_samples: int,
    *,
    particles: int = 2048,
    moves: int = 6,
    leapfrogs: int = 8,
    effective: float = 0.7,
    seed: int = 0,
) -> Tensor:
    """Draw samples (B, N, C, *spatial) of the posterior of every item, in float64.

    Args:
        prior: Mixture prior.
        problem: Inverse problem with any differentiable operator and any noise.
        num_samples: Number N of samples per item, at most ``particles``.
        particles: Number of particles per item.
        moves: Hamiltonian moves per stage; three times as many in the last one.
        leapfrogs: Leapfrog steps per move.
        effective: Effective sample size of a stage, as a share of the particles.
        seed: Random seed.
    """
    if num_samples > particles:
        raise ValueError(f"{num_samples} samples need at least as many particles, got {particles}")
    double = problem.to(torch.float64)
    # Children of one ancestor are neighbours: samples are taken evenly from all particles.
    chosen = torch.arange(num_samples) * particles // num_samples
    samples = []
    for item in range(len(problem)):
        streams = NoiseStreams.from_seed(1, seed, [item], particles)
        found = _Particles(prior, double[item].repeat(particles), streams)
        samples.append(found.run(moves, leapfrogs, effective)[chosen])
    return torch.stack(samples)


class _Particles:
    """Particles of one item, (P, D)."""

    def __init__(self, prior: GaussianMixturePrior, problem: InverseProblem, streams: NoiseStreams) -> None:
        self.prior, self.problem, self.streams = prior, problem, streams
        eye = torch.eye(prior.means.shape[1], dtype=torch.float64)
        self.root = torch.linalg.cholesky(prior.covariances + 1e-12 * eye)
        self.step, self.draws, self.x = 0.5, 0, prior.means[:1]
        above = self._uniform()[:, None] > prior.weights.cumsum(0)
        component = above.sum(1).clamp(max=len(prior.weights) - 1)
        z = streams.normal(Purpose.REFERENCE, prior.means.shape[1:], prior.means)
        self.x = prior.means[component] + (self.root[component] @ z[:, :, None])[:, :, 0]

    def run(self, moves: int, leapfrogs: int, effective: float) -> Tensor:
        """Move the particles to the posterior, (P, C, *spatial)."""
        beta, likelihood = 0.0, self._log_likelihood(self.x)
        while beta < 1.0:
            gain = self._raise(likelihood, beta, effective)
            weights = (gain * likelihood).softmax(0)
            beta = min(1.0, beta + gain)
            self.x = self.x[self._resample(weights)]
            for _ in range(moves * (3 if beta == 1.0 else 1)):
                self._move(beta, leapfrogs)
            likelihood = self._log_likelihood(self.x)
        return self.x.reshape(-1, *self.prior.shape)

    def _log_likelihood(self, x: Tensor) -> Tensor:
        return self.problem.log_likelihood(x.reshape(-1, *self.prior.shape))

    @staticmethod
    def _raise(likelihood: Tensor, beta: float, effective: float) -> float:
        """Return the largest step of beta that keeps the effective sample size, by bisection."""

        def share(gain: float) -> float:
            return float(1.0 / (gain * likelihood).softmax(0).square().sum()) / len(likelihood)

        low, high = 0.0, 1.0 - beta
        if share(high) >= effective:
            return high
        for _ in range(50):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if share(middle) >= effective else (low, middle)
        return low

    def _resample(self, weights: Tensor) -> Tensor:
        """Return the ancestors (P,) of systematic resampling."""
        count = len(weights)
        quantiles = (torch.arange(count, dtype=torch.float64) + self._uniform()[0]) / count
        return torch.searchsorted(weights.cumsum(0), quantiles).clamp(max=count - 1)

    def _move(self, beta: float, leapfrogs: int) -> None:
        """Move every particle by Hamiltonian Monte Carlo, after redrawing its component."""
        component = self._components()
        root, mean = self.root[component], self.prior.means[component]
        z = torch.linalg.solve_triangular(root, (self.x - mean)[:, :, None], upper=False)[:, :, 0]
        p = self._normal()
        start, slope = self._potential(z, mean, root, beta)
        before = start + 0.5 * p.square().sum(1)
        step = self.step * (0.7 + 0.6 * self._uniform()[0].item())
        new, momentum = z, p - 0.5 * step * slope
        for last in range(leapfrogs):
            new = new + step * momentum
            energy, slope = self._potential(new, mean, root, beta)
            momentum = momentum - (0.5 if last == leapfrogs - 1 else 1.0) * step * slope
        after = energy + 0.5 * momentum.square().sum(1)
        accepted = self._uniform().log() < before - after
        moved = mean + (root @ new[:, :, None])[:, :, 0]
        self.x = torch.where(accepted[:, None], moved, self.x)
        # The step size adapts to an acceptance rate of two thirds, slowly compared with a stage.
        self.step *= 1.15 if float(accepted.double().mean()) > 0.67 else 0.85

    def _components(self) -> Tensor:
        """Draw a component k ~ p(k | x) per particle."""
        gap = (self.x[:, None] - self.prior.means).permute(1, 2, 0)
        white = torch.linalg.solve_triangular(self.root, gap, upper=False)
        log_det = self.root.diagonal(dim1=1, dim2=2).log().sum(1)
        joint = (self.prior.weights.log() - log_det)[:, None] - 0.5 * white.square().sum(1)
        chances = joint.softmax(0).cumsum(0)
        above: Tensor = self._uniform() > chances
        return above.sum(0).clamp(max=len(chances) - 1)

    def _potential(self, z: Tensor, mean: Tensor, root: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """Return the negative log of the tempered density in z, per particle, and its gradient."""
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            x = mean + (root @ leaf[:, :, None])[:, :, 0]
            energy = 0.5 * leaf.square().sum(1) - beta * self._log_likelihood(x)
            (slope,) = torch.autograd.grad(energy.sum(), leaf)
        return energy.detach(), slope

    def _normal(self) -> Tensor:
        self.draws += 1
        return self.streams.normal(Purpose.REFERENCE, self.x.shape[1:], self.x, self.draws)

    def _uniform(self) -> Tensor:
        self.draws += 1
        return self.streams.uniform(Purpose.REFERENCE, self.draws)
