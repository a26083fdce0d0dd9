r"""Conformal correction of intervals, and a conformal test of single measurements.

**Intervals.** Let :math:`I_\lambda` be the intervals of a level c with both ends moved away from the median
by a factor :math:`\lambda`, and :math:`R_i(\lambda)` the share of the pixels of held-out image i outside
them, which does not increase with :math:`\lambda`. The scale is the smallest one on a fixed grid with

.. math:: \frac{1}{n + 1} \Big( \sum_{i=1}^n R_i(\lambda) + 1 \Big) \le 1 - c

(conformal risk control). If a new image is exchangeable with the n held-out images, the expected share of its
pixels inside the corrected intervals is at least c, for every n, prior and sampler. The expectation is over
held-out images and the new one. It is no guarantee for a single image, a single pixel or a part of the image:
pixels are not exchangeable, images are.

**Measurements.** Statistics of a new measurement are compared with those of the held-out ones. All n + 1
vectors are ranked by their largest standardized entry, and by their Mahalanobis distance. The score of a
vector is the larger of its two ranks, and the p value is the share of scores that are at least as large as
the new one. If the new measurement is exchangeable with the others, then
:math:`P(p \le a) \le a`. The smallest p is 1 / (n + 1).

References:
    - Angelopoulos, Bates, Fisch, Lei and Schuster, Conformal Risk Control, 2022.
    - Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005.
"""

from __future__ import annotations

__all__ = ["SCALES", "Correction", "conformal_p_value", "interval_misses", "required_scales"]

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..intervals import central_interval, median

SCALES = torch.logspace(-2, 2, 801, dtype=torch.float64)  # in steps of 1.2 %; SCALES[400] is 1


def required_scales(samples: Tensor, truth: Tensor, level: float) -> Tensor:
    """Return the smallest scale at which the interval of every pixel holds the truth, (B, *features).

    Args:
        samples: Samples (B, N, *features) of any sampler.
        truth: True images (B, *features).
        level: Level of the intervals.

    Example:
        >>> required_scales(torch.arange(19.0)[None, :, None], torch.tensor([[13.5]]), 0.9)  # 9 +- 9
        tensor([[0.5000]])
    """
    if samples.ndim != truth.ndim + 1 or samples.shape[:1] + samples.shape[2:] != truth.shape:
        raise ValueError(
            f"samples (B, N, *features) and truths (B, *features) do not fit: {tuple(samples.shape)} and "
            f"{tuple(truth.shape)}"
        )
    lower, upper = central_interval(samples, level)
    centre = median(samples)
    half = torch.where(truth > centre, upper - centre, centre - lower)
    distance = (truth - centre).abs()
    return torch.where(distance == 0, 0.0, distance / half)


def interval_misses(samples: Tensor, truth: Tensor, level: float) -> Tensor:
    """Return the share of every image's pixels outside the intervals at each of ``SCALES``, (B, scales).

    The arguments are those of :func:`required_scales`.
    """
    needed = required_scales(samples, truth, level).double().flatten(1).sort(dim=1).values.cpu()
    grid = SCALES.expand(len(needed), -1).contiguous()
    # A rounding error of the quotient must not count as a miss.
    inside = torch.searchsorted(needed, grid * (1 + 1e-6), right=True)
    return 1.0 - inside.double() / needed.shape[1]


@dataclass(frozen=True)
class Correction:
    """Correction of the intervals of one level, with its coverage on held-out images.

    Attributes:
        level: Nominal level.
        scale: Factor of the deviation from the median.
        before: Mean share of covered pixels without the correction.
        before_error: Standard error of that mean, over images.
        after: The same with the correction; the scale of each image is learned on the other images.
        after_error: Standard error of ``after``.
        images: Number of held-out images.
    """

    level: float
    scale: float
    before: float
    before_error: float
    after: float
    after_error: float
    images: int

    @classmethod
    def fit(cls, misses: Tensor, level: float) -> Correction:
        """Learn the correction from the misses (n, scales) of :func:`interval_misses`.

        Raises:
            ValueError: There are too few images for the level, or no scale is large enough.

        Example:
            >>> truth = torch.linspace(-2, 2, 50)[:, None]
            >>> misses = interval_misses(torch.linspace(-1, 1, 19).expand(50, 19)[..., None], truth, 0.8)
            >>> found = Correction.fit(misses, 0.8)
            >>> round(found.before, 2), round(found.scale, 2), round(found.after, 2)
            (0.44, 1.88, 0.8)
        """
        count = len(misses)
        # The scale of each image is learned on count - 1 others.
        needed = math.ceil(1 / (1 - level) - 1e-9)
        if count < needed:
            raise ValueError(f"a correction of {level:.0%} intervals needs at least {needed} images")
        total = misses.sum(0)
        chosen = _smallest(total, count, level)
        if chosen is None:
            raise ValueError(f"no scale corrects the {level:.0%} intervals: the samples hardly differ")
        others = [_smallest(total - own, count - 1, level) for own in misses]
        after = torch.stack(
            [
                1 - own[len(SCALES) - 1 if scale is None else scale]
                for own, scale in zip(misses, others, strict=True)
            ]
        )
        before = 1 - misses[:, len(SCALES) // 2]
        (first, first_error), (second, second_error) = map(_mean_and_error, (before, after))
        return cls(level, float(SCALES[chosen]), first, first_error, second, second_error, count)


def _mean_and_error(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def _smallest(total: Tensor, count: int, level: float) -> int | None:
    """Return the index of the smallest scale whose bound on the expected misses is at most 1 - level."""
    allowed = (total + 1) / (count + 1) <= 1 - level + 1e-12
    return int(allowed.int().argmax()) if bool(allowed[-1]) else None


def conformal_p_value(reference: Tensor, statistics: Tensor) -> float:
    """Return the p value of the hypothesis that a vector is exchangeable with reference vectors.

    Args:
        reference: Statistics (n, K) of n held-out items.
        statistics: Statistics (K,) of the new item.

    Example:
        >>> reference = torch.linspace(-1, 1, 99)[:, None]
        >>> conformal_p_value(reference, torch.tensor([5.0])), conformal_p_value(reference, torch.zeros(1))
        (0.01, 1.0)
    """
    if not bool(statistics.isfinite().all()):
        return 1.0 / (len(reference) + 1)
    everything = torch.cat([reference, statistics[None]]).double()
    centred = everything - everything.mean(0)
    covariance = centred.T @ centred / len(everything)
    precision = torch.linalg.pinv(covariance, rtol=1e-9, hermitian=True)
    distances = ((centred @ precision) * centred).sum(1)
    largest = (centred / covariance.diagonal().sqrt().clamp(min=1e-12)).abs().amax(1)
    first, second = (_ranks(values) for values in (largest, distances))
    # The sum of the ranks breaks ties between vectors that are each extreme in one respect.
    scores = torch.maximum(first, second) + (first + second) / (4 * len(everything))
    return float((scores >= scores[-1]).double().mean())


def _ranks(values: Tensor) -> Tensor:
    """Return the number of values that are smaller than each, up to a rounding error."""
    return (values[None, :] < values[:, None] * (1 - 1e-9)).double().sum(1)
