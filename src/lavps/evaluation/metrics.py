r"""Fidelity of restored images and of posterior samples, one value per image.

With :math:`a, b` two images of pixels in 0..255 and :math:`L = 255`,

.. math::
    \mathrm{PSNR} = 10 \log_{10} \frac{L^2}{\tfrac1n \sum_i (a_i - b_i)^2}, \qquad
    \mathrm{SSIM} = \Big\langle \frac{(2 \mu_a \mu_b + C_1)(2 \sigma_{ab} + C_2)}
        {(\mu_a^2 + \mu_b^2 + C_1)(\sigma_a^2 + \sigma_b^2 + C_2)} \Big\rangle,

where the local moments are weighted by an 11 x 11 Gaussian window of standard deviation 1.5,
:math:`C_k = (K_k L)^2`, :math:`K = (0.01, 0.03)`, and the mean is over channels and over the positions at
which the whole window lies inside the image. Samples :math:`x_1, .., x_N` of a pixel with true value
:math:`x^*` are scored by the fair continuous ranked probability score

.. math::
    \mathrm{CRPS} = \frac1N \sum_n |x_n - x^*| - \frac{1}{2 N (N - 1)} \sum_{m, n} |x_m - x_n|,

whose expectation does not depend on N and is minimal if the samples have the distribution of the truth. The
energy score is the same with whole images and :math:`|x| = (\tfrac1n \sum_i x_i^2)^{1/2}`; it also depends
on the correlation of pixels.

Images are compared as stored in a file, with 8 bits per channel. :class:`ImageBatch` clamps and rounds once.
Every image metric takes that type, or tensors in [-1, 1], which it converts.

References:
    - Wang, Bovik, Sheikh and Simoncelli, Image Quality Assessment: From Error Visibility to Structural
      Similarity, 2004.
    - Gneiting and Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, 2007.
    - Ferro, Fair Scores for Ensemble Forecasts, 2014.
"""

from __future__ import annotations

__all__ = ["ImageBatch", "Images", "crps", "energy_score", "pixel_coverage", "psnr", "ssim"]

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..operators.pixel_range import PixelRangeWarning
from .calibration import coverage

_PEAK = 255.0
_WINDOW, _WINDOW_STD = 11, 1.5
_C1, _C2 = (0.01 * _PEAK) ** 2, (0.03 * _PEAK) ** 2
_CHUNK = 4  # images at a time, so that their float64 maps stay in cache
_FAR_OUTSIDE = 10.0  # samples of a diverged sampler are accepted; pixels in 0..255 are an error


@dataclass(frozen=True, eq=False)
class ImageBatch:
    """8-bit images, the input of all image metrics.

    Attributes:
        pixels: Pixels, (B, C, H, W), uint8.

    Example:
        >>> ImageBatch.from_tensor(torch.tensor([-1.0, 0.2, 1.5]).reshape(1, 1, 1, 3)).pixels.flatten()
        tensor([  0, 153, 255], dtype=torch.uint8)
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
        """Clamp images x (B, C, H, W) to [-1, 1] and round them to 256 levels."""
        if not x.is_floating_point():
            raise TypeError(
                f"images must be floating point in [-1, 1], got {x.dtype}; for 8-bit pixels use "
                "ImageBatch(pixels)"
            )
        if x.isnan().any():
            raise ValueError("images contain NaN: the sampler diverged")
        if x.numel() and float(x.abs().max()) > _FAR_OUTSIDE:
            raise ValueError(
                f"images must be in [-1, 1], got values from {float(x.min()):.4g} to {float(x.max()):.4g}; "
                "x / 127.5 - 1 maps [0, 255] to it"
            )
        levels = (x.detach().double() + 1.0) * (_PEAK / 2)
        return cls(levels.clamp(0.0, _PEAK).round().to(torch.uint8))

    def to_tensor(self) -> Tensor:
        """Return the images in [-1, 1], (B, C, H, W) in float32."""
        return self.pixels.float() / (_PEAK / 2) - 1.0

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, rows: slice | Tensor) -> ImageBatch:
        """Return the images of these rows as a batch."""
        return ImageBatch(self.pixels[rows])

    def split(self, size: int) -> Iterator[ImageBatch]:
        """Yield batches of at most ``size`` images, in order."""
        return (ImageBatch(pixels) for pixels in torch.split(self.pixels, size))

    @classmethod
    def pair(cls, a: Images, b: Images) -> tuple[ImageBatch, ImageBatch]:
        """Return two batches of one shape from batches or tensors (B, C, H, W) or (C, H, W) in [-1, 1].

        Warns:
            PixelRangeWarning: Both are tensors in [0, 1].
        """
        given = [x for x in (a, b) if isinstance(x, Tensor) and x.is_floating_point() and x.numel()]
        if len(given) == 2 and all(0.0 <= float(x.min()) < float(x.max()) <= 1.0 for x in given):
            warnings.warn(
                "images must be in [-1, 1], and these have no value below 0: 2 * x - 1 maps [0, 1] to it",
                PixelRangeWarning,
                stacklevel=3,
            )
        a, b = (
            cls.from_tensor(x[None] if x.ndim == 3 else x) if isinstance(x, Tensor) else x for x in (a, b)
        )
        a.check_alike(b)
        return a, b

    def check_alike(self, other: ImageBatch) -> None:
        """Raise ValueError unless the other batch has the same shape."""
        if self.pixels.shape != other.pixels.shape:
            raise ValueError(
                "images are compared one by one: both batches must have one shape, got "
                f"{tuple(self.pixels.shape)} and {tuple(other.pixels.shape)}"
            )


Images = ImageBatch | Tensor


def psnr(a: Images, b: Images) -> Tensor:
    """Return the peak signal-to-noise ratio in decibels, (B,) in float64; infinite for equal images.

    Args:
        a: Images (B, C, H, W), an :class:`ImageBatch` or a tensor in [-1, 1].
        b: Images of the same shape.

    Example:
        >>> black, grey = (ImageBatch(torch.full((1, 3, 16, 16), v, dtype=torch.uint8)) for v in (0, 51))
        >>> round(float(psnr(black, grey)), 2)
        13.98
        >>> psnr(torch.zeros(1, 3, 16, 16), torch.full((1, 3, 16, 16), -0.4)).shape
        torch.Size([1])
    """
    a, b = ImageBatch.pair(a, b)
    errors = [
        (left.pixels.double() - right.pixels.double()).square().flatten(1).mean(1)
        for left, right in zip(a.split(_CHUNK), b.split(_CHUNK), strict=True)
    ]
    return 10.0 * (_PEAK**2 / torch.cat(errors)).log10()


def ssim(a: Images, b: Images) -> Tensor:
    """Return the structural similarity, (B,) in float64; 1 for equal images.

    Args:
        a: Images (B, C, H, W) of at least 11 pixels per side, an :class:`ImageBatch` or a tensor in [-1, 1].
        b: Images of the same shape.
    """
    a, b = ImageBatch.pair(a, b)
    if min(a.pixels.shape[2:]) < _WINDOW:
        raise ValueError(f"SSIM needs at least {_WINDOW} pixels per side, got {tuple(a.pixels.shape[2:])}")
    chunks = zip(a.split(_CHUNK), b.split(_CHUNK), strict=True)
    return torch.cat([_ssim(left.pixels.double(), right.pixels.double()) for left, right in chunks])


def _ssim(a: Tensor, b: Tensor) -> Tensor:
    mean_a, mean_b = _local_mean(a), _local_mean(b)
    square, product = mean_a.square() + mean_b.square(), mean_a * mean_b
    variances = _local_mean(a * a + b * b) - square
    covariance = _local_mean(a * b) - product
    similarity = (2.0 * product + _C1) * (2.0 * covariance + _C2) / ((square + _C1) * (variances + _C2))
    return similarity.flatten(1).mean(1)


def _local_mean(x: Tensor) -> Tensor:
    """Return Gaussian-weighted means (B, C, H - 10, W - 10) of x (B, C, H, W).

    Shifted images are summed axis by axis: a float64 convolution of PyTorch is several times slower.
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
    r"""Return the fair continuous ranked probability score, averaged over pixels; lower is better.

    The double sum over pairs is computed from sorted samples:
    :math:`\sum_{m, n} |x_m - x_n| = 2 \sum_n (2 n - N - 1) x_{(n)}`, in O(N log N).

    Args:
        samples: Posterior samples (B, N, C, *spatial), N at least 2.
        truth: True images (B, C, *spatial), in the same units.

    Returns:
        Scores (B,) in float64, in the units of a pixel. They are unbiased, so single scores may be negative.

    Example:
        >>> crps(torch.tensor([[[0.0], [1.0]]]), torch.tensor([[3.0]]))  # 2.5 - 1 / 2
        tensor([2.], dtype=torch.float64)
    """
    _check_samples(samples, truth, fewest=2)
    count = samples.shape[1]
    weights = 2.0 * torch.arange(1, count + 1, dtype=torch.float64, device=samples.device) - count - 1.0
    scores = []
    for drawn, target in zip(samples.double().flatten(2), truth.double().flatten(1), strict=True):
        error = (drawn - target).abs().mean()
        scores.append(error - (weights @ drawn.sort(dim=0).values).mean() / (count * (count - 1)))
    return torch.stack(scores)


def energy_score(samples: Tensor, truth: Tensor) -> Tensor:
    """Return the fair energy score of whole images; lower is better.

    Distances are root mean square differences of pixels. Unlike :func:`crps`, the score depends on the
    correlation of pixels.

    Args:
        samples: Posterior samples (B, N, C, *spatial), N at least 2.
        truth: True images (B, C, *spatial), in the same units.

    Returns:
        Scores (B,) in float64, in the units of a pixel. They are unbiased, so single scores may be negative.

    Example:
        >>> energy_score(torch.tensor([[[0.0], [1.0]]]), torch.tensor([[3.0]]))  # of one pixel: the CRPS
        tensor([2.], dtype=torch.float64)
    """
    _check_samples(samples, truth, fewest=2)
    scores = []
    for drawn, target in zip(samples.double().flatten(2), truth.double().flatten(1), strict=True):
        error = torch.linalg.vector_norm(drawn - target, dim=1).mean()
        pairs = torch.nn.functional.pdist(drawn).mean()  # of all m < n
        scores.append((error - 0.5 * pairs) / math.sqrt(max(len(target), 1)))
    return torch.stack(scores)


def pixel_coverage(samples: Tensor, truth: Tensor, levels: Sequence[float]) -> Tensor:
    """Return the share of an image's pixels inside their central credible interval, (B, levels) in float64.

    For a calibrated sampler the average over images tends to the level. The share of one image may be far
    from it, since errors of pixels are correlated. :func:`~lavps.evaluation.coverage` defines the intervals.

    Args:
        samples: Posterior samples (B, N, C, *spatial).
        truth: True images (B, C, *spatial).
        levels: Nominal levels in (0, 1).
    """
    _check_samples(samples, truth)
    shares = [
        coverage(target.flatten(), drawn.flatten(1).T, levels)
        for drawn, target in zip(samples, truth, strict=True)
    ]
    return torch.stack(shares)


def _check_samples(samples: Tensor, truth: Tensor, fewest: int = 1) -> None:
    if samples.ndim != truth.ndim + 1 or samples.shape[:1] + samples.shape[2:] != truth.shape:
        raise ValueError(
            f"samples must be (B, N, C, *spatial) and truths (B, C, *spatial), got {tuple(samples.shape)} "
            f"and {tuple(truth.shape)}"
        )
    if samples.shape[1] < fewest:
        raise ValueError(f"a fair score needs at least two samples per image, got {samples.shape[1]}")
