r"""Noise schedules :math:`(\alpha_t, \sigma_t)` and time grids.

Time is continuous, :math:`t \in [0, 1]`, and a noisy image is

.. math:: x_t = \alpha_t x_0 + \sigma_t \varepsilon, \qquad \varepsilon \sim N(0, I),

with :math:`\alpha_0 = 1`, :math:`\sigma_0 = 0` and :math:`\alpha_t / \sigma_t` decreasing (the paper's
Eq. 1). Coefficients are computed in float64 on the CPU and cast only when they are combined with an image:
half precision cannot represent small noise levels, and some devices lack float64.

Networks trained on a discrete index (DDPM) are adapted in :mod:`lavps.priors`; samplers use continuous time.

References:
    - Ho et al., Denoising Diffusion Probabilistic Models, 2020 (:class:`VPLinear`).
    - Nichol and Dhariwal, Improved DDPM, 2021 (:class:`Cosine`).
    - Lipman et al., Flow Matching for Generative Modeling, 2023 (:class:`Flow`).
    - Karras et al., Elucidating the Design Space of Diffusion Models, 2022 (:class:`VE`).
"""

from __future__ import annotations

__all__ = [
    "VE",
    "Cosine",
    "DiscreteVP",
    "Flow",
    "Schedule",
    "VPLinear",
    "as_time",
    "evaluation_times",
    "time_grid",
]

import hashlib
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


def as_time(t: float | Tensor) -> Tensor:
    """Return times as a float64 CPU tensor of shape () or (B,)."""
    return torch.as_tensor(t, dtype=torch.float64, device="cpu")


def time_grid(num_steps: int, power: float = 1.0) -> Tensor:
    """Return the grid t_k = (k / K)^power, k = 0, ..., K = ``num_steps``, shape (K + 1,).

    The paper's uniform grid has power = 1; larger powers give smaller steps near t = 0.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    if power <= 0:
        raise ValueError(f"power must be positive, got {power}")
    return (torch.arange(num_steps + 1, dtype=torch.float64) / num_steps) ** power


def evaluation_times(
    schedule: Schedule, num_steps: int, power: float, last: float | Tensor | None, first: Tensor | None = None
) -> Tensor:
    r"""Return 0 and the times of K = ``num_steps`` denoiser evaluations, ascending: (K + 1,) or (K + 1, B).

    Noise levels are :math:`\tau / (1 - \tau)` on a grid of :math:`\tau` up to 1, the same for every schedule
    (:class:`Flow` has :math:`t = \tau`).

    Args:
        schedule: Noise schedule.
        num_steps: Number K of evaluations.
        power: Exponent of the grid; above 1 it is denser at low noise.
        last: Lowest :math:`\tau`, that of the last evaluation, shape () or (B,); None for (1 / K)^power.
        first: Highest :math:`\tau`, shape () or (B,); None for 1.
    """
    first = torch.ones((), dtype=torch.float64) if first is None else first
    if last is None:
        last = (1.0 / num_steps) ** power
    low, high = torch.as_tensor(last, dtype=torch.float64) ** (1.0 / power), first ** (1.0 / power)
    share = torch.linspace(0.0, 1.0, num_steps, dtype=torch.float64) if num_steps > 1 else torch.ones(1)
    tau = (low + (high - low) * share.reshape(-1, *[1] * first.ndim)) ** power
    times = schedule.time(tau / (1.0 - tau))
    return torch.cat([torch.zeros_like(times[:1], dtype=torch.float64), times.double()])


class Schedule(ABC):
    """Noise schedule (alpha_t, sigma_t)."""

    @abstractmethod
    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return (alpha_t, sigma_t), float64, with t's shape and differentiable in t."""

    @abstractmethod
    def time(self, noise_level: Tensor) -> Tensor:
        """Return the time at which sigma_t / alpha_t equals ``noise_level``, clamped to [0, 1]."""

    def alpha(self, t: Tensor) -> Tensor:
        """Return the signal coefficient alpha_t."""
        return self.coefficients(t)[0]

    def sigma(self, t: Tensor) -> Tensor:
        """Return the noise coefficient sigma_t."""
        return self.coefficients(t)[1]

    def noise_level(self, t: Tensor) -> Tensor:
        """Return sigma_t / alpha_t, the standard deviation of the noise relative to the image."""
        alpha, sigma = self.coefficients(t)
        return sigma / alpha

    def log_snr(self, t: Tensor) -> Tensor:
        """Return log(alpha_t^2 / sigma_t^2), strictly decreasing in t (+inf at t = 0)."""
        alpha, sigma = self.coefficients(t)
        return 2.0 * (alpha.log() - sigma.log())


@dataclass(frozen=True)
class DiscreteVP(Schedule):
    r"""Variance-preserving schedule from the betas of a discrete chain.

    Node i = 1..n of the chain is t = i / n with alpha^2 = prod_{j <= i} (1 - beta_j); log alpha^2 is linear
    between nodes.

    Attributes:
        betas: Variances of the chain (n,), each in (0, 1).
        log_alpha_bar: Values of log alpha^2 at t = 0 and the nodes, (n + 1,).
    """

    betas: tuple[float, ...]
    log_alpha_bar: Tensor = field(init=False, repr=False, compare=False)

    def __init__(self, betas: Sequence[float] | Tensor) -> None:
        variances = torch.as_tensor(betas, dtype=torch.float64).detach()
        if variances.ndim != 1 or len(variances) == 0 or not bool(((variances > 0) & (variances < 1)).all()):
            raise ValueError("betas must be a non-empty list of numbers in (0, 1)")
        table = torch.cat([torch.zeros(1, dtype=torch.float64), torch.log1p(-variances).cumsum(0)])
        object.__setattr__(self, "betas", tuple(variances.tolist()))
        object.__setattr__(self, "log_alpha_bar", table)

    @property
    def num_train_steps(self) -> int:
        """Length n of the chain."""
        return len(self.betas)

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return sqrt(alpha_bar_t) and sqrt(1 - alpha_bar_t), without cancellation near t = 0."""
        position = as_time(t).clamp(0.0, 1.0) * self.num_train_steps
        last = self.num_train_steps - 1
        # Samplers evaluate one time per call, for which a Python index is much faster than a tensor index.
        left = min(int(position), last) if position.ndim == 0 else position.floor().clamp(max=last).long()
        log = torch.lerp(self.log_alpha_bar[left], self.log_alpha_bar[left + 1], position - left)
        return (0.5 * log).exp(), (-torch.expm1(log)).sqrt()

    def time(self, noise_level: Tensor) -> Tensor:
        """Return the time of a noise level, by bisection and linear interpolation of log alpha_bar."""
        target = -torch.log1p(as_time(noise_level).square())
        nodes = -self.log_alpha_bar
        right = torch.searchsorted(nodes, -target).clamp(1, self.num_train_steps)
        fraction = (-target - nodes[right - 1]) / (nodes[right] - nodes[right - 1])
        return ((right - 1 + fraction) / self.num_train_steps).clamp(0.0, 1.0)

    def __repr__(self) -> str:
        digest = hashlib.sha256(struct.pack(f"{len(self.betas)}d", *self.betas)).hexdigest()[:12]
        return f"DiscreteVP({self.num_train_steps} betas, sha256={digest})"


@dataclass(frozen=True)
class VPLinear(DiscreteVP):
    """DDPM's schedule with ``num_train_steps`` betas, linear from beta_min to beta_max.

    Example:
        >>> VPLinear().alpha(torch.tensor(0.0)).item()
        1.0
    """

    betas: tuple[float, ...] = field(init=False, repr=False, compare=False)
    beta_min: float = 1e-4
    beta_max: float = 0.02
    num_train_steps: int = 1000

    def __post_init__(self) -> None:
        betas = torch.linspace(self.beta_min, self.beta_max, self.num_train_steps, dtype=torch.float64)
        super().__init__(betas)


@dataclass(frozen=True)
class Cosine(Schedule):
    r"""Cosine schedule :math:`\alpha_t = \cos(\pi(t + o) / 2(1 + o)) / \cos(\pi o / 2(1 + o))`.

    Attributes:
        offset: Offset o of Nichol and Dhariwal; 0 gives the plain cosine.
    """

    offset: float = 0.008

    def __post_init__(self) -> None:
        if self.offset < 0:
            raise ValueError(f"offset must be non-negative, got {self.offset}")

    @property
    def _start(self) -> float:
        """Angle of the cosine at t = 0."""
        return 0.5 * math.pi * self.offset / (1.0 + self.offset)

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return alpha_t, exactly 0 at t = 1, and sigma_t from (1 - alpha_t)(1 + alpha_t)."""
        t, scale = as_time(t), math.cos(self._start)
        alpha = (0.5 * math.pi * ((1.0 - t) / (1.0 + self.offset))).sin().div(scale).clamp(max=1.0)
        half = 0.25 * math.pi * t / (1.0 + self.offset)
        # 1 - cos(start + 2 half) / cos(start) = 2 sin(half) sin(start + half) / cos(start)
        one_minus = half.sin() * (self._start + half).sin() / (0.5 * scale)
        return alpha, (one_minus * (1.0 + alpha)).clamp(0.0, 1.0).sqrt()

    def time(self, noise_level: Tensor) -> Tensor:
        """Return the time of a noise level by arctan2; arccos would lose half the digits near t = 0."""
        level = as_time(noise_level)
        cosine = torch.rsqrt(1.0 + level.square()) * math.cos(self._start)
        start = torch.full_like(level, math.sin(self._start))
        sine = torch.hypot(level.atan().sin() * math.cos(self._start), start)
        left = torch.atan2(cosine, sine) * (1.0 + self.offset) / (0.5 * math.pi)
        return (1.0 - left).clamp(0.0, 1.0)


@dataclass(frozen=True)
class Flow(Schedule):
    """Linear path of flow matching, alpha_t = 1 - t and sigma_t = t.

    Example:
        >>> Flow().noise_level(torch.tensor(0.5)).item()
        1.0
    """

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1 - t and t."""
        t = as_time(t)
        return 1.0 - t, t.clone()

    def time(self, noise_level: Tensor) -> Tensor:
        """Return r / (1 + r) for the noise level r, also for r = inf."""
        return 1.0 - 1.0 / (1.0 + as_time(noise_level))


@dataclass(frozen=True)
class VE(Schedule):
    r"""Variance-exploding schedule with EDM's spacing, alpha = 1 and sigma from 0 to ``sigma_max``.

    EDM's :math:`(a + t (b - a))^\rho` with :math:`a = \sigma_{min}^{1/\rho}, b = \sigma_{max}^{1/\rho}`
    is shifted and rescaled, so that it starts at 0 instead of sigma_min.
    """

    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0

    def __post_init__(self) -> None:
        if not 0 < self.sigma_min < self.sigma_max or self.rho < 1:
            raise ValueError("VE needs 0 < sigma_min < sigma_max and rho >= 1")

    @property
    def _growth(self) -> float:
        """Ratio b / a - 1."""
        return float(self.sigma_max ** (1 / self.rho) / self.sigma_min ** (1 / self.rho) - 1.0)

    @property
    def _scale(self) -> float:
        """Factor of the shifted power law, for which it ends at sigma_max."""
        return self.sigma_min * (self.sigma_max / (self.sigma_max - self.sigma_min))

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1 and the shifted power law, without cancellation near t = 0."""
        t = as_time(t)
        return torch.ones_like(t), torch.expm1(self.rho * torch.log1p(t * self._growth)) * self._scale

    def time(self, noise_level: Tensor) -> Tensor:
        """Return the inverse of sigma in closed form."""
        log_growth = torch.log1p(as_time(noise_level).clamp(0.0, self.sigma_max) / self._scale) / self.rho
        return (torch.expm1(log_growth) / self._growth).clamp(0.0, 1.0)
