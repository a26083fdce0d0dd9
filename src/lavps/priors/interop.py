r"""Denoisers of other libraries as priors, and priors as their denoisers.

- deepinv: ``denoiser(x, sigma)`` removes noise of standard deviation sigma from :math:`u + \sigma n`, with
  pixels in [0, 1] as a rule;
- azula: ``denoiser(x_t, t).mean``, with ``denoiser.schedule(t)`` giving :math:`(\alpha_t, \sigma_t)`.

All denoise the same thing: two noisy images with one noise level :math:`\sigma / \alpha` differ by a scale
only. An adapter finds the other's time of the same level and scales the image by the quotient of the two
:math:`\sqrt{\alpha^2 + \sigma^2}`; where the pixel ranges differ, the level changes with them. Neither
library is imported: their samplers ask for no more than these few attributes.
"""

from __future__ import annotations

__all__ = ["AzulaDenoiser", "AzulaPrior", "DeepinvDenoiser", "from_deepinv"]

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..schedule import VE, Schedule, VPLinear, as_time
from ..transitions import per_sample
from .base import Prior, Ranged
from .networks import NetworkPrior

_BISECTIONS = 60  # of [0, 1]: more than a float64 can tell apart


def from_deepinv(
    denoiser: Callable[[Tensor, Tensor], Tensor],
    low: float = 0.0,
    high: float = 1.0,
    schedule: VE | None = None,
) -> Prior:
    """A deepinv denoiser ``denoiser(x, sigma)`` as a prior.

    Args:
        denoiser: a module (put in eval mode) or function of noisy images and noise levels (B,).
        low: the value of black in the images it was made for.
        high: the value of white.
        schedule: noise levels of images in [-1, 1]. The default's last one, 80, is that of generative
            models; denoisers made for restoration know far less noise, and say so.
    """
    return Ranged(NetworkPrior(denoiser, schedule or VE(), "x0", "noise_level"), low, high)


class DeepinvDenoiser(nn.Module):
    """A prior as a denoiser of deepinv: ``denoiser(x, sigma)``.

    Args:
        prior: any prior.
        low: the value of black in the images it is given.
        high: the value of white.
    """

    def __init__(self, prior: Prior, low: float = 0.0, high: float = 1.0) -> None:
        super().__init__()
        self.prior = prior
        self._middle, self._half = (low + high) / 2, (high - low) / 2

    def forward(self, x: Tensor, sigma: float | Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """E[u | u + sigma n = x], of x's shape (B, C, *spatial).

        Args:
            x: noisy images (B, C, *spatial).
            sigma: standard deviation of the noise, one number or one per row, in units of x.
            args: ignored, as are ``kwargs``; samplers pass what other denoisers need.
            kwargs: ignored.
        """
        level = as_time(sigma).flatten() / self._half
        level = level[0] if len(level) == 1 else level
        schedule = self.prior.schedule
        t = schedule.time(level)
        norm = torch.hypot(torch.ones_like(level), level)
        scale = torch.hypot(schedule.alpha(t), schedule.sigma(t)) / norm
        x_t = per_sample(scale, x) * ((x - self._middle) / self._half)
        return self._middle + self._half * self.prior.denoise(x_t, t)


class AzulaPrior:
    """A denoiser of azula as a prior.

    Args:
        denoiser: a module with ``schedule(t)`` and ``denoiser(x_t, t).mean``; put in eval mode.
        schedule: the prior's schedule, default DDPM's; it need not be the denoiser's. Levels outside of
            the denoiser's own are read at its first and last.
        arguments: passed to every call, a class say.
    """

    def __init__(
        self, denoiser: Any, schedule: Schedule | None = None, arguments: Mapping[str, Any] | None = None
    ) -> None:
        if not hasattr(denoiser, "schedule"):
            raise TypeError(f"{type(denoiser).__name__} has no schedule: it is no denoiser of azula")
        self.arguments = dict(arguments or {})
        self.denoiser: Any = denoiser.eval() if isinstance(denoiser, nn.Module) else denoiser
        self.schedule: Schedule = VPLinear() if schedule is None else schedule

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """The mean of azula's posterior at the time of the same noise level."""
        # The denoiser computes its coefficients in the precision of its time: the scale must be theirs.
        tau = self._time(self.schedule.noise_level(t)).to(x_t)
        alpha, sigma = (as_time(part) for part in self.denoiser.schedule(tau))
        scale = torch.hypot(alpha, sigma) / torch.hypot(self.schedule.alpha(t), self.schedule.sigma(t))
        mean: Tensor = self.denoiser(per_sample(scale, x_t) * x_t, tau, **self.arguments).mean
        return mean

    def _time(self, level: Tensor) -> Tensor:
        low, high = torch.zeros_like(level), torch.ones_like(level)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            alpha, sigma = self.denoiser.schedule(middle)
            later = sigma < level * alpha
            later |= level.isinf()  # 0 times infinity is no number
            low, high = torch.where(later, middle, low), torch.where(later, high, middle)
        return (low + high) / 2


@dataclass(frozen=True)
class _Estimate:
    """What azula calls a posterior: its mean."""

    mean: Tensor


class AzulaDenoiser(nn.Module):
    """A prior as a denoiser of azula.

    Args:
        prior: any prior.
    """

    def __init__(self, prior: Prior) -> None:
        super().__init__()
        self.prior = prior

    def schedule(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """(alpha_t, sigma_t), in t's dtype and on its device."""
        schedule = self.prior.schedule
        return schedule.alpha(t).to(t), schedule.sigma(t).to(t)

    def forward(self, x_t: Tensor, t: Tensor, **kwargs: Any) -> _Estimate:
        """E[x_0 | x_t] as ``.mean``; t is () or (B,), further arguments are ignored."""
        return _Estimate(self.prior.denoise(x_t, as_time(t)))
