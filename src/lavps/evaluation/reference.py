r"""Reference posteriors where no formula gives them: nonlinear operators, other noise, a mixture prior.

Sequential Monte Carlo from the prior, which is sampled exactly, to the posterior:

.. math:: \pi_j(x) \propto p(x)\, l(y | A(x))^{\beta_j}, \qquad 0 = \beta_0 < \dots < \beta_J = 1.

Every stage reweighs the particles, resamples them, and moves them by Hamiltonian Monte Carlo in the
whitened coordinates of their component, :math:`x = m_k + L_k z`; the component itself is drawn anew from
:math:`p(k | x)` before every move. :math:`\beta_{j+1}` is as large as the particles' effective number
allows. Exact in the limit of many particles; on linear problems it is checked against the exact posterior.

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
    """Samples (B, N, C, *spatial) of the posterior of every item, in float64.

    Args:
        prior: the mixture.
        problem: any operator with a derivative, any noise.
        num_samples: N, at most ``particles``.
        particles: per item.
        moves: Hamiltonian moves a stage.
        leapfrogs: gradients a move.
        effective: share of the particles that must stay effective when the likelihood is raised.
        seed: of everything.
    """
    if num_samples > particles:
        raise ValueError(f"{num_samples} samples need at least as many particles, got {particles}")
    double = problem.to(torch.float64)
    # Children of one ancestor are neighbours: samples are taken evenly from all particles.
    places = torch.arange(num_samples) * particles // num_samples
    streams = [NoiseStreams.of(1, seed, [item], particles) for item in range(len(problem))]
    found = [_Particles(prior, double[item].repeat(particles), streams[item]) for item in range(len(problem))]
    return torch.stack([one.run(moves, leapfrogs, effective)[places] for one in found])


class _Particles:
    """The particles of one item, (P, D), on the way to the posterior."""

    def __init__(self, prior: GaussianMixturePrior, problem: InverseProblem, streams: NoiseStreams) -> None:
        self.prior, self.problem, self.streams = prior, problem, streams
        eye = torch.eye(prior.means.shape[1], dtype=torch.float64)
        self.root = torch.linalg.cholesky(prior.covariances + 1e-12 * eye)
        self.step, self.draws, self.x = 0.5, 0, prior.means[:1]
        component = (
            (self._uniform()[:, None] > prior.weights.cumsum(0)).sum(1).clamp(max=len(prior.weights) - 1)
        )
        z = streams.normal(Purpose.REFERENCE, prior.means.shape[1:], prior.means)
        self.x = prior.means[component] + (self.root[component] @ z[:, :, None])[:, :, 0]

    def run(self, moves: int, leapfrogs: int, effective: float) -> Tensor:
        """(P, C, *spatial)."""
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
        """The largest step of beta that leaves this share of the particles effective, by bisection."""

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
        """Systematic resampling: ancestors (P,)."""
        count = len(weights)
        offset = self._uniform()[0]
        places = (torch.arange(count, dtype=torch.float64) + offset) / count
        return torch.searchsorted(weights.cumsum(0), places).clamp(max=count - 1)

    def _move(self, beta: float, leapfrogs: int) -> None:
        """One Hamiltonian move of every particle, with its component drawn anew."""
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
        # Towards two thirds of the moves accepted; the adaptation is slow beside a stage.
        self.step *= 1.15 if float(accepted.double().mean()) > 0.67 else 0.85

    def _components(self) -> Tensor:
        """k ~ p(k | x), one per particle."""
        gap = (self.x[:, None] - self.prior.means).permute(1, 2, 0)
        white = torch.linalg.solve_triangular(self.root, gap, upper=False)
        log_det = self.root.diagonal(dim1=1, dim2=2).log().sum(1)
        joint = (self.prior.weights.log() - log_det)[:, None] - 0.5 * white.square().sum(1)
        chances = joint.softmax(0).cumsum(0)
        above: Tensor = self._uniform() > chances
        return above.sum(0).clamp(max=len(chances) - 1)

    def _potential(self, z: Tensor, mean: Tensor, root: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """-log of the tempered density in z, per particle, and its gradient."""
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
