r"""The Gaussian kernels of a diffusion, as pure functions.

With :math:`\alpha_{t|s} = \alpha_t / \alpha_s` and
:math:`\sigma^2_{t|s} = \sigma_t^2 - \alpha_{t|s}^2 \sigma_s^2` for :math:`s < t` (the paper's Eq. 1):

.. math::
    q(x_t | x_s) &= N(\alpha_{t|s} x_s, \sigma^2_{t|s}) \\
    q(x_t | x_s, x_u) &= N\Big(
        \alpha_{t|s} \tfrac{\sigma^2_{u|t}}{\sigma^2_{u|s}} x_s
        + \alpha_{u|t} \tfrac{\sigma^2_{t|s}}{\sigma^2_{u|s}} x_u,\;
        \tfrac{\sigma^2_{u|t} \sigma^2_{t|s}}{\sigma^2_{u|s}}\Big), \quad s < t < u.

With s = 0 the second is the paper's bridge :math:`q_{s|0,t}`. This form never divides by
:math:`\alpha_{u|t}`, which is 0 at the end of the flow schedule; the paper's own form does.

Times are float64 tensors of shape () or (B,); images are (B, C, \*spatial) of any rank.
"""

from __future__ import annotations

__all__ = ["IsotropicGaussian", "bridge", "ddim_step", "forward", "forward_variance", "per_sample"]

from typing import NamedTuple

import torch
from torch import Tensor

from .schedule import Schedule, as_time


class IsotropicGaussian(NamedTuple):
    """N(mean, std^2 I): mean (B, C, *spatial), std broadcastable to it (one number per sample)."""

    mean: Tensor
    std: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """Mean + std * noise."""
        return self.mean + self.std * noise


def per_sample(coefficient: Tensor, like: Tensor) -> Tensor:
    """A coefficient of shape () or (B,) cast to ``like`` and shaped to broadcast over its rows."""
    if coefficient.ndim == 0:
        # A 0-d CPU scalar meets tensors of every device without a copy.
        return coefficient.to(like.real.dtype if like.is_complex() else like.dtype)
    return coefficient.to(like).reshape(-1, *[1] * (like.ndim - 1))


def forward_variance(schedule: Schedule, s: Tensor, t: Tensor) -> Tensor:
    """sigma_{t|s}^2 for s <= t, in float64; exactly 0 where s = t and sigma_t^2 where s = 0."""
    alpha_ts = schedule.alpha(t) / schedule.alpha(s)
    variance = schedule.sigma(t).square() - alpha_ts.square() * schedule.sigma(s).square()
    return torch.where(as_time(s) < as_time(t), variance.clamp(min=0.0), torch.zeros_like(variance))


def forward(schedule: Schedule, x_s: Tensor, s: Tensor, t: Tensor) -> IsotropicGaussian:
    """q(x_t | x_s), s < t."""
    alpha_ts = schedule.alpha(t) / schedule.alpha(s)
    std = forward_variance(schedule, s, t).sqrt()
    return IsotropicGaussian(per_sample(alpha_ts, x_s) * x_s, per_sample(std, x_s))


def bridge(
    schedule: Schedule, x_s: Tensor, x_u: Tensor, s: Tensor, t: Tensor, u: Tensor
) -> IsotropicGaussian:
    """q(x_t | x_s, x_u), s <= t < u: where the path is at t, given where it was and where it will be."""
    variance_ts = forward_variance(schedule, s, t)
    variance_ut = forward_variance(schedule, t, u)
    variance_us = forward_variance(schedule, s, u)
    early, late = variance_ut / variance_us, variance_ts / variance_us
    weight_s = schedule.alpha(t) / schedule.alpha(s) * early
    weight_u = schedule.alpha(u) / schedule.alpha(t) * late
    mean = per_sample(weight_s, x_s) * x_s + per_sample(weight_u, x_u) * x_u
    return IsotropicGaussian(mean, per_sample((variance_ts * early).sqrt(), x_s))


def ddim_step(
    schedule: Schedule, x_0: Tensor, x_t: Tensor, s: Tensor, t: Tensor, eta: float
) -> IsotropicGaussian:
    r"""From t down to s given an estimate of x_0 (Song et al., 2021, Eq. 12).

    .. math:: N(\alpha_s x_0 + \sqrt{\sigma_s^2 - \eta^2 v}\, (x_t - \alpha_t x_0) / \sigma_t,\; \eta^2 v)

    with v the variance of the bridge: eta = 1 is the bridge itself (ancestral), eta = 0 deterministic.
    """
    sigma_s, sigma_t = schedule.sigma(s), schedule.sigma(t)
    variance = sigma_s.square() * forward_variance(schedule, s, t) / sigma_t.square() * eta**2
    direction = (sigma_s.square() - variance).clamp(min=0.0).sqrt() / sigma_t
    weight_0 = schedule.alpha(s) - direction * schedule.alpha(t)
    mean = per_sample(weight_0, x_0) * x_0 + per_sample(direction, x_t) * x_t
    return IsotropicGaussian(mean, per_sample(variance.sqrt(), x_t))
