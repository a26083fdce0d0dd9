r"""Is the uncertainty honest? Simulation-based calibration and coverage of credible intervals.

If :math:`x^* \sim p`, :math:`y \sim l(\cdot | A x^*)` and :math:`x_1, .., x_N \sim \pi(\cdot | y)`, then for
any scalar f the rank of :math:`f(x^*)` among :math:`f(x_1), .., f(x_N)` is uniform on 0..N, and a central
credible interval of level c contains :math:`f(x^*)` with probability c. A sampler whose spread is too small
gives ranks at the ends (a U shape) and coverage below the level.

References:
    - Talts et al., Validating Bayesian Inference Algorithms with Simulation-Based Calibration, 2018.
    - Säilynoja, Bürkner and Vehtari, Graphical Test for Discrete Uniformity, 2022 (the band).
"""

from __future__ import annotations

__all__ = ["CalibrationReport", "calibrate", "coverage", "ranks", "uniformity_band"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..problem import InverseProblem
from ..random import NoiseStreams, Purpose
from ..samplers import Sampler


def ranks(truth: Tensor, samples: Tensor) -> Tensor:
    """Rank of the truth among its samples, ties split evenly.

    Args:
        truth: (M, *features).
        samples: (M, N, *features).

    Returns:
        Ranks in 0..N, (M, *features), float64 (halves where values tie).
    """
    below = (samples < truth[:, None]).double().sum(1)
    ties = (samples == truth[:, None]).double().sum(1)
    return below + 0.5 * ties


def coverage(truth: Tensor, samples: Tensor, levels: Sequence[float]) -> Tensor:
    """Share of truths inside the central credible interval, for every level: (levels, *features).

    The interval at level c keeps the ranks from (1-c)/2 to (1+c)/2 of N + 1, so it is exact for finite N
    up to the granularity 1 / (N + 1).
    """
    position = (ranks(truth, samples) + 0.5) / (samples.shape[1] + 1)
    return torch.stack([((position - 0.5).abs() <= 0.5 * level).double().mean(0) for level in levels])


def uniformity_band(num_observations: int, num_points: int = 100, level: float = 0.95) -> float:
    """Half-width of a simultaneous band for the empirical distribution of uniform ranks.

    The smallest d such that ``level`` of simulated uniform samples keep their empirical distribution
    function within d of the diagonal everywhere (on ``num_points`` points).
    """
    uniform = (
        NoiseStreams.of(2000, seed=0).normal(Purpose.PROBE, (num_observations,), torch.empty(0)).double()
    )
    uniform = 0.5 * (1.0 + torch.erf(uniform / math.sqrt(2.0)))
    points = torch.linspace(0, 1, num_points, dtype=torch.float64)
    gaps = torch.stack([((uniform <= p).double().mean(1) - p).abs() for p in points]).amax(0)
    return float(gaps.quantile(level))


@dataclass(frozen=True)
class CalibrationReport:
    """Ranks and coverage over M simulated observations, for F scalar features of the image.

    Attributes:
        ranks: (M, F) in 0..num_samples.
        num_samples: N posterior samples an observation.
        levels: nominal levels of the credible intervals.
        coverage: measured coverage (levels, F).
        band: half-width of the 95 % simultaneous band for the ranks' distribution, per feature.
        truth: the features of the truth (M, F).
        samples: the features of the samples (M, N, F).
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
        """Largest gap between the ranks' distribution and the uniform one, per feature (F,)."""
        position = ((self.ranks + 0.5) / (self.num_samples + 1)).sort(dim=0).values
        count = len(position)
        upper = torch.arange(1, count + 1, dtype=torch.float64)[:, None] / count
        return torch.maximum((upper - position).abs(), (upper - 1 / count - position).abs()).amax(0)

    @property
    def calibrated(self) -> bool:
        """Whether every feature's ranks stay within the band (Bonferroni is not applied: a strict test)."""
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
    """Simulation-based calibration of a sampler.

    Args:
        sampler: the sampler to judge.
        truth: M images drawn from the sampler's own prior (M, C, *spatial).
        problem: their simulated measurements, M items.
        features: maps images (R, C, *spatial) to scalars (R, F), e.g. some pixels and averages.
        num_samples: N posterior samples an observation; N + 1 should divide well into histogram bins.
        levels: nominal levels of the credible intervals.
        seed: of the sampler.
        batch_size: rows at a time.
        progress: show a bar with the time left.
    """
    posterior = sampler.sample(problem, num_samples, seed=seed, batch_size=batch_size, progress=progress)
    assert posterior.samples is not None
    flat = features(posterior.samples.flatten(0, 1))
    samples = flat.reshape(len(truth), num_samples, -1)
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
