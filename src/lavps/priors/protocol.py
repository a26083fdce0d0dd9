r"""The prior protocol: a denoiser :math:`D(x_t, t) \approx E[x_0 | x_t]` under a schedule.

Networks that predict the noise, the velocity or the score are adapted in :mod:`lavps.priors.adapters`.
:class:`Rescheduled` changes the schedule of a prior, :class:`RescaledPrior` its pixel range.
"""

from __future__ import annotations

__all__ = ["Prior", "RescaledPrior", "Rescheduled", "WrappedPrior", "folder_of"]

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..schedule import Schedule
from ..transitions import per_sample


@runtime_checkable
class Prior(Protocol):
    """A schedule and a denoiser of images with pixels in [-1, 1]."""

    @property
    def schedule(self) -> Schedule:
        """Schedule of the times that :meth:`denoise` takes."""

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Return D(x_t, t) ≈ E[x_0 | x_t].

        Args:
            x_t: Noisy images x_t, shape (B, C, *spatial).
            t: Times t, float64 on the CPU, shape () or (B,).

        Returns:
            Denoised images, shape (B, C, *spatial). Each row is differentiable in its row of x_t only.
        """


class WrappedPrior:
    """Base of priors that have the schedule of another one, their attribute ``prior``."""

    prior: Prior

    @property
    def schedule(self) -> Schedule:
        """Schedule of the wrapped prior."""
        return self.prior.schedule


def folder_of(prior: object) -> Path | None:
    """Return the model folder of a prior, or of the one it wraps; None if it was not loaded from one."""
    found = getattr(prior, "folder", None)
    inner = getattr(prior, "prior", None)
    return found if found is not None or inner is None else folder_of(inner)


@dataclass(frozen=True)
class Rescheduled:
    r"""A prior under another schedule, with the same denoiser.

    Noisy images of equal noise level :math:`\sigma / \alpha` differ only in scale. With primes for the
    original schedule, :math:`D(x, t) = D'(x \, c'_{t'} / c_t, t')`, where
    :math:`\sigma'_{t'} / \alpha'_{t'} = \sigma_t / \alpha_t` and :math:`c = \sqrt{\alpha^2 + \sigma^2}`.
    Noise levels above the original maximum are evaluated at that maximum.

    Example:
        >>> import torch
        >>> from lavps import EDMPrior, Rescheduled, VPLinear
        >>> prior = Rescheduled(EDMPrior(lambda x, c: 0 * x), VPLinear())
        >>> prior.denoise(torch.randn(2, 3, 8, 8), torch.tensor(0.5).double()).shape
        torch.Size([2, 3, 8, 8])
    """

    prior: Prior
    schedule: Schedule

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Return D'(x_t c' / c, t')."""
        own, new = self.prior.schedule, self.schedule
        time = own.time(new.noise_level(t))
        scale = torch.hypot(own.alpha(time), own.sigma(time)) / torch.hypot(new.alpha(t), new.sigma(t))
        return self.prior.denoise(per_sample(scale, x_t) * x_t, time)


@dataclass(frozen=True)
class RescaledPrior(WrappedPrior):
    r"""A prior for pixels in [low, high], adapted to pixels in [-1, 1].

    With :math:`u = m + h x` for :math:`m = (low + high) / 2`, :math:`h = (high - low) / 2`, an image x at
    noise level r is an image u at noise level h r: rescaling the pixels also changes the time.

    Example:
        >>> import torch
        >>> from lavps import NetworkPrior, RescaledPrior, VPLinear
        >>> prior = RescaledPrior(NetworkPrior(lambda x, c: 0 * x, VPLinear(), "x0"), 0.0, 1.0)
        >>> prior.denoise(torch.zeros(1, 1, 2, 2), torch.tensor(0.5).double()).unique()
        tensor([-1.])
    """

    prior: Prior
    low: float
    high: float

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """Image shape (C, *spatial) of the wrapped prior, or None if unknown."""
        return getattr(self.prior, "image_shape", None)

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Map to the prior's range and noise level, denoise, and map back."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        alpha, sigma = self.schedule.coefficients(t)
        time = self.schedule.time(half * (sigma / alpha))
        alpha_u, sigma_u = self.schedule.coefficients(time)
        scale = half * torch.hypot(alpha_u, sigma_u) / torch.hypot(alpha, half * sigma)
        u_t = per_sample(scale, x_t) * x_t + per_sample(middle * alpha_u, x_t)
        return (self.prior.denoise(u_t, time) - middle) / half
