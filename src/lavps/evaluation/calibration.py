r"""Simulation-based calibration, and coverage of credible intervals.

If :math:`x^* \sim p`, :math:`y \sim l(\cdot | A x^*)` and :math:`x_1, .., x_N \sim \pi(\cdot | y)`, then for
any scalar f the rank of :math:`f(x^*)` among :math:`f(x_1), .., f(x_N)` is uniform on 0..N, and a central
credible interval of level c contains :math:`f(x^*)` with probability c. An overconfident sampler gives ranks
at both ends (a U shape) and coverage below the level.

References:
    - Talts et al., Validating Bayesian Inference Algorithms with Simulation-Based Calibration, 2018.
    - Säilynoja, Bürkner and Vehtari, Graphical Test for Discrete Uniformity, 2022 (the band).
    - Lemos, Coogan, Hezaveh and Perreault-Levasseur, Sampling-Based Accuracy Testing of Posterior Estimators
      for General Inference, 2023 (TARP).
"""

from __future__ import annotations

__all__ = [
    "CalibrationReport",
    "calibrate",
    "coverage",
    "rank_histogram",
    "ranks",
    "tarp_ranks",
    "uniformity_band",
    "uniformity_p_value",
]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..problem import InverseProblem
from ..random import NoiseStreams, Purpose
from ..samplers import Sampler


def ranks(truth: Tensor, samples: Tensor) -> Tensor:
    """Return the ranks (M, *features) of truths among their samples, in 0..N; a tie counts one half.

    Args:
        truth: Scalar features of M truths, (M, *features).
        samples: Features of N posterior samples per truth, (M, N, *features).

    Example:
        >>> ranks(torch.tensor([0.5]), torch.tensor([[0.0, 1.0, 2.0]]))
        tensor([1.], dtype=torch.float64)
    """
    below = (samples < truth[:, None]).double().sum(1)
    ties = (samples == truth[:, None]).double().sum(1)
    return below + 0.5 * ties


def coverage(truth: Tensor, samples: Tensor, levels: Sequence[float]) -> Tensor:
    """Return the share of truths inside the central credible interval of every level, (levels, *features).

    The interval of level c holds the ranks from (1-c)/2 to (1+c)/2 of N + 1: it is exact for finite N, up to
    the granularity 1 / (N + 1). The arguments are those of :func:`ranks`.
    """
    position = (ranks(truth, samples) + 0.5) / (samples.shape[1] + 1)
    return torch.stack([((position - 0.5).abs() <= 0.5 * level).double().mean(0) for level in levels])


def rank_histogram(found: Tensor, num_samples: int) -> Tensor:
    """Return the share of each rank 0..N over the first axis, (N + 1, *features); halves count in both bins.

    Args:
        found: Ranks (M, *features) of :func:`ranks`.
        num_samples: Number N of samples.
    """
    values = torch.arange(num_samples + 1, dtype=torch.float64, device=found.device)
    each = [((found.floor() == v).double() + (found.ceil() == v).double()).mean(0) / 2 for v in values]
    return torch.stack(each)


def tarp_ranks(truth: Tensor, samples: Tensor, references: Tensor | None = None) -> Tensor:
    """Return the ranks (M,) of TARP: of the truth's distance to a reference point among the samples' ones.

    They are uniform on 0..N for an exact posterior, and their distribution function is the expected coverage
    of TARP. Unlike pixels one by one, distances depend on all pixels together.

    Args:
        truth: Truths (M, *features).
        samples: Samples (M, N, *features).
        references: Reference points (M, *features), independent of the truth given the measurement; default
            the truth of the next item.
    """
    points = (truth.roll(1, 0) if references is None else references).double().flatten(1)
    own = (truth.double().flatten(1) - points).square().sum(1)
    others = [
        (rows.double().flatten(1) - point).square().sum(1)
        for rows, point in zip(samples, points, strict=True)
    ]
    return ranks(own, torch.stack(others))


def uniformity_p_value(found: Tensor, num_samples: int) -> Tensor:
    """Return the p value of the chi-square test that ranks are uniform, one per feature, (*features).

    Neighbouring ranks share a bin so that each bin expects at least five of the M ranks.

    Args:
        found: Ranks (M, *features) of independent items, M at least 10.
        num_samples: Number N of samples.

    Example:
        >>> found = torch.arange(100).remainder(20).double()
        >>> float(uniformity_p_value(found, 19)), float(uniformity_p_value(found.clamp(max=9), 19)) < 1e-6
        (1.0, True)
    """
    count, values = len(found), num_samples + 1
    bins = min(values, count // 5)
    if bins < 2:
        raise ValueError(f"a test of uniform ranks needs at least 10 items, got {count}")
    bin_of = torch.arange(values) * bins // values
    sizes = torch.bincount(bin_of, minlength=bins).double()
    shares = rank_histogram(found.cpu(), num_samples)
    observed = torch.zeros(bins, *shares.shape[1:], dtype=torch.float64).index_add_(0, bin_of, shares)
    expected = (sizes / values).reshape(-1, *[1] * (shares.ndim - 1))
    statistic = count * ((observed - expected).square() / expected).sum(0)
    p_value: Tensor = torch.special.gammaincc(torch.full_like(statistic, (bins - 1) / 2), statistic / 2)
    return p_value


def uniformity_band(num_observations: int, num_points: int = 100, level: float = 0.95) -> float:
    """Return the half-width of a simultaneous band for the empirical distribution of uniform ranks.

    This is the smallest d such that a share ``level`` of simulated uniform samples has an empirical
    distribution function within d of the diagonal at all of ``num_points`` points.
    """
    streams = NoiseStreams.from_seed(2000, seed=0)
    z = streams.normal(Purpose.PROBE, (num_observations,), torch.empty(0)).double()
    uniform = 0.5 * (1.0 + torch.erf(z / math.sqrt(2.0)))
    points = torch.linspace(0, 1, num_points, dtype=torch.float64)
    gaps = torch.stack([((uniform <= p).double().mean(1) - p).abs() for p in points]).amax(0)
    return float(gaps.quantile(level))


@dataclass(frozen=True)
class CalibrationReport:
    """Ranks and coverage over M simulated observations, for F scalar features of the image.

    Attributes:
        ranks: Ranks in 0..num_samples, (M, F).
        num_samples: Number N of posterior samples per observation.
        levels: Nominal levels of the credible intervals.
        coverage: Measured coverage, (levels, F).
        band: Half-width of the 95 % simultaneous band for the distribution of the ranks of a feature.
        truth: Features of the truths, (M, F).
        samples: Features of the samples, (M, N, F).
    """

    ranks: Tensor
    num_samples: int
    levels: tuple[float, ...]
    coverage: Tensor
    band: float
    truth: Tensor
    samples: Tensor

    @property
    def deviation(self) -> Tensor:
        """Largest gap between the distribution of the ranks and the uniform one, per feature, (F,)."""
        position = ((self.ranks + 0.5) / (self.num_samples + 1)).sort(dim=0).values
        count = len(position)
        upper = torch.arange(1, count + 1, dtype=torch.float64)[:, None] / count
        return torch.maximum((upper - position).abs(), (upper - 1 / count - position).abs()).amax(0)

    @property
    def calibrated(self) -> bool:
        """Whether the ranks of every feature stay within the band; no Bonferroni correction is applied."""
        return bool((self.deviation <= self.band).all())


def calibrate(
    sampler: Sampler,
    truth: Tensor,
    problem: InverseProblem,
    features: Callable[[Tensor], Tensor],
    num_samples: int = 63,
    levels: Sequence[float] = (0.5, 0.8, 0.9, 0.95),
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = False,
) -> CalibrationReport:
    """Run simulation-based calibration of a sampler.

    Args:
        sampler: Sampler to evaluate.
        truth: Images drawn from the sampler's own prior, (M, C, *spatial).
        problem: Simulated measurements of the truths, M items.
        features: Function from images (R, C, *spatial) to scalars (R, F), e.g. some pixels and averages.
        num_samples: Number N of posterior samples per observation; N + 1 should divide into histogram bins.
        levels: Nominal levels of the credible intervals.
        seed: Seed of the sampler.
        batch_size: Number of rows sampled at a time.
        progress: Whether to show a progress bar.
    """
    posterior = sampler.sample(problem, num_samples, seed=seed, batch_size=batch_size, progress=progress)
    assert posterior.samples is not None
    samples = features(posterior.samples.flatten(0, 1)).reshape(len(truth), num_samples, -1)
    scalars = features(truth).reshape(len(truth), -1)
    return CalibrationReport(
        ranks(scalars, samples),
        num_samples,
        tuple(levels),
        coverage(scalars, samples, levels),
        uniformity_band(len(truth)),
        scalars,
        samples,
    )
