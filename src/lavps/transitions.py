r"""Gaussian transition kernels of a diffusion.

With :math:`\alpha_{t|s} = \alpha_t / \alpha_s` and
:math:`\sigma^2_{t|s} = \sigma_t^2 - \alpha_{t|s}^2 \sigma_s^2` for :math:`s < t` (the paper's Eq. 1):

.. math::
    q(x_t | x_s) &= N(\alpha_{t|s} x_s, \sigma^2_{t|s}) \\
    q(x_t | x_s, x_u) &= N\Big(
        \alpha_{t|s} \tfrac{\sigma^2_{u|t}}{\sigma^2_{u|s}} x_s
        + \alpha_{u|t} \tfrac{\sigma^2_{t|s}}{\sigma^2_{u|s}} x_u,\;
        \tfrac{\sigma^2_{u|t} \sigma^2_{t|s}}{\sigma^2_{u|s}}\Big), \quad s < t < u.

With s = 0 the second is the paper's bridge :math:`q_{s|0,t}`. Unlike the paper's form, this one does not
divide by :math:`\alpha_{u|t}`, which is 0 at the end of the flow schedule.

Times are float64 tensors of shape () or (B,); images are (B, C, \*spatial).
"""

from __future__ import annotations

__all__ = ["IsotropicGaussian", "bridge", "ddim_step", "forward", "forward_variance", "per_sample"]

from typing import NamedTuple

import torch
from torch import Tensor

from .schedule import Schedule, as_time

_Marginal = tuple[Tensor, Tensor, Tensor]  # t, alpha_t, sigma_t


class IsotropicGaussian(NamedTuple):
    """Gaussian N(mean, std^2 I) with mean (B, C, *spatial) and one std per sample, broadcastable to it."""

    mean: Tensor
    std: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """Return mean + std * noise."""
        return self.mean + self.std * noise


def per_sample(coefficient: Tensor, like: Tensor) -> Tensor:
    """Cast a coefficient of shape () or (B,) to ``like``, with a shape that broadcasts over its rows."""
    if coefficient.ndim == 0:
        # A 0-d CPU scalar combines with tensors on every device without a copy.
        return coefficient.to(like.real.dtype if like.is_complex() else like.dtype)
    return coefficient.to(like).reshape(-1, *[1] * (like.ndim - 1))


def forward_variance(schedule: Schedule, s: Tensor, t: Tensor) -> Tensor:
    """Return sigma_{t|s}^2 for s <= t in float64, exactly 0 for s = t and sigma_t^2 for s = 0."""
    return _forward(_at(schedule, s), _at(schedule, t))[1]


def forward(schedule: Schedule, x_s: Tensor, s: Tensor, t: Tensor) -> IsotropicGaussian:
    """Return q(x_t | x_s) for s < t."""
    alpha_ts, variance = _forward(_at(schedule, s), _at(schedule, t))
    return IsotropicGaussian(per_sample(alpha_ts, x_s) * x_s, per_sample(variance.sqrt(), x_s))


def bridge(
    schedule: Schedule, x_s: Tensor, x_u: Tensor, s: Tensor, t: Tensor, u: Tensor
) -> IsotropicGaussian:
    """Return q(x_t | x_s, x_u) for s <= t < u."""
    at_s, at_t, at_u = (_at(schedule, time) for time in (s, t, u))
    alpha_ts, variance_ts = _forward(at_s, at_t)
    alpha_ut, variance_ut = _forward(at_t, at_u)
    _, variance_us = _forward(at_s, at_u)
    early, late = variance_ut / variance_us, variance_ts / variance_us
    mean = per_sample(alpha_ts * early, x_s) * x_s + per_sample(alpha_ut * late, x_u) * x_u
    return IsotropicGaussian(mean, per_sample((variance_ts * early).sqrt(), x_s))


def ddim_step(
    schedule: Schedule, x_0: Tensor, x_t: Tensor, s: Tensor, t: Tensor, eta: float
) -> IsotropicGaussian:
    r"""Return the DDIM step from t to s, given an estimate of x_0 (Song et al., 2021, Eq. 12).

    .. math:: N(\alpha_s x_0 + \sqrt{\sigma_s^2 - \eta^2 v}\, (x_t - \alpha_t x_0) / \sigma_t,\; \eta^2 v)

    with v the variance of the bridge; eta = 1 is the bridge (ancestral sampling), eta = 0 is deterministic.
    """
    at_s, at_t = _at(schedule, s), _at(schedule, t)
    (_, alpha_s, sigma_s), (_, alpha_t, sigma_t) = at_s, at_t
    variance = sigma_s.square() * _forward(at_s, at_t)[1] / sigma_t.square() * eta**2
    direction = (sigma_s.square() - variance).clamp(min=0.0).sqrt() / sigma_t
    mean = per_sample(alpha_s - direction * alpha_t, x_0) * x_0 + per_sample(direction, x_t) * x_t
    return IsotropicGaussian(mean, per_sample(variance.sqrt(), x_t))


def _at(schedule: Schedule, t: Tensor) -> _Marginal:
    return as_time(t), *schedule.coefficients(t)


def _forward(at_s: _Marginal, at_t: _Marginal) -> tuple[Tensor, Tensor]:
    """Return alpha_{t|s} and sigma_{t|s}^2."""
    (s, alpha_s, sigma_s), (t, alpha_t, sigma_t) = at_s, at_t
    alpha_ts = alpha_t / alpha_s
    variance = sigma_t.square() - alpha_ts.square() * sigma_s.square()
    return alpha_ts, torch.where(s < t, variance.clamp(min=0.0), torch.zeros_like(variance))
