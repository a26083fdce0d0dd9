r"""Noise schedules :math:`(\alpha_t, \sigma_t)` and grids of time.

Time is continuous, :math:`t \in [0, 1]`, and a noisy image is

.. math:: x_t = \alpha_t x_0 + \sigma_t \varepsilon, \qquad \varepsilon \sim N(0, I),

with :math:`\alpha_0 = 1`, :math:`\sigma_0 = 0` and :math:`\alpha_t / \sigma_t` decreasing (the paper's
Eq. 1). Every coefficient is computed in float64 on the CPU and cast only where it meets an image:
half precision destroys the small noise levels, and some devices have no float64.

A network trained on a discrete index (DDPM) is an adapter on top of a schedule, see
:mod:`lavps.priors`; the index never enters the samplers.

References:
    - Ho et al., Denoising Diffusion Probabilistic Models, 2020 (:class:`VPLinear`).
    - Nichol and Dhariwal, Improved DDPM, 2021 (:class:`Cosine`).
    - Lipman et al., Flow Matching for Generative Modeling, 2023 (:class:`Flow`).
    - Karras et al., Elucidating the Design Space of Diffusion Models, 2022 (:class:`VE`).
"""

from __future__ import annotations

__all__ = ["VE", "Cosine", "DiscreteVP", "Flow", "Schedule", "VPLinear", "as_time", "time_grid"]

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

_MEMORY_LIMIT = 4096


def as_time(t: float | Tensor) -> Tensor:
    """Times as a float64 CPU tensor of shape () or (B,)."""
    return torch.as_tensor(t, dtype=torch.float64, device="cpu")


def time_grid(num_steps: int, power: float = 1.0) -> Tensor:
    """The grid 0 = t_0 < ... < t_K = 1 with K = ``num_steps`` intervals, t_k = (k / K)^power, shape (K + 1,).

    power = 1 is the paper's uniform grid; above 1 the steps crowd towards t = 0.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    if power <= 0:
        raise ValueError(f"power must be positive, got {power}")
    return (torch.arange(num_steps + 1, dtype=torch.float64) / num_steps) ** power


class Schedule(ABC):
    """The pair (alpha_t, sigma_t). Subclasses give three closed forms: alpha, sigma, and the time."""

    def alpha(self, t: Tensor) -> Tensor:
        """Signal coefficient alpha_t, float64, of t's shape."""
        return self._coefficients(t)[0]

    def sigma(self, t: Tensor) -> Tensor:
        """Noise coefficient sigma_t, float64, of t's shape."""
        return self._coefficients(t)[1]

    @abstractmethod
    def _alpha(self, t: Tensor) -> Tensor:
        """The closed form of alpha_t for float64 t."""

    @abstractmethod
    def _sigma(self, t: Tensor) -> Tensor:
        """The closed form of sigma_t for float64 t."""

    def _coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        # A sampler asks for the same few times again and again: one number is remembered, arrays are not.
        t = as_time(t)
        if t.ndim > 0:
            return self._alpha(t), self._sigma(t)
        memory: dict[float, tuple[Tensor, Tensor]] = self.__dict__.setdefault("_memory", {})
        key = t.item()
        if key not in memory:
            if len(memory) >= _MEMORY_LIMIT:
                memory.clear()
            memory[key] = self._alpha(t), self._sigma(t)
        return memory[key]

    @abstractmethod
    def time(self, noise_level: Tensor) -> Tensor:
        """The time at which sigma_t / alpha_t equals ``noise_level``, clamped to [0, 1]."""

    def noise_level(self, t: Tensor) -> Tensor:
        """sigma_t / alpha_t: the standard deviation of the noise beside an image of unit scale."""
        return self.sigma(t) / self.alpha(t)

    def log_snr(self, t: Tensor) -> Tensor:
        """log(alpha_t^2 / sigma_t^2), strictly decreasing in t (+inf at t = 0)."""
        return 2.0 * (self.alpha(t).log() - self.sigma(t).log())

    def __eq__(self, other: object) -> bool:
        """Schedules are values: equal when of one class with equal numbers."""
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


class DiscreteVP(Schedule):
    r"""Variance-preserving schedule from the betas of a discrete chain.

    Node i = 1..n of the chain sits at t = i / n with alpha^2 = prod_{j <= i} (1 - beta_j); between nodes
    log alpha^2 is linear, so the schedule meets the chain exactly where a network was trained.

    Args:
        betas: the n variances of the chain, each in (0, 1).
    """

    def __init__(self, betas: Sequence[float] | Tensor) -> None:
        betas = torch.as_tensor(betas, dtype=torch.float64).clone()
        if betas.ndim != 1 or len(betas) == 0 or not bool(((betas > 0) & (betas < 1)).all()):
            raise ValueError("betas must be a non-empty list of numbers in (0, 1)")
        self._betas = betas
        self._log_alpha_bar = torch.cat([torch.zeros(1, dtype=torch.float64), torch.log1p(-betas).cumsum(0)])

    @property
    def num_train_steps(self) -> int:
        """Length n of the discrete chain."""
        return len(self._betas)

    def _log_alpha_bar_at(self, t: Tensor) -> Tensor:
        position = t.clamp(0.0, 1.0) * self.num_train_steps
        left = position.floor().clamp(max=self.num_train_steps - 1).long()
        return torch.lerp(self._log_alpha_bar[left], self._log_alpha_bar[left + 1], position - left)

    def _alpha(self, t: Tensor) -> Tensor:
        """alpha_t = sqrt(alpha_bar_t)."""
        return (0.5 * self._log_alpha_bar_at(t)).exp()

    def _sigma(self, t: Tensor) -> Tensor:
        """sigma_t = sqrt(1 - alpha_bar_t), without cancellation near t = 0."""
        return (-torch.expm1(self._log_alpha_bar_at(t))).sqrt()

    def time(self, noise_level: Tensor) -> Tensor:
        """Inverse by bisection among the nodes and linear interpolation of log alpha_bar."""
        target = -torch.log1p(as_time(noise_level).square())
        nodes = -self._log_alpha_bar
        right = torch.searchsorted(nodes, -target).clamp(1, self.num_train_steps)
        fraction = (-target - nodes[right - 1]) / (nodes[right] - nodes[right - 1])
        return ((right - 1 + fraction) / self.num_train_steps).clamp(0.0, 1.0)

    def __repr__(self) -> str:
        digest = hashlib.sha256(self._betas.numpy().tobytes()).hexdigest()[:12]
        return f"DiscreteVP({self.num_train_steps} betas, sha256={digest})"


class VPLinear(DiscreteVP):
    """DDPM's schedule: ``num_train_steps`` betas growing linearly from beta_min to beta_max."""

    def __init__(self, beta_min: float = 1e-4, beta_max: float = 0.02, num_train_steps: int = 1000) -> None:
        super().__init__(torch.linspace(beta_min, beta_max, num_train_steps, dtype=torch.float64))
        self._range = (beta_min, beta_max)

    def __repr__(self) -> str:
        low, high = self._range
        return f"VPLinear(beta_min={low}, beta_max={high}, num_train_steps={self.num_train_steps})"


class Cosine(Schedule):
    r"""Cosine schedule :math:`\alpha_t = \cos(\pi(t + o) / 2(1 + o)) / \cos(\pi o / 2(1 + o))`.

    Args:
        offset: Nichol and Dhariwal's o; 0 is the plain cosine. alpha is exactly 0 at t = 1.
    """

    def __init__(self, offset: float = 0.008) -> None:
        if offset < 0:
            raise ValueError(f"offset must be non-negative, got {offset}")
        self._offset = offset
        self._alpha_scale = math.cos(0.5 * math.pi * offset / (1 + offset))

    def _alpha(self, t: Tensor) -> Tensor:
        """alpha_t; written as a sine of the time left, which is exactly 0 at t = 1."""
        left = (1.0 - t) / (1.0 + self._offset)
        return ((0.5 * math.pi * left).sin() / self._alpha_scale).clamp(max=1.0)

    def _sigma(self, t: Tensor) -> Tensor:
        """sigma_t = sqrt(1 - alpha_t^2), by the product form 1 - a^2 = (1 - a)(1 + a)."""
        half = 0.25 * math.pi * t / (1.0 + self._offset)
        start = 0.5 * math.pi * self._offset / (1.0 + self._offset)
        # 1 - cos(start + 2 half) / cos(start) = 2 sin(half) sin(start + half) / cos(start)
        one_minus = 2.0 * half.sin() * (start + half).sin() / self._alpha_scale
        return (one_minus * (1.0 + self._alpha(t))).clamp(0.0, 1.0).sqrt()

    def time(self, noise_level: Tensor) -> Tensor:
        """Inverse through the angle of the cosine, by arctan2: arccos loses half the digits at t = 0."""
        level = as_time(noise_level)
        start = 0.5 * math.pi * self._offset / (1.0 + self._offset)
        cosine = torch.rsqrt(1.0 + level.square()) * self._alpha_scale
        sine = torch.hypot(level.atan().sin() * self._alpha_scale, torch.full_like(level, math.sin(start)))
        left = torch.atan2(cosine, sine) * (1.0 + self._offset) / (0.5 * math.pi)
        return (1.0 - left).clamp(0.0, 1.0)

    def __repr__(self) -> str:
        return f"Cosine(offset={self._offset})"


class Flow(Schedule):
    """The linear path of flow matching: alpha_t = 1 - t, sigma_t = t (the paper's "popular choice")."""

    def _alpha(self, t: Tensor) -> Tensor:
        """1 - t."""
        return 1.0 - t

    def _sigma(self, t: Tensor) -> Tensor:
        """The noise is t itself."""
        return t.clone()

    def time(self, noise_level: Tensor) -> Tensor:
        """r / (1 + r), written to survive r = inf."""
        return 1.0 - 1.0 / (1.0 + as_time(noise_level))

    def __repr__(self) -> str:
        return "Flow()"


class VE(Schedule):
    r"""Variance-exploding schedule with EDM's spacing: alpha = 1, sigma from 0 to ``sigma_max``.

    EDM's :math:`(a + t (b - a))^\rho` with :math:`a = \sigma_{min}^{1/\rho}, b = \sigma_{max}^{1/\rho}`
    starts at sigma_min; shifted and rescaled it starts at 0, as a schedule must.
    """

    def __init__(self, sigma_min: float = 0.002, sigma_max: float = 80.0, rho: float = 7.0) -> None:
        if not 0 < sigma_min < sigma_max or rho < 1:
            raise ValueError("VE needs 0 < sigma_min < sigma_max and rho >= 1")
        self._numbers = (sigma_min, sigma_max, rho)
        self._a: float = sigma_min ** (1 / rho)
        self._b: float = sigma_max ** (1 / rho)
        self._scale = sigma_max / (sigma_max - sigma_min)

    def _alpha(self, t: Tensor) -> Tensor:
        """1 at every time."""
        return torch.ones_like(t)

    def _sigma(self, t: Tensor) -> Tensor:
        """The shifted power law of the class docstring, as expm1 and log1p: no cancellation near t = 0."""
        sigma_min, _, rho = self._numbers
        log_growth = torch.log1p(t * (self._b / self._a - 1.0))
        return torch.expm1(rho * log_growth) * (sigma_min * self._scale)

    def time(self, noise_level: Tensor) -> Tensor:
        """Closed-form inverse of sigma."""
        sigma_min, sigma_max, rho = self._numbers
        level = as_time(noise_level).clamp(0.0, sigma_max)
        log_growth = torch.log1p(level / (self._scale * sigma_min)) / rho
        return (torch.expm1(log_growth) / (self._b / self._a - 1.0)).clamp(0.0, 1.0)

    def __repr__(self) -> str:
        sigma_min, sigma_max, rho = self._numbers
        return f"VE(sigma_min={sigma_min}, sigma_max={sigma_max}, rho={rho})"
