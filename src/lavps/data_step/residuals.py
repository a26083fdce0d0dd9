r"""Residual of a prediction, :math:`r = (x_t - \alpha_t x_0) / \sigma_t`: noise, if the prediction is right.

Errors of a prediction are smooth and noise is not, so they show at low frequencies, where the mean power of
standard normal noise is 1. The operator and its noise do not enter.
"""

from __future__ import annotations

__all__ = ["residual_power"]

import torch
from torch import Tensor

from ..schedule import Schedule
from ..transitions import per_sample

_SHORTEST = 16  # pixels: shorter waves do not count


def residual_power(x_t: Tensor, x_0: Tensor, schedule: Schedule, t: Tensor) -> Tensor:
    """Return the power of the residual in waves of at least 16 pixels, relative to that of noise, (B,).

    Args:
        x_t: Noisy images (B, C, *spatial).
        x_0: Predictions (B, C, *spatial).
        schedule: Noise schedule of the diffusion.
        t: Time, shape () or (B,).
    """
    alpha, sigma = (per_sample(part, x_t) for part in schedule.coefficients(t))
    axes = tuple(range(2, x_t.ndim))
    power = torch.fft.fftn(((x_t - alpha * x_0) / sigma).float(), dim=axes, norm="ortho").abs().square()
    low = torch.ones((), dtype=torch.bool, device=x_t.device)
    for size in x_t.shape[2:]:
        low = low.unsqueeze(-1) & (torch.fft.fftfreq(size, device=x_t.device).abs() * _SHORTEST <= 1.0)
    found: Tensor = power[..., low].flatten(1).mean(1)
    return found
