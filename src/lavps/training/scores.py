r"""Scores of samples against the true images, for training through a sampler.

Images are measured with operators and noise levels drawn at random, and two samples are drawn for each. For
samples :math:`x^1, x^2` of the true image :math:`x` the score is

.. math:: \tfrac12 (|x - x^1| + |x - x^2|) - \tfrac12 |x^1 - x^2|,

as the mean over pixels (CRPS) plus the mean over patches of 8 x 8 pixels (energy score, with the root mean
square of a patch as its norm). The CRPS alone does not depend on the correlation of pixels. Neither is
sensitive to the fit of the measurement, so the squared logarithm of chi-square is added, with a small weight.
A perceptual distance, such as LPIPS, can be added as the mean over both samples: it is not a proper score,
and favours sharpness.

References:
    - Gneiting and Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, 2007.
"""

from __future__ import annotations

__all__ = ["sample_score", "score_of", "simulate_family"]

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor

from ..noise import GaussianNoise
from ..operators.families import OperatorFamily
from ..problem import InverseProblem
from ..random import NoiseStreams, Purpose

_PATCH = 8
_MISFIT_WEIGHT = 0.02


def sample_score(samples: Tensor, truth: Tensor) -> Tensor:
    """Return the score of two samples of each image, differentiable, shape (B,); lower is better.

    Args:
        samples: Samples (B, 2, C, H, W).
        truth: True images (B, C, H, W).
    """

    def size(difference: Tensor) -> Tensor:
        pixels = difference.abs().flatten(1).mean(1)
        mean_square = F.avg_pool2d(difference.square().mean(1, keepdim=True), min(_PATCH, *truth.shape[2:]))
        return pixels + (mean_square + 1e-12).sqrt().flatten(1).mean(1)

    first, second = samples[:, 0], samples[:, 1]
    return 0.5 * (size(first - truth) + size(second - truth)) - 0.5 * size(first - second)


def score_of(
    x: Tensor,
    truth: Tensor,
    problem: InverseProblem,
    perceptual: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the loss of two samples of each image, differentiable, shape (B,).

    Args:
        x: Samples (2 B, C, H, W), the two of an image in succession.
        truth: True images (B, C, H, W).
        problem: Measurements of the samples, 2 B rows.
        perceptual: Differentiable distance of two batches of images, added to the score.
    """
    samples = x.reshape(len(truth), 2, *truth.shape[1:])
    chi_square = problem.chi_square(x).reshape(-1, 2).mean(1)
    score = sample_score(samples, truth) + _MISFIT_WEIGHT * chi_square.clamp(min=1e-6).log().square()
    if perceptual is None:
        return score
    distances = perceptual(x, truth.repeat_interleave(2, dim=0))
    return score + distances.reshape(-1, 2).mean(1).to(score)


def simulate_family(
    truth: Tensor, items: Sequence[int], family: OperatorFamily, noise: tuple[float, float], seed: int
) -> InverseProblem:
    """Measure images with an operator and a noise level of their own, functions of (seed, item)."""
    low, high = noise
    shares = NoiseStreams.from_seed(len(truth), seed, items).uniform(Purpose.MEASUREMENT, step=1)
    stds = (low * (high / low) ** shares).to(truth)
    operator = family.draw(items, tuple(truth.shape[1:]), seed).to(truth.device)
    model = GaussianNoise(stds if high > low else float(low))
    return InverseProblem.simulate(truth, operator, model, seed, items)
