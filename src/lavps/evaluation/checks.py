"""Checks of restored samples, beside the misfit: typicality, and health of the sampler.

The misfit shows whether a sample explains the measurement. It shows neither speckle nor invention.
"""

from __future__ import annotations

__all__ = ["health", "typicality"]

import torch
from torch import Tensor

from ..priors import Prior
from .typicality import TypicalityReference

_SIDE = 3  # windows along each axis of a large image
_BEYOND, _MOST_BEYOND = 1.25, 0.02  # value that a pixel seldom exceeds, and how seldom


def typicality(
    prior: Prior, reference: TypicalityReference | None, sample: Tensor, shape: tuple[int, ...] | None
) -> str:
    """Compare a sample with the images of a prior, in words.

    Args:
        prior: Denoiser of images of this shape.
        reference: Reference of the prior.
        sample: Image (C, H, W) on the prior's device.
        shape: Shape of the prior's images.
    """
    if reference is None or shape is None:
        return "not known for this prior (lavps train reference measures it)"
    windows = _windows(sample, shape)
    if windows is None:
        return "not known for images smaller than those of the prior"
    found = reference.describe(reference.distances(prior, windows))
    if not found.startswith("unlike"):
        return found
    return (
        f"{found}: do not rely on detail that the measurement does not show. With few evaluations try more; "
        "else give a prior of such images, such as --prior photos64 for photographs"
    )


def _windows(sample: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """Return windows (N, C, H, W) of the prior's size on a regular grid; None if the image is too small."""
    if any(side < own for side, own in zip(sample.shape, shape, strict=True)):
        return None
    starts = [
        sorted({round(i * (side - own) / (_SIDE - 1)) for i in range(_SIDE)})
        for side, own in zip(sample.shape[1:], shape[1:], strict=True)
    ]
    height, width = shape[1:]
    return torch.stack([sample[:, a : a + height, b : b + width] for a in starts[0] for b in starts[1]])


def health(samples: Tensor) -> str:
    """Return whether samples (N, C, H, W) are finite and within the range of pixels, in words."""
    if not bool(samples.isfinite().all()):
        return "not finite: the sampler has diverged. Check --noise and the task"
    if (share := float((samples.abs() > _BEYOND).double().mean())) > _MOST_BEYOND:
        return f"out of range: {share:.0%} of the values are far outside [-1, 1]. Check --noise and the task"
    return "finite, and within the range of pixels"
