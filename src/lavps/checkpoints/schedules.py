r"""Discrete noise schedules of other libraries.

A chain of n steps has variances :math:`\beta_i`, with
:math:`\bar\alpha_i = \prod_{j \le i}(1 - \beta_j)`:

- linear: equally spaced; scaled linear: equally spaced square roots (latent diffusion);
- squared cosine: :math:`\bar\alpha(s) = \cos^2(\pi (s + 0.008) / 2.016)`, s = i / n, no beta above 0.999;
- sigmoid: :math:`\beta_{min} + (\beta_{max} - \beta_{min})\,\mathrm{sigmoid}(u)`, u from -6 to 6.

Rescaling to zero terminal SNR shifts and stretches :math:`\sqrt{\bar\alpha}` to end at 0 with an unchanged
first value. Since log SNR must be finite, the schedule ends at :math:`\bar\alpha_n = 2^{-24}` instead of 0.

References:
    - Nichol and Dhariwal, Improved DDPM, 2021 (squared cosine).
    - Lin et al., Common Diffusion Noise Schedules and Sample Steps are Flawed, 2024 (zero terminal SNR).
"""

from __future__ import annotations

__all__ = ["cosine_chain", "schedule_of"]

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..schedule import DiscreteVP, VPLinear

_LAST_ALPHA_BAR = 2.0**-24
_NAMES = ("linear", "scaled_linear", "squaredcos_cap_v2", "sigmoid")


def cosine_chain(steps: int = 1000, largest: float = 0.999) -> DiscreteVP:
    """Return the squared-cosine chain of ``steps`` steps with variances of at most ``largest``."""
    position = torch.arange(steps + 1, dtype=torch.float64) / steps
    alpha_bar = (0.5 * math.pi * (position + 0.008) / 1.008).cos().square()
    return DiscreteVP((1.0 - alpha_bar[1:] / alpha_bar[:-1]).clamp(max=largest))


def schedule_of(config: Mapping[str, Any]) -> DiscreteVP:
    """Return the schedule of a diffusers scheduler's configuration."""
    steps = int(config.get("num_train_timesteps", 1000))
    low, high = float(config.get("beta_start", 1e-4)), float(config.get("beta_end", 0.02))
    name = config.get("beta_schedule", "linear")
    if (trained := config.get("trained_betas")) is not None:
        chain = DiscreteVP(trained)
    elif name == "linear":
        chain = VPLinear(low, high, steps)
    elif name == "scaled_linear":
        chain = DiscreteVP(torch.linspace(low**0.5, high**0.5, steps, dtype=torch.float64).square())
    elif name == "squaredcos_cap_v2":
        chain = cosine_chain(steps)
    elif name == "sigmoid":
        ramp = torch.linspace(-6, 6, steps, dtype=torch.float64).sigmoid()
        chain = DiscreteVP(low + (high - low) * ramp)
    else:
        raise ValueError(f"unsupported beta_schedule {name!r}: known are {', '.join(_NAMES)}")
    return _zero_terminal(chain) if config.get("rescale_betas_zero_snr") else chain


def _zero_terminal(chain: DiscreteVP) -> DiscreteVP:
    n = chain.num_train_steps
    root: Tensor = chain.alpha(torch.arange(1, n + 1, dtype=torch.float64) / n)
    root = (root - root[-1]) * root[0] / (root[0] - root[-1])
    alpha_bar = torch.cat([torch.ones(1, dtype=torch.float64), root.square().clamp(min=_LAST_ALPHA_BAR)])
    return DiscreteVP(1.0 - alpha_bar[1:] / alpha_bar[:-1])
