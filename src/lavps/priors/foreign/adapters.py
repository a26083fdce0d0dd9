r"""Denoisers that live in another library's objects rather than in its files.

- :class:`AzulaPrior`: a denoiser of azula, under any of its schedules. Two schedules are related by the noise
  level :math:`\sigma / \alpha`, as in :class:`~lavps.priors.Rescheduled`; azula's has no closed inverse here
  and is found by bisection, which its contract (a decreasing signal-to-noise ratio) allows.
- :func:`gaussian_denoiser`: a denoiser :math:`D(u, \sigma)` of images :math:`u = x_0 + \sigma \varepsilon`,
  the contract of deepinv and of plug-and-play methods, with pixels in [0, 1] by default.

A plain network goes into :class:`~lavps.priors.NetworkPrior` with what it predicts.
"""

from __future__ import annotations

__all__ = ["AzulaPrior", "gaussian_denoiser"]

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...schedule import VE, Schedule, VPLinear
from ...transitions import per_sample
from ..networks import NetworkPrior

_BISECTIONS = 60


class AzulaPrior:
    """A denoiser of azula as a prior.

    Args:
        denoiser: an ``azula.denoise.Denoiser``; put in eval mode.
        schedule: ours, under which the samplers will ask it; azula's own noise begins above 0 and ends below
            infinity, and levels beyond are read at its ends.
        arguments: passed to every call, a class say.
    """

    def __init__(
        self,
        denoiser: Callable[..., Any],
        schedule: Schedule | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if not hasattr(denoiser, "schedule"):
            raise TypeError(f"{type(denoiser).__name__} has no schedule: it is no denoiser of azula")
        self.denoiser = denoiser.eval() if isinstance(denoiser, nn.Module) else denoiser
        self.schedule: Schedule = VPLinear() if schedule is None else schedule
        self.arguments = dict(arguments or {})

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """The mean of azula's posterior, at its own time and scale."""
        time = self._time(self.schedule.noise_level(t))
        alpha, sigma = self.denoiser.schedule(time)
        scale = torch.hypot(alpha, sigma) / torch.hypot(self.schedule.alpha(t), self.schedule.sigma(t))
        scaled = per_sample(scale, x_t) * x_t
        mean: Tensor = self.denoiser(scaled, time.to(x_t.device).expand(len(x_t)), **self.arguments).mean
        return mean.to(x_t.dtype)

    def _time(self, noise_level: Tensor) -> Tensor:
        """The time in [0, 1] at which azula's sigma / alpha is this."""
        low, high = torch.zeros_like(noise_level), torch.ones_like(noise_level)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            alpha, sigma = self.denoiser.schedule(middle)
            below = sigma < noise_level * alpha
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return high


def gaussian_denoiser(
    denoiser: Callable[[Tensor, Tensor], Tensor],
    sigma_max: float = 80.0,
    low: float = 0.0,
    high: float = 1.0,
) -> NetworkPrior:
    """A denoiser of images in plain Gaussian noise as a prior.

    Args:
        denoiser: maps images u (B, C, *spatial) with pixels in [low, high], and standard deviations of their
            noise (B,), to clean images.
        sigma_max: the largest standard deviation it is good for, in units of its own pixels.
        low: darkest pixel.
        high: brightest pixel.
    """
    middle, half = (low + high) / 2, (high - low) / 2
    if isinstance(denoiser, nn.Module):
        denoiser.eval()

    def network(x: Tensor, level: Tensor) -> Tensor:
        return (denoiser(middle + half * x, half * level) - middle) / half

    schedule = VE(min(0.002, sigma_max / half / 10), sigma_max / half)
    return NetworkPrior(network, schedule, "x0", "noise_level")
