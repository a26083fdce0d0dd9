r"""Adapters between priors and the denoisers of deepinv and azula.

- deepinv: ``denoiser(x, sigma)`` removes noise of standard deviation sigma from :math:`u + \sigma n`,
  usually with pixels in [0, 1];
- azula: ``denoiser(x_t, t).mean``, with ``denoiser.schedule(t)`` returning :math:`(\alpha_t, \sigma_t)`.

Noisy images of equal noise level :math:`\sigma / \alpha` differ only in scale. An adapter finds the time of
equal noise level and rescales the image by the ratio of the two :math:`\sqrt{\alpha^2 + \sigma^2}`. Neither
library is imported.
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
from .adapters import NetworkPrior
from .protocol import Prior, RescaledPrior

_BISECTIONS = 60  # of [0, 1]: below the resolution of float64


def from_deepinv(
    denoiser: Callable[[Tensor, Tensor], Tensor],
    low: float = 0.0,
    high: float = 1.0,
    schedule: VE | None = None,
) -> Prior:
    """Return a prior from a deepinv denoiser ``denoiser(x, sigma)``.

    Args:
        denoiser: Module (put in eval mode) or function of noisy images and noise levels, shape (B,).
        low: Pixel value of black in the denoiser's images.
        high: Pixel value of white in the denoiser's images.
        schedule: Noise levels of images in [-1, 1]. The default maximum, 80, suits generative models;
            restoration denoisers are trained on much lower noise levels.
    """
    return RescaledPrior(NetworkPrior(denoiser, schedule or VE(), "x0", "noise_level"), low, high)


class DeepinvDenoiser(nn.Module):
    """A prior as a deepinv denoiser ``denoiser(x, sigma)``.

    Args:
        prior: Prior to wrap.
        low: Pixel value of black in the input images.
        high: Pixel value of white in the input images.
    """

    def __init__(self, prior: Prior, low: float = 0.0, high: float = 1.0) -> None:
        super().__init__()
        self.prior = prior
        self._middle, self._half = (low + high) / 2, (high - low) / 2

    def forward(self, x: Tensor, sigma: float | Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return E[u | u + sigma n = x], shape (B, C, *spatial).

        Args:
            x: Noisy images, shape (B, C, *spatial).
            sigma: Standard deviation of the noise in units of x, one value or one per row.
            args: Ignored, as are ``kwargs``: arguments that samplers pass to other denoisers.
            kwargs: Ignored.
        """
        level = as_time(sigma).flatten() / self._half
        level = level[0] if len(level) == 1 else level
        schedule = self.prior.schedule
        t = schedule.time(level)
        norm = torch.hypot(torch.ones_like(level), level)
        scale = torch.hypot(*schedule.coefficients(t)) / norm
        x_t = per_sample(scale, x) * ((x - self._middle) / self._half)
        return self._middle + self._half * self.prior.denoise(x_t, t)


class AzulaPrior:
    """An azula denoiser as a prior.

    Args:
        denoiser: Module with ``schedule(t)`` and ``denoiser(x_t, t).mean``; put in eval mode.
        schedule: Schedule of the prior, which may differ from the denoiser's; default VP-linear. Noise
            levels outside the denoiser's range are clamped to it.
        arguments: Keyword arguments of every call, such as a class label.
    """

    def __init__(
        self, denoiser: Any, schedule: Schedule | None = None, arguments: Mapping[str, Any] | None = None
    ) -> None:
        if not hasattr(denoiser, "schedule"):
            raise TypeError(f"{type(denoiser).__name__} has no schedule: it is not an azula denoiser")
        self.arguments = dict(arguments or {})
        self.denoiser: Any = denoiser.eval() if isinstance(denoiser, nn.Module) else denoiser
        self.schedule: Schedule = VPLinear() if schedule is None else schedule

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Return the posterior mean at the time of equal noise level."""
        # azula computes its coefficients in the precision of its time: the scale must match them.
        tau = self._time(self.schedule.noise_level(t)).to(x_t)
        alpha, sigma = (as_time(part) for part in self.denoiser.schedule(tau))
        scale = torch.hypot(alpha, sigma) / torch.hypot(*self.schedule.coefficients(t))
        mean: Tensor = self.denoiser(per_sample(scale, x_t) * x_t, tau, **self.arguments).mean
        return mean

    def _time(self, level: Tensor) -> Tensor:
        low, high = torch.zeros_like(level), torch.ones_like(level)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            alpha, sigma = self.denoiser.schedule(middle)
            later = (sigma < level * alpha) | level.isinf()  # 0 * inf is NaN
            low, high = torch.where(later, middle, low), torch.where(later, high, middle)
        return (low + high) / 2


@dataclass(frozen=True)
class _Estimate:
    mean: Tensor


class AzulaDenoiser(nn.Module):
    """A prior as an azula denoiser ``denoiser(x_t, t).mean``."""

    def __init__(self, prior: Prior) -> None:
        super().__init__()
        self.prior = prior

    def schedule(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return (alpha_t, sigma_t) in the dtype and on the device of t."""
        alpha, sigma = self.prior.schedule.coefficients(t)
        return alpha.to(t), sigma.to(t)

    def forward(self, x_t: Tensor, t: Tensor, **kwargs: Any) -> _Estimate:
        """Return E[x_0 | x_t] as ``.mean`` for t of shape () or (B,); other arguments are ignored."""
        return _Estimate(self.prior.denoise(x_t, as_time(t)))
