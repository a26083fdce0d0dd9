r"""Is a faster method as good? Paired tests on the same images.

Scores are losses: lower is better. With :math:`\delta_i` the reference's score on image i minus the
candidate's, their mean :math:`\bar\delta` and standard deviation s over n images, the candidate is called
non-inferior with margin :math:`\Delta` where the test of :math:`H_0: E \delta \le -\Delta` rejects:

.. math:: T = \frac{\bar\delta + \Delta}{s / \sqrt n} > t_{1 - \alpha, n - 1}.

Where no score per image exists (MMD compares sets), images are drawn again with replacement, the same ones
for both methods, and the difference d of the two statistics is recomputed: :math:`d^*`. The law of
:math:`d^* - d` stands for that of d minus its true value, which gives the interval
:math:`[2 d - q_{1 - \alpha / 2}, 2 d - q_{\alpha / 2}]` with q the quantiles of :math:`d^*`. This "basic"
interval, unlike that of the quantiles themselves, takes out the bias of a V-statistic once instead of
adding it twice.

References:
    - Wellek, Testing Statistical Hypotheses of Equivalence and Noninferiority, 2010.
    - Davison and Hinkley, Bootstrap Methods and their Application, 1997 (section 5.2).
    - Press, Teukolsky, Vetterling and Flannery, Numerical Recipes, 2007 (6.4, the incomplete beta function).
"""

from __future__ import annotations

__all__ = ["BootstrapDifference", "NonInferiority", "joint_bootstrap", "non_inferiority", "paired_bootstrap"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..random import Purpose, generator

_DRAWS = 1 << 22  # image indices held at a time


@dataclass(frozen=True)
class NonInferiority:
    """Outcome of the paired one-sided non-inferiority t test.

    Attributes:
        mean_difference: mean of reference minus candidate; positive where the candidate is better.
        standard_error: s / sqrt(n) of that mean.
        statistic: T; infinite where all differences are equal.
        p_value: probability of a T as large if the candidate were worse by exactly the margin.
        lower_bound: one-sided confidence bound of level 1 - alpha on the mean difference.
        n: number of images.
        margin: Delta, the loss of quality that does not matter.
        alpha: the level of the test.
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
        """Whether the test rejects; the same as the lower bound lying above -margin."""
        return self.p_value < self.alpha


def non_inferiority(
    reference: Tensor | Sequence[float],
    candidate: Tensor | Sequence[float],
    margin: float = 0.003,
    alpha: float = 0.05,
) -> NonInferiority:
    """Test that the candidate is not worse than the reference by the margin or more.

    Where all differences are equal there is nothing random left, and the answer is certain: p is 0 where
    the mean difference lies above -margin (a method compared with itself), else 1.

    Args:
        reference: a score for every image (n,), lower is better, e.g. LPIPS; n at least 2.
        candidate: the other method's on the same images (n,).
        margin: Delta.
        alpha: the chance of accepting a candidate that is worse by the margin.
    """
    if margin < 0 or not 0 < alpha < 1:
        raise ValueError(f"a margin >= 0 and 0 < alpha < 1 are needed, got {margin} and {alpha}")
    first, second = _paired(reference, candidate)
    delta, n = first - second, len(first)
    if n < 2:
        raise ValueError("one image says nothing of the spread between images: the test needs two at least")
    mean, error = float(delta.mean()), float(delta.std()) / math.sqrt(n)
    if delta.min() == delta.max():  # std() of equal numbers may be left with a rounding error
        mean, error = float(delta[0]), 0.0
    if error > 0:
        statistic = (mean + margin) / error
        p_value = _t_survival(statistic, n - 1)
    else:
        statistic = math.inf if mean > -margin else -math.inf
        p_value = 0.0 if mean > -margin else 1.0
    bound = mean - _t_quantile(1.0 - alpha, n - 1) * error
    return NonInferiority(mean, error, statistic, p_value, bound, n, margin, alpha)


@dataclass(frozen=True)
class BootstrapDifference:
    """A difference between two methods and how far chance could have moved it.

    Attributes:
        difference: the statistic of the first method minus that of the second.
        lower: end of the two-sided basic confidence interval.
        upper: its other end.
        bias: of the difference, estimated: the mean of the redrawn ones minus the observed. The interval has
            it taken out, so it may lie beside the difference where the bias is large.
        p_value: one-sided, of the hypothesis that the true difference is -margin or less.
        level: of the interval.
        margin: of the hypothesis.
        resamples: how many times images were drawn again.
    """

    difference: float
    lower: float
    upper: float
    bias: float
    p_value: float
    level: float
    margin: float
    resamples: int


def _mean(scores: Tensor) -> Tensor:
    return scores.mean(-1)


def paired_bootstrap(
    a: Tensor | Sequence[float],
    b: Tensor | Sequence[float],
    statistic: Callable[[Tensor], Tensor] = _mean,
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
    margin: float = 0.0,
) -> BootstrapDifference:
    """Bootstrap of a difference of scores, images drawn in pairs.

    With a the reference and b the candidate (lower is better), a small p value says that b is not worse
    by the margin or more: :func:`non_inferiority` without the normal law.

    Args:
        a: a score for every image (n,).
        b: the other method's on the same images (n,).
        statistic: maps scores (R, n) to (R,), e.g. ``lambda scores: scores.median(-1).values``.
        resamples: R.
        seed: of the draws.
        level: of the interval.
        margin: of the one-sided hypothesis.
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
    """Bootstrap of a difference between sets of images, such as :func:`~lavps.evaluation.mmd_difference`.

    Args:
        difference: maps image indices (R, n) to differences (R,); the indices apply to both methods' images
            and to the true ones.
        n: number of images, 2 at least.
        resamples: R.
        seed: of the draws.
        level: of the interval.
        margin: of the one-sided hypothesis.
    """
    if n < 2 or resamples < 1 or not 0 < level < 1:
        raise ValueError(f"n >= 2, resamples >= 1, 0 < level < 1 are needed, got {n}, {resamples}, {level}")
    observed = float(difference(torch.arange(n)[None])[0])
    draws, parts, chunk = generator(seed, 0, Purpose.PROBE), [], max(1, _DRAWS // n)
    for start in range(0, resamples, chunk):
        rows = draws.integers(0, n, (min(chunk, resamples - start), n))
        parts.append(difference(torch.from_numpy(rows)).double().cpu())
    redrawn = torch.cat(parts).sort().values
    tail = (1.0 - level) / 2
    lower, upper = (2.0 * observed - float(_quantile(redrawn, q)) for q in (1.0 - tail, tail))
    # Under the hypothesis's edge d lies around -margin as d* lies around d.
    as_extreme = int((redrawn - observed >= observed + margin).sum())
    p_value, bias = (1 + as_extreme) / (1 + resamples), float(redrawn.mean()) - observed
    return BootstrapDifference(observed, lower, upper, bias, p_value, level, margin, resamples)


def _quantile(ordered: Tensor, q: float) -> Tensor:
    """Linear interpolation, as torch.quantile, which refuses more than 16 million values."""
    place = q * (len(ordered) - 1)
    left = math.floor(place)
    right = min(left + 1, len(ordered) - 1)
    return ordered[left] + (place - left) * (ordered[right] - ordered[left])


def _paired(a: Tensor | Sequence[float], b: Tensor | Sequence[float]) -> tuple[Tensor, Tensor]:
    first, second = (torch.as_tensor(scores, dtype=torch.float64).detach().cpu() for scores in (a, b))
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(
            "one score an image is needed of both methods, on the same images, got shapes "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    if not (first.isfinite().all() and second.isfinite().all()):
        raise ValueError(
            "scores must be finite: leaving an image out would flatter the method that failed on it"
        )
    return first, second


def _t_survival(t: float, df: float) -> float:
    """P(T > t) for Student's law with ``df`` degrees of freedom; SciPy is not needed for this alone."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    total = df + t * t
    tail = 0.5 * _incomplete_beta(df / total, t * t / total, 0.5 * df, 0.5)
    return tail if t >= 0 else 1.0 - tail


@lru_cache(maxsize=64)  # the same few levels and numbers of images are asked for again and again
def _t_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p, by bisection."""
    if p < 0.5:
        return -_t_quantile(1.0 - p, df)
    low, high = 0.0, 1.0
    while _t_survival(high, df) > 1.0 - p:
        low, high = high, 2.0 * high
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _t_survival(middle, df) > 1.0 - p else (low, middle)
    return 0.5 * (low + high)


def _incomplete_beta(x: float, complement: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (Lentz's method).

    The caller gives 1 - x, which would lose its digits here where x is near 1.
    """
    if x == 0.0 or complement == 0.0:
        return float(complement == 0.0)
    if x > (a + 1.0) / (a + b + 2.0):  # the fraction converges fast on the other side
        return 1.0 - _incomplete_beta(complement, x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log(complement)
    tiny = 1e-300
    c, d = 1.0, 1.0 / ((1.0 - (a + b) * x / (a + 1.0)) or tiny)
    value = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / ((1.0 + term * d) or tiny)
            c = (1.0 + term / c) or tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return math.exp(log_front) * value / a
