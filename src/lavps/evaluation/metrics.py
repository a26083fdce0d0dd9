r"""Fidelity of restored images, and of posterior samples, one value per image.

With :math:`a, b` two images of pixels in 0..255 and :math:`L = 255`,

.. math::
    \mathrm{PSNR} = 10 \log_{10} \frac{L^2}{\tfrac1n \sum_i (a_i - b_i)^2}, \qquad
    \mathrm{SSIM} = \Big\langle \frac{(2 \mu_a \mu_b + C_1)(2 \sigma_{ab} + C_2)}
        {(\mu_a^2 + \mu_b^2 + C_1)(\sigma_a^2 + \sigma_b^2 + C_2)} \Big\rangle,

where the local moments are weighted by an 11 x 11 Gaussian window of standard deviation 1.5,
:math:`C_k = (K_k L)^2`, :math:`K = (.01, .03)`, and the mean runs over the positions at which the whole
window lies inside the image, then over channels. Samples :math:`x_1, .., x_N` of a pixel whose truth is
:math:`x^*` are scored by the fair continuous ranked probability score

.. math::
    \mathrm{CRPS} = \frac1N \sum_n |x_n - x^*| - \frac{1}{2 N (N - 1)} \sum_{m, n} |x_m - x_n|,

whose expectation does not depend on N and is least where the samples come from the truth's own law.

An image is what a file holds: 8 bits a channel. :class:`ImageBatch` clamps and rounds once, and every metric
of images takes that type, so no two of them can disagree on what was compared.

References:
    - Wang, Bovik, Sheikh and Simoncelli, Image Quality Assessment: From Error Visibility to Structural
      Similarity, 2004.
    - Gneiting and Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, 2007.
    - Ferro, Fair Scores for Ensemble Forecasts, 2014.
"""

from __future__ import annotations

__all__ = ["ImageBatch", "crps", "pixel_coverage", "psnr", "ssim"]

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .calibration import coverage

_PEAK = 255.0
_WINDOW, _WINDOW_STD = 11, 1.5
_C1, _C2 = (0.01 * _PEAK) ** 2, (0.03 * _PEAK) ** 2
_CHUNK = 4  # images at a time: their maps in float64 are what takes memory, and should stay in cache
_FAR_OUTSIDE = 10.0  # a diverged sampler may leave [-1, 1], and is judged; pixels in 0..255 are a mistake


@dataclass(frozen=True, eq=False)
class ImageBatch:
    """Images as files hold them, the only thing image metrics accept.

    Attributes:
        pixels: (B, C, H, W), uint8.
    """

    pixels: Tensor

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise TypeError(
                f"pixels must be uint8 of shape (B, C, H, W), got {self.pixels.dtype} of shape "
                f"{tuple(self.pixels.shape)}; ImageBatch.from_tensor takes images in [-1, 1]"
            )

    @classmethod
    def from_tensor(cls, x: Tensor) -> ImageBatch:
        """Images x (B, C, H, W) in [-1, 1], clamped and rounded to 256 levels."""
        if not x.is_floating_point():
            raise TypeError(
                f"images must be floating point in [-1, 1], got {x.dtype}; 8-bit pixels are images already: "
                "ImageBatch(pixels)"
            )
        if x.isnan().any():
            raise ValueError("NaN is not a pixel: the sampler diverged")
        if x.numel() and float(x.abs().max()) > _FAR_OUTSIDE:
            raise ValueError(
                f"images must be in [-1, 1], got values from {float(x.min()):.4g} to {float(x.max()):.4g}; "
                "x / 127.5 - 1 brings [0, 255] there"
            )
        levels = (x.detach().double() + 1.0) * (_PEAK / 2)
        return cls(levels.clamp(0.0, _PEAK).round().to(torch.uint8))

    def to_tensor(self) -> Tensor:
        """The images in [-1, 1], float32 (B, C, H, W)."""
        return self.pixels.float() / (_PEAK / 2) - 1.0

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, rows: slice | Tensor) -> ImageBatch:
        """The images of these rows, as a batch."""
        return ImageBatch(self.pixels[rows])

    def split(self, size: int) -> Iterator[ImageBatch]:
        """Batches of at most ``size`` images, in order."""
        return (ImageBatch(pixels) for pixels in torch.split(self.pixels, size))

    def check_alike(self, other: ImageBatch) -> None:
        """Refuse a batch that cannot be compared with this one image by image."""
        if self.pixels.shape != other.pixels.shape:
            raise ValueError(
                "images are compared one by one: as many of one shape are needed, got "
                f"{tuple(self.pixels.shape)} and {tuple(other.pixels.shape)}"
            )


def psnr(a: ImageBatch, b: ImageBatch) -> Tensor:
    """Peak signal-to-noise ratio in decibels, (B,) in float64; infinite for equal images."""
    a.check_alike(b)
    errors = [
        (left.pixels.double() - right.pixels.double()).square().flatten(1).mean(1)
        for left, right in zip(a.split(_CHUNK), b.split(_CHUNK), strict=True)
    ]
    return 10.0 * (_PEAK**2 / torch.cat(errors)).log10()


def ssim(a: ImageBatch, b: ImageBatch) -> Tensor:
    """Structural similarity, (B,) in float64: 1 for equal images.

    Args:
        a: images (B, C, H, W), 11 pixels a side at least.
        b: as many of the same shape.
    """
    a.check_alike(b)
    if min(a.pixels.shape[2:]) < _WINDOW:
        raise ValueError(f"SSIM's window has {_WINDOW} pixels a side, the images {tuple(a.pixels.shape[2:])}")
    chunks = zip(a.split(_CHUNK), b.split(_CHUNK), strict=True)
    return torch.cat([_ssim(left.pixels.double(), right.pixels.double()) for left, right in chunks])


def _ssim(a: Tensor, b: Tensor) -> Tensor:
    """SSIM of pixels (B, C, H, W) in 0..255, float64."""
    mean_a, mean_b = _local_mean(a), _local_mean(b)
    square, product = mean_a.square() + mean_b.square(), mean_a * mean_b
    variances = _local_mean(a * a + b * b) - square
    covariance = _local_mean(a * b) - product
    similarity = (2.0 * product + _C1) * (2.0 * covariance + _C2) / ((square + _C1) * (variances + _C2))
    return similarity.flatten(1).mean(1)


def _local_mean(x: Tensor) -> Tensor:
    """Gaussian-weighted means (B, C, H - 10, W - 10) of x (B, C, H, W).

    Axis by axis as a sum of shifted images: torch's convolution in float64 is several times slower.
    """
    weights = [math.exp(-0.5 * ((k - _WINDOW // 2) / _WINDOW_STD) ** 2) for k in range(_WINDOW)]
    for axis in (2, 3):
        length = x.shape[axis] - _WINDOW + 1
        total = torch.zeros_like(x.narrow(axis, 0, length))
        for shift, weight in enumerate(weights):
            total.add_(x.narrow(axis, shift, length), alpha=weight / sum(weights))
        x = total
    return x


def crps(samples: Tensor, truth: Tensor) -> Tensor:
    r"""Fair continuous ranked probability score, averaged over pixels; lower is better.

    The double sum over pairs is found from sorted samples:
    :math:`\sum_{m, n} |x_m - x_n| = 2 \sum_n (2 n - N - 1) x_{(n)}`, in O(N log N).

    Args:
        samples: posterior samples (B, N, C, *spatial), N at least 2.
        truth: (B, C, *spatial), in the same units.

    Returns:
        (B,) in float64, in the units of a pixel. Being unbiased it may be negative for one image.
    """
    _check_samples(samples, truth)
    count = samples.shape[1]
    if count < 2:
        raise ValueError("one sample has no spread to judge: the fair CRPS needs two at least")
    weights = 2.0 * torch.arange(1, count + 1, dtype=torch.float64, device=samples.device) - count - 1.0
    scores = []
    for drawn, target in zip(samples.double().flatten(2), truth.double().flatten(1), strict=True):
        error = (drawn - target).abs().mean()
        half_spread = (weights @ drawn.sort(dim=0).values).mean() / (count * (count - 1))
        scores.append(error - half_spread)
    return torch.stack(scores)


def pixel_coverage(samples: Tensor, truth: Tensor, levels: Sequence[float]) -> Tensor:
    """Share of an image's pixels inside their central credible interval, for every level.

    For a calibrated sampler the average over images tends to the level; one image, whose pixels err
    together, may be far from it. The intervals are those of :func:`~lavps.evaluation.coverage`.

    Args:
        samples: posterior samples (B, N, C, *spatial).
        truth: (B, C, *spatial).
        levels: nominal levels in (0, 1).

    Returns:
        (B, levels) in float64.
    """
    _check_samples(samples, truth)
    shares = [
        coverage(target.flatten(), drawn.flatten(1).T, levels)
        for drawn, target in zip(samples, truth, strict=True)
    ]
    return torch.stack(shares)


def _check_samples(samples: Tensor, truth: Tensor) -> None:
    if samples.ndim != truth.ndim + 1 or samples.shape[:1] + samples.shape[2:] != truth.shape:
        raise ValueError(
            f"samples (B, N, C, *spatial) of truths (B, C, *spatial) are needed, got {tuple(samples.shape)} "
            f"and {tuple(truth.shape)}"
        )
