"""Certification of a sampler: images are measured by simulation, restored, and compared with samples."""

from __future__ import annotations

__all__ = ["Evidence", "Example", "certify"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..evaluation import (
    Correction,
    fit_statistics,
    interval_misses,
    rank_histogram,
    ranks,
    tarp_ranks,
    uniformity_p_value,
)
from ..intervals import central_interval
from ..operators.families import OperatorFamily
from ..problem import InverseProblem
from ..training.scores import simulate_family
from .restorer import Restorer

_EXAMPLES = 3


@dataclass(frozen=True, eq=False)
class Example:
    """One of the images, for the page.

    Attributes:
        problem: Inverse problem, one item.
        truth: True image (C, *spatial).
        samples: Samples (N, C, *spatial).
    """

    problem: InverseProblem
    truth: Tensor
    samples: Tensor

    def interval(self, level: float, scale: float) -> tuple[Tensor, Tensor]:
        """Return the interval of every pixel, (C, *spatial) each."""
        lower, upper = central_interval(self.samples[None], level, scale)
        return lower[0], upper[0]


@dataclass(eq=False)
class Evidence:
    """What was measured on images, one after another.

    Attributes:
        levels: Levels of the intervals.
        samples: Number N of samples per image.
        misses: Shares of missed pixels (B, scales) of every batch, by level.
        statistics: Fit statistics (B, K) of every batch.
        histograms: Shares of the ranks of all pixels (N + 1,) of every image.
        features: Ranks (B, F) of features of every batch.
        examples: First images.
    """

    levels: tuple[float, ...]
    samples: int
    misses: dict[float, list[Tensor]] = field(default_factory=dict)
    statistics: list[Tensor] = field(default_factory=list)
    histograms: list[Tensor] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)

    def add(self, problem: InverseProblem, samples: Tensor, truth: Tensor, references: Tensor) -> None:
        """Add a batch of images (B, C, *spatial) with their samples, and reference images for TARP."""
        for level in self.levels:
            self.misses.setdefault(level, []).append(interval_misses(samples, truth, level))
        for own, target in zip(samples, truth, strict=True):
            found = ranks(target.flatten(), own.flatten(1).T)
            self.histograms.append(rank_histogram(found, self.samples).cpu())
        drawn = _features(samples.flatten(0, 1)).reshape(*samples.shape[:2], -1)
        by_feature = ranks(_features(truth), drawn)
        tarp = tarp_ranks(truth, samples, references)
        self.features.append(torch.cat([by_feature, tarp[:, None]], dim=1).cpu())
        for row in range(min(len(truth), _EXAMPLES - len(self.examples))):
            self.examples.append(Example(problem[row].to("cpu"), truth[row].cpu(), samples[row].cpu()))

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """Coverage and correction of every level."""
        return tuple(Correction.fit(torch.cat(self.misses[level]), level) for level in self.levels)

    @property
    def histogram(self) -> tuple[float, ...]:
        """Shares of the ranks of all pixels and images."""
        return tuple(torch.stack(self.histograms).mean(0).tolist())

    @property
    def p_values(self) -> dict[str, float]:
        """Tests that the ranks of each feature are uniform."""
        found = uniformity_p_value(torch.cat(self.features), self.samples)
        return dict(zip((*_FEATURES, "TARP"), found.tolist(), strict=True))


_FEATURES = ("mean of the image", "mean of the centre", "one pixel at the centre")


def _features(images: Tensor) -> Tensor:
    """Return scalar features (R, 3) of images (R, C, *spatial)."""
    centre, pixel = images, images
    for axis in range(2, images.ndim):
        side = images.shape[axis]
        centre = centre.narrow(axis, side // 4, max(side // 2, 1))
        pixel = pixel.narrow(axis, side // 2, 1)
    return torch.stack(
        [images.flatten(1).mean(1), centre.flatten(1).mean(1), pixel.flatten(1)[:, 0]], dim=1
    ).double()


def certify(
    restorer: Restorer,
    images: Tensor,
    family: OperatorFamily,
    noise: tuple[float, float],
    samples: int = 19,
    levels: Sequence[float] = (0.5, 0.8, 0.9),
    seed: int = 0,
    batch_size: int = 19,
    device: str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Evidence:
    """Measure, restore and compare images.

    Args:
        restorer: Models and settings.
        images: True images (M, C, *spatial), of the prior's own size.
        family: Distribution of the operators.
        noise: Lowest and highest standard deviation of the noise, drawn log-uniformly.
        samples: Number of samples per image.
        levels: Levels of the intervals.
        seed: Seed of operators, noise and sampler.
        batch_size: Samples per batch.
        device: Device of the computation.
        progress: Function called with the number of new denoiser evaluations.
    """
    evidence = Evidence(tuple(levels), samples)
    counted = replace(restorer, progress=progress)
    references = images.roll(1, 0)
    for item, truth in enumerate(images[:, None].to(device)):
        problem = simulate_family(truth, [item], family, noise, seed)
        drawn = counted.restore(problem, samples, seed=seed, items=[item], batch_size=batch_size).samples
        assert drawn is not None
        evidence.add(problem, drawn, truth, references[item : item + 1].to(device))
        evidence.statistics.append(fit_statistics(problem, drawn, restorer.prior))
    return evidence
