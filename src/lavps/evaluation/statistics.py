r"""Paired tests of two methods on the same images.

Scores are losses: lower is better. With :math:`\delta_i` the reference's score on image i minus the
candidate's, their mean :math:`\bar\delta` and standard deviation s over n images, the candidate is
non-inferior with margin :math:`\Delta` if the test of :math:`H_0: E \delta \le -\Delta` rejects:

.. math:: T = \frac{\bar\delta + \Delta}{s / \sqrt n} > t_{1 - \alpha, n - 1}.

For statistics without a score per image (MMD compares sets), images are resampled with replacement, the same
ones for both methods, and the difference d of the two statistics is recomputed as :math:`d^*`. The
distribution of :math:`d^* - d` approximates that of d minus its true value, which gives the basic bootstrap
interval :math:`[2 d - q_{1 - \alpha / 2}, 2 d - q_{\alpha / 2}]` with q the quantiles of :math:`d^*`. It
corrects the bias of a V-statistic; the percentile interval would double it.

References:
    - Wellek, Testing Statistical Hypotheses of Equivalence and Noninferiority, 2010.
    - Davison and Hinkley, Bootstrap Methods and their Application, 1997 (section 5.2).
"""

from __future__ import annotations

__all__ = ["BootstrapDifference", "NonInferiority", "joint_bootstrap", "non_inferiority", "paired_bootstrap"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..extras import require
from ..random import Purpose, generator

_DRAWS = 1 << 22  # image indices in memory at a time


@dataclass(frozen=True)
class NonInferiority:
    """Outcome of the paired one-sided non-inferiority t test.

    Attributes:
        mean_difference: Mean of reference minus candidate; positive if the candidate is better.
        standard_error: Standard error s / sqrt(n) of the mean difference.
        statistic: Test statistic T; infinite if all differences are equal.
        p_value: Probability of a T as large if the candidate were worse by exactly the margin.
        lower_bound: One-sided confidence bound of level 1 - alpha on the mean difference.
        n: Number of images.
        margin: Non-inferiority margin Delta.
        alpha: Level of the test.
    """

    mean_difference: float
    standard_error: float
    statistic: float
    p_value: float
    lower_bound: float
    n: int
    margin: float
    alpha: float

    @property
    def is_non_inferior(self) -> bool:
        """Whether the test rejects, which is equivalent to lower_bound > -margin."""
        return self.p_value < self.alpha


def non_inferiority(
    reference: Tensor | Sequence[float],
    candidate: Tensor | Sequence[float],
    margin: float = 0.003,
    alpha: float = 0.05,
) -> NonInferiority:
    """Test that the candidate is not worse than the reference by the margin or more.

    If all differences are equal (a method compared with itself), p is 0 if the mean difference is above
    -margin, else 1.

    Args:
        reference: Scores per image (n,), lower is better, e.g. LPIPS; n at least 2.
        candidate: Scores of the other method on the same images, (n,).
        margin: Non-inferiority margin Delta.
        alpha: Probability of accepting a candidate that is worse by the margin.

    Example:
        >>> test = non_inferiority([0.10, 0.12, 0.11, 0.13], [0.10, 0.12, 0.11, 0.131], margin=0.003)
        >>> test.is_non_inferior, round(test.mean_difference, 5)
        (True, -0.00025)
    """
    special = require("scipy", "metrics", "Student's t distribution needs SciPy").special
    if margin < 0 or not 0 < alpha < 1:
        raise ValueError(f"margin >= 0 and 0 < alpha < 1 are required, got {margin} and {alpha}")
    first, second = _paired(reference, candidate)
    delta, n = first - second, len(first)
    if n < 2:
        raise ValueError(f"the test needs at least two images, got {n}")
    mean, standard_error = float(delta.mean()), float(delta.std()) / math.sqrt(n)
    if delta.min() == delta.max():  # std() of equal numbers may have a rounding error
        mean, standard_error = float(delta[0]), 0.0
    if standard_error > 0:
        statistic = (mean + margin) / standard_error
        p_value = float(special.stdtr(n - 1, -statistic))
    else:
        statistic = math.inf if mean > -margin else -math.inf
        p_value = 0.0 if mean > -margin else 1.0
    bound = mean - float(special.stdtrit(n - 1, 1.0 - alpha)) * standard_error
    return NonInferiority(mean, standard_error, statistic, p_value, bound, n, margin, alpha)


@dataclass(frozen=True)
class BootstrapDifference:
    """Difference between two methods, with a bootstrap confidence interval.

    Attributes:
        difference: Statistic of the first method minus that of the second.
        lower: Lower end of the two-sided basic confidence interval.
        upper: Upper end of that interval.
        bias: Estimated bias of the difference: mean over resamples minus the observed value. The interval is
            corrected for it, and need not contain the difference if the bias is large.
        p_value: One-sided p value of the hypothesis that the true difference is -margin or less.
        level: Level of the interval.
        margin: Margin of the hypothesis.
        resamples: Number of resamples.
    """

    difference: float
    lower: float
    upper: float
    bias: float
    p_value: float
    level: float
    margin: float
    resamples: int


def paired_bootstrap(
    a: Tensor | Sequence[float],
    b: Tensor | Sequence[float],
    statistic: Callable[[Tensor], Tensor] = lambda scores: scores.mean(-1),
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
    margin: float = 0.0,
) -> BootstrapDifference:
    """Bootstrap the difference of a statistic of paired scores.

    With a the reference and b the candidate (lower is better), a small p value indicates that b is not worse
    by the margin or more, as :func:`non_inferiority` does for normally distributed differences.

    Args:
        a: Scores per image (n,).
        b: Scores of the other method on the same images, (n,).
        statistic: Function from scores (R, n) to (R,), e.g. ``lambda scores: scores.median(-1).values``.
        resamples: Number R of resamples.
        seed: Seed of the resamples.
        level: Level of the interval.
        margin: Margin of the one-sided hypothesis.

    Example:
        >>> found = paired_bootstrap([0.3, 0.5, 0.4], [0.2, 0.4, 0.3], resamples=100)
        >>> round(found.difference, 3), round(found.lower, 3), round(found.upper, 3)
        (0.1, 0.1, 0.1)
    """
    first, second = _paired(a, b)

    def difference(rows: Tensor) -> Tensor:
        return statistic(first[rows]) - statistic(second[rows])

    return joint_bootstrap(difference, len(first), resamples, seed, level, margin)


def joint_bootstrap(
    difference: Callable[[Tensor], Tensor],
    n: int,
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
    margin: float = 0.0,
) -> BootstrapDifference:
    """Bootstrap a difference between sets of images, such as :func:`~lavps.evaluation.mmd_difference`.

    Args:
        difference: Function from image indices (R, n) to differences (R,); the indices apply to the images of
            both methods and to the true ones.
        n: Number of images, at least 2.
        resamples: Number R of resamples.
        seed: Seed of the resamples.
        level: Level of the interval.
        margin: Margin of the one-sided hypothesis.
    """
    if n < 2 or resamples < 1 or not 0 < level < 1:
        raise ValueError(f"n >= 2, resamples >= 1, 0 < level < 1 are required, got {n}, {resamples}, {level}")
    observed = float(difference(torch.arange(n)[None])[0])
    draws, parts, chunk = generator(seed, 0, Purpose.PROBE), [], max(1, _DRAWS // n)
    for start in range(0, resamples, chunk):
        rows = draws.integers(0, n, (min(chunk, resamples - start), n))
        parts.append(difference(torch.from_numpy(rows)).double().cpu())
    redrawn = torch.cat(parts).sort().values
    tail = (1.0 - level) / 2
    lower, upper = (2.0 * observed - float(_quantile(redrawn, q)) for q in (1.0 - tail, tail))
    # At the edge of the hypothesis, d is distributed around -margin as d* is around d.
    as_extreme = int((redrawn - observed >= observed + margin).sum())
    p_value, bias = (1 + as_extreme) / (1 + resamples), float(redrawn.mean()) - observed
    return BootstrapDifference(observed, lower, upper, bias, p_value, level, margin, resamples)


def _quantile(ordered: Tensor, q: float) -> Tensor:
    """Return a quantile by linear interpolation; torch.quantile is limited to 16 million values."""
    position = q * (len(ordered) - 1)
    left = math.floor(position)
    right = min(left + 1, len(ordered) - 1)
    return ordered[left] + (position - left) * (ordered[right] - ordered[left])


def _paired(a: Tensor | Sequence[float], b: Tensor | Sequence[float]) -> tuple[Tensor, Tensor]:
    first, second = (torch.as_tensor(scores, dtype=torch.float64).detach().cpu() for scores in (a, b))
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(
            "both methods need one score per image, on the same images, got shapes "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    if not (first.isfinite().all() and second.isfinite().all()):
        raise ValueError("scores must be finite: dropping an image would favour the method that failed on it")
    return first, second
