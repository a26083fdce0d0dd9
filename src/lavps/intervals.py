r"""Central intervals between order statistics of samples.

With N samples and a truth from the same distribution, the truth lies between order statistics i and j with
probability :math:`(j - i) / (N + 1)`. The interval of level c therefore has its ends at positions
:math:`(N + 1) (1 \mp c) / 2`, interpolated linearly where they are not integers. Quantiles of the samples
would give narrower intervals: their coverage is below the level for finite N.
"""

from __future__ import annotations

__all__ = ["CalibratedScale", "central_interval", "median"]

import math
from typing import Protocol

from torch import Tensor


class CalibratedScale(Protocol):
    """Correction of intervals, such as a certificate of ``lavps calibrate``."""

    def scale(self, level: float, num_samples: int) -> float:
        """Return the factor of the deviation from the median, or raise ValueError if there is none."""
        ...


def central_interval(samples: Tensor, level: float, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the ends of the central interval of every pixel, both (B, *features).

    Args:
        samples: Samples (B, N, *features).
        level: Level in (0, 1); N samples reach at most (N - 1) / (N + 1).
        scale: Factor of the deviation of both ends from the median.

    Raises:
        ValueError: There are too few samples for the level.

    Example:
        >>> import torch
        >>> low, high = central_interval(torch.arange(19.0)[None, :], 0.9)  # 18 / 20
        >>> low.item(), high.item()
        (0.0, 18.0)
    """
    count = samples.shape[1]
    if not 0 < level < 1:
        raise ValueError(f"the level of an interval lies between 0 and 1, got {level}")
    needed = math.ceil((1 + level) / (1 - level) - 1e-9)
    if count < needed:
        raise ValueError(f"intervals of {level:.1%} need at least {needed} samples per image, not {count}")
    ordered = samples.sort(dim=1).values
    position = max((count + 1) * (1 - level) / 2 - 1, 0.0)
    lower, upper = _between(ordered, position), _between(ordered, count - 1 - position)
    if scale == 1.0:
        return lower, upper
    centre = _between(ordered, (count - 1) / 2)
    return centre + scale * (lower - centre), centre + scale * (upper - centre)


def median(samples: Tensor) -> Tensor:
    """Return the median of samples (B, N, *features), the mean of the middle two if N is even."""
    return _between(samples.sort(dim=1).values, (samples.shape[1] - 1) / 2)


def _between(ordered: Tensor, position: float) -> Tensor:
    """Return the order statistic at a position from 0 to N - 1, interpolated."""
    position = round(position, 9)
    first = min(math.floor(position), ordered.shape[1] - 1)
    share = position - first
    return ordered[:, first] if share == 0 else ordered[:, first].lerp(ordered[:, first + 1], share)
