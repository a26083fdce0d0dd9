r"""DDIM: the unconditional sampler, and the chain by which guided samplers go from x_s to x_0.

.. math:: x_s \sim N(\alpha_s \hat x_0 + \sqrt{\sigma_s^2 - \eta^2 v}\,(x_t - \alpha_t \hat x_0) / \sigma_t,
    \; \eta^2 v), \qquad \hat x_0 = D(x_t, t).

Asymptotically exact for the prior (and for a posterior, given the posterior's own denoiser). A noisy image
:math:`y = x + \sigma z` is :math:`x_t / \alpha_t` at the time t of noise level :math:`\sigma`: started there,
the chain is asymptotically exact for the posterior of x, if :math:`\eta = 1`.

References:
    - Song, Meng and Ermon, Denoising Diffusion Implicit Models, 2021.
    - Kawar, Vaksman and Elad, Stochastic Image Denoising by Sampling from the Posterior Distribution, 2021
      (Langevin steps from y to lower noise).
"""

from __future__ import annotations

__all__ = ["DDIM", "DDIMSampler", "DenoisingSampler", "ddim_chain", "denoising_noise"]

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from ..operators import Identity
from ..priors import Prior
from ..problem import InverseProblem, Unconditional
from ..random import Purpose
from ..schedule import Schedule, time_grid
from ..transitions import IsotropicGaussian, ddim_step, per_sample
from .base import Progress, Run, Sampler


def denoising_noise(problem: InverseProblem | Unconditional) -> Tensor | None:
    """Return the noise's standard deviation (B,) if A is the identity and the noise white; else None."""
    if isinstance(problem, Unconditional) or not isinstance(problem.operator, Identity):
        return None
    if not problem.is_linear_gaussian:
        return None
    std = problem.noise.precision(problem.y).double().rsqrt()
    return std.reshape(-1).expand(len(problem)) if std.numel() in (1, len(problem)) else None


def ddim_chain(
    run: Run, x_s: Tensor, s: Tensor, num_steps: int, eta: float, step: int, index: int = 0
) -> Tensor:
    """DDIM(x_s, s, M): from x_s to x_0 in M denoiser calls, at times s, s (M-1)/M, ..., s/M."""
    x = x_s
    for m in range(num_steps, 0, -1):
        t = s * (m / num_steps)
        x_0 = run.prior.denoise(x, t)
        if m > 1:
            noise = run.normal(Purpose.DDIM, step, index * num_steps + m) if eta > 0 else 0.0 * x
            x = ddim_step(run.prior.schedule, x_0, x, s * ((m - 1) / num_steps), t, eta).sample(noise)
    return x_0


@dataclass(frozen=True)
class DenoisingSampler(Sampler):
    """DDIM's loop with a denoiser of one's own: K evaluations, each followed by a transition to lower noise.

    Subclasses define :meth:`estimate` and :meth:`transition`.

    Args:
        prior: Denoiser D.
        num_steps: Number K of denoiser evaluations.
        grid_power: Exponent of t_k = (k / K)^power; above 1 the steps are denser towards t = 0.
    """

    prior: Prior
    _: KW_ONLY
    num_steps: int = 100
    grid_power: float = 1.0

    @property
    def total_steps(self) -> int:
        """One per denoiser evaluation."""
        return self.num_steps

    def times(self, schedule: Schedule) -> Tensor:
        """Return 0 and the times of the K evaluations, ascending, shape (K + 1,)."""
        return time_grid(self.num_steps, self.grid_power)

    def start(self, run: Run) -> tuple[Tensor, Tensor]:
        """Return x at the first evaluation, and the grid of times, shape (K + 1,) or (K + 1, B)."""
        return run.initial(), self.times(run.prior.schedule)

    @abstractmethod
    def estimate(self, run: Run, x_t: Tensor, t: Tensor, step: int) -> Tensor:
        """Return the estimate of x_0, E[x_0 | x_t, y] or a draw of it; step counts down to 1, the last."""

    @abstractmethod
    def transition(self, run: Run, x_0: Tensor, x_t: Tensor, s: Tensor, t: Tensor) -> IsotropicGaussian:
        """Return the distribution of x_s given x_0 and x_t, s < t."""

    def steps(self, run: Run) -> Iterator[Progress]:
        """K evaluations, from t_K down to t_1; the last estimate is the sample."""
        x, grid = self.start(run)
        x = run.state.get("x_t", x)
        for k in range(self.num_steps - run.taken, 0, -1):
            x_0 = self.estimate(run, x, grid[k], k)
            if k > 1:
                kernel = self.transition(run, x_0, x, grid[k - 1], grid[k])
                x = kernel.sample(run.normal(Purpose.DDIM, k))
            yield Progress(grid[k], x_0, state={"x_t": x})


@dataclass(frozen=True)
class DDIMSampler(DenoisingSampler):
    """DDIM's transition after each estimate; the estimate itself is D(x_t, t) unless a subclass has its own.

    Args:
        prior: Denoiser D.
        num_steps: Number K of denoiser evaluations.
        grid_power: Exponent of t_k = (k / K)^power; above 1 the steps are denser towards t = 0.
        eta: Fraction of fresh noise; 1 is ancestral (DDPM), 0 deterministic.
    """

    _: KW_ONLY
    eta: float = 1.0

    def estimate(self, run: Run, x_t: Tensor, t: Tensor, step: int) -> Tensor:
        """Return D(x_t, t)."""
        return run.prior.denoise(x_t, t)

    def transition(self, run: Run, x_0: Tensor, x_t: Tensor, s: Tensor, t: Tensor) -> IsotropicGaussian:
        """Return DDIM's step."""
        return ddim_step(run.prior.schedule, x_0, x_t, s, t, self.eta)


@dataclass(frozen=True)
class DDIM(DDIMSampler):
    """Samples of the prior (Song et al., 2021), or of a noisy image's posterior; exact for many steps.

    For denoising (A is the identity, the noise white) the chain starts at y, and should have eta = 1. Other
    measurements are ignored, except that exact values are kept (:meth:`lavps.InverseProblem.project`). With a
    posterior's denoiser it samples that posterior. The fields are those of :class:`DDIMSampler`.

    Example:
        >>> import torch, lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> lavps.DDIM(prior, num_steps=5).sample(lavps.Unconditional((1, 4, 4), 3)).samples.shape
        torch.Size([3, 1, 1, 4, 4])
    """

    def start(self, run: Run) -> tuple[Tensor, Tensor]:
        """Return y and times up to that of its noise for denoising; else noise and times up to 1."""
        if (std := denoising_noise(run.problem)) is None:
            return super().start(run)
        schedule, y = run.prior.schedule, run.measured.y
        t = schedule.time(std)
        return per_sample(schedule.alpha(t), y) * y, self.times(schedule)[:, None] * t
