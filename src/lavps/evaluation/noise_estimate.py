r"""Noise level of an image, estimated from the image alone.

For white noise of standard deviation :math:`\sigma`, the diagonal detail coefficients :math:`d` of an
orthonormal wavelet have standard deviation :math:`\sigma`, and smooth images contribute little to them:

.. math:: \hat\sigma = \operatorname{median} |d| / 0.6745

Of colour images, the two colour differences of an orthonormal transform are used: their noise is the same,
and images have less detail there than in luminance. Of other images, the wavelet is replaced by third
differences, which have one more vanishing moment. Values that were clipped have less noise, so coefficients
within :math:`1.5 \hat\sigma` of black or white are left out.

Limitations: fine texture counts as noise, so the estimate is an upper bound for detailed images. Lossy
compression and interpolation remove fine noise, and make the estimate too small.

References:
    - Donoho and Johnstone, Ideal spatial adaptation by wavelet shrinkage, Biometrika 81 (1994).
    - Daubechies, Orthonormal bases of compactly supported wavelets, 1988 (the filter with four values).
"""

from __future__ import annotations

__all__ = ["estimate_noise"]

import math

import torch
from torch import Tensor
from torch.nn import functional

_MEDIAN = 0.6744897501960817  # median of the absolute value of a standard normal variable
_MAD_ERROR = 1.1664  # standard error of the estimate for one coefficient, in units of the noise
_MOST = 1 << 18  # pixels above which positions are skipped, evenly
_LEAST = 64  # coefficients below which no estimate is returned
_ROUNDS = 5  # repetitions of estimate and choice of coefficients
_MARGIN = 1.5  # distance from black and white, in units of the noise
_TEXTURE = 0.4  # colour detail of photographs relative to luminance detail, 0.37 to 0.44 on examples/truth
_THIRD = (math.sqrt(0.05), -3 * math.sqrt(0.05), 3 * math.sqrt(0.05), -math.sqrt(0.05))
_DB2 = (-0.12940952255126037, -0.2241438680420134, 0.8365163037378079, -0.48296291314453416)
_HAAR = (math.sqrt(0.5), -math.sqrt(0.5))
_COLOUR = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))  # luminance and two differences


@torch.no_grad()
def estimate_noise(image: Tensor, known: Tensor | None = None) -> tuple[float, float]:
    """Estimate the standard deviation of white noise in an image, and the uncertainty of the estimate.

    Args:
        image: Pixels (C, H, W), black -1 and white +1. Values beyond the range mean that none was clipped.
        known: Mask (1 or C, H, W) of the pixels to use, true or 1 where they are known; default all.

    Returns:
        Standard deviation, in the units of the pixels, and its standard error. The error combines that of
        the median and the bias that the image's own detail is likely to cause.

    Raises:
        ValueError: Too few pixels are known and not clipped.

    Example:
        >>> noisy = 0.05 * torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(0))
        >>> std, uncertainty = estimate_noise(noisy)
        >>> abs(std - 0.05) < 0.003, uncertainty < 0.003
        (True, True)
    """
    if image.ndim != 3:
        raise ValueError(f"the noise of an image (C, H, W) is estimated, got shape {tuple(image.shape)}")
    image = image.float()
    if len(image) == 3 and bool((image == image[:1]).all()):
        image = image[:1]  # grey, saved as colour
    usable = torch.ones_like(image[:1])
    if known is not None:
        usable = (known > 0).expand(len(known), *image.shape[1:]).all(0, keepdim=True).float()
    if len(image) == 3:
        attempts = [(_DB2, True), (_THIRD, False), (_HAAR, True), (_HAAR, False)]
    else:
        attempts = [(_THIRD, False), (_HAAR, False)]
    for wavelet, colour in attempts:
        if (found := _estimate(image, usable, wavelet, colour)) is not None:
            return found
    raise ValueError("too few pixels are known and not clipped for an estimate of the noise")


def _estimate(
    image: Tensor, usable: Tensor, wavelet: tuple[float, ...], colour: bool
) -> tuple[float, float] | None:
    """Return estimate and uncertainty with one filter; None if there are too few coefficients.

    Args:
        image: Pixels (C, H, W).
        usable: Mask (1, H, W), 1 where a pixel is used.
        wavelet: Filter along both axes, of norm 1.
        colour: Whether colour differences are used, instead of all channels.
    """
    size = len(wavelet)
    if min(image.shape[1:]) < size:
        return None
    stride = max(math.isqrt(math.prod(image.shape[1:]) // _MOST), 1)
    detail = _detail(image, wavelet, stride)
    level = functional.avg_pool2d(image, size, stride).abs()
    if colour:
        rotation = functional.normalize(image.new_tensor(_COLOUR), dim=1)
        brightness, *differences = torch.einsum("ij,jhw->ihw", rotation, detail)
        detail = torch.stack(differences)
        level = level.amax(0, keepdim=True)
    complete = (functional.avg_pool2d(usable, size, stride) > 1 - 1e-4).expand_as(detail)
    clipped = bool(image.abs().max() <= 1.0)
    chosen, std = complete, 0.0
    for _ in range(_ROUNDS):
        if int(chosen.sum()) < _LEAST:
            return None
        used, std = chosen, _scale(detail[chosen])
        chosen = complete & (level < 1.0 - _MARGIN * std) if clipped else complete
    # Coefficients of overlapping windows are correlated: about one in two counts.
    error = _MAD_ERROR * std / math.sqrt(int(used.sum()) / 2)
    if colour:
        excess = max(_scale(brightness[used[0]]) ** 2 - std**2, 0.0)
        texture = min(math.sqrt(excess), _TEXTURE**2 * excess / (2.0 * std + 1e-9))
    else:  # detail differs between filters, noise does not
        texture = abs(_scale(_detail(image, _DB2, stride)[used]) - std) if size == len(_DB2) else 0.0
    return std, math.hypot(error, texture)


def _detail(image: Tensor, wavelet: tuple[float, ...], stride: int) -> Tensor:
    """Return the diagonal detail coefficients at every position, or at every second, third, ..."""
    along = image.new_tensor(wavelet)
    return functional.conv2d(image[:, None], torch.outer(along, along)[None, None], stride=stride)[:, 0]


def _scale(detail: Tensor) -> float:
    return float(detail.abs().median()) / _MEDIAN
