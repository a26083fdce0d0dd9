"""Noise of a measured file, estimated where the measurement shows it.

White noise is added to the measurement, so it is estimated from the measurement itself if that is an image:
denoising, inpainting (known pixels only), block means, blurs, and operators of your own. Clipped exposure,
JPEG and Fourier magnitudes change the noise, and so does lossy compression of the file. The noise must be
given there, except for what undoes the compression of a JPEG file: such a file has no noise but its rounding,
and a small value is the default.
"""

from __future__ import annotations

__all__ = ["NoiseEstimate", "UnknownNoise", "estimated_noise"]

import math
from dataclasses import dataclass

from torch import Tensor

from ..io.image import ImageFile
from ..operators import JPEG, HDRClip, Mask, Operator, PhaseRetrieval
from .noise_estimate import estimate_noise

_ROUNDING = 2.0 / 255.0 / math.sqrt(12.0)  # noise of rounding to 8 bits, the smallest estimate
_LOSSY = ("JPEG", "WEBP")
_OF_JPEG_FILES = 0.01  # hardly visible; larger than the rounding of pixels to 8 bits


class UnknownNoise(ValueError):  # noqa: N818 - public name
    """The noise cannot be estimated, and must be given.

    Attributes:
        reason: Reason, without the remedy.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}: give its standard deviation, such as --noise 0.05")


@dataclass(frozen=True)
class NoiseEstimate:
    """Standard deviation of the noise, where it was not given.

    Attributes:
        std: Standard deviation, black -1 and white +1, to three digits.
        uncertainty: Standard error of the estimate; None for a default.
    """

    std: float
    uncertainty: float | None

    def __str__(self) -> str:
        if self.uncertainty is None:
            return f"{self.std:g}, the default for JPEG files"
        return f"{self.std:g} +- {self.uncertainty:.1g}, estimated"


def estimated_noise(task: str, y: Tensor, image: ImageFile | None, operator: Operator) -> NoiseEstimate:
    """Estimate the noise of a measurement; that of JPEG files under the operator JPEG has a default.

    Args:
        task: Name of the operator, for the error.
        y: Measurement (C, H, W).
        image: File of the measurement; None if it holds other numbers than pixels.
        operator: Operator of the measurement.

    Raises:
        UnknownNoise: The noise cannot be estimated, and must be given.
    """
    if isinstance(operator, JPEG) and image is not None and image.format == "JPEG":
        return NoiseEstimate(_OF_JPEG_FILES, None)
    if isinstance(operator, JPEG | HDRClip | PhaseRetrieval):
        raise UnknownNoise(f"the noise is not visible in measurements of {task}")
    if image is None or y.ndim != 3:
        raise UnknownNoise("the noise of a measurement that is no image cannot be estimated")
    if image.format in _LOSSY:
        raise UnknownNoise(f"{image.format} compression removes the noise that an estimate needs")
    known = None
    if isinstance(operator, Mask):
        known = operator.mask.reshape(-1, *operator.mask.shape[-2:])
    try:
        std, uncertainty = estimate_noise(y, known)
    except ValueError as error:
        raise UnknownNoise(str(error)) from error
    std, uncertainty = max(std, _ROUNDING), max(uncertainty, _ROUNDING / 10)
    return NoiseEstimate(float(f"{std:.3g}"), float(f"{uncertainty:.3g}"))
