r"""A prior is its denoiser: :math:`D(x_t, t) \approx E[x_0 | x_t]` under a schedule.

Samplers see nothing else. Networks that predict something else (the noise, the velocity, the score) are
adapted in :mod:`lavps.priors.networks`; a prior made for one schedule serves another through
:class:`Rescheduled`, one made for another pixel range through :class:`Ranged`.
"""

from __future__ import annotations

__all__ = ["Prior", "Ranged", "Rescheduled"]

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..schedule import Schedule
from ..transitions import per_sample


@runtime_checkable
class Prior(Protocol):
    """Anything with a schedule and a denoiser. Images live in [-1, 1], the one pixel range."""

    @property
    def schedule(self) -> Schedule:
        """The schedule under which :meth:`denoise` reads its time."""
        ...

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """D(x_t, t) ~ E[x_0 | x_t].

        Args:
            x_t: noisy images (B, C, *spatial).
            t: float64 times on the CPU, shape () or (B,).

        Returns:
            Denoised images (B, C, *spatial), differentiable in x_t, row by row.
        """
        ...


@dataclass(frozen=True)
class Rescheduled:
    r"""A prior under another schedule, with the same denoiser.

    Two noisy images with one noise level :math:`\sigma / \alpha` differ by a scale only, so with primes for
    the prior's own schedule, :math:`D(x, t) = D'(x \, c'_{t'} / c_t, t')` where
    :math:`\sigma'_{t'} / \alpha'_{t'} = \sigma_t / \alpha_t` and :math:`c = \sqrt{\alpha^2 + \sigma^2}`.
    The quotient of the c's is that of the alphas, and stays finite where alpha is 0. Levels beyond the
    prior's own last one are read at its last one.
    """

    prior: Prior
    schedule: Schedule

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """D'(x_t c' / c, t')."""
        own, new = self.prior.schedule, self.schedule
        time = own.time(new.noise_level(t))
        scale = torch.hypot(own.alpha(time), own.sigma(time)) / torch.hypot(new.alpha(t), new.sigma(t))
        return self.prior.denoise(per_sample(scale, x_t) * x_t, time)


@dataclass(frozen=True)
class Ranged:
    r"""A prior over pixels in [low, high] as a prior over pixels in [-1, 1].

    With :math:`u = m + h x` for :math:`m = (low + high) / 2`, :math:`h = (high - low) / 2`, an image x at
    noise level r is an image u at noise level h r: the time changes with the range, not only the pixels.
    """

    prior: Prior
    low: float
    high: float

    @property
    def schedule(self) -> Schedule:
        """The schedule of the prior within."""
        return self.prior.schedule

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """(C, *spatial) of its images, where the prior within says it."""
        return getattr(self.prior, "image_shape", None)

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Map to the prior's range and noise level, denoise, map back."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        time = self.schedule.time(half * self.schedule.noise_level(t))
        norm = torch.hypot(self.schedule.alpha(t), half * self.schedule.sigma(t))
        scale = half * torch.hypot(self.schedule.alpha(time), self.schedule.sigma(time)) / norm
        shift = middle * self.schedule.alpha(time)
        u_t = per_sample(scale, x_t) * x_t + per_sample(shift, x_t)
        return (self.prior.denoise(u_t, time) - middle) / half
