"""Measurements of images in a pixel range other than [-1, 1], recognized by their values."""

from __future__ import annotations

__all__ = ["PixelRangeWarning", "check_range", "looks_unit_ranged", "warn_about_range"]

import warnings

import torch
from torch import Tensor

from .base import Operator

_FAR = 10.0  # times the response to white; noisy and diverging values stay below, images in [0, 255] do not
_RESCALED = "lavps.operators.RescaledOperator(operator, {low}, {high})"


class PixelRangeWarning(UserWarning):
    """Warning that measurements may be of images in another pixel range."""


def _white(operator: Operator, y: Tensor) -> Tensor | None:
    """Return A(1) of a linear operator without negative weights; None for others."""
    if not operator.linear or y.is_complex():
        return None
    try:
        with torch.no_grad():
            white = operator(y.new_ones(operator.batch, *operator.input_shape(y.shape[1:])))
    except RuntimeError:  # mixed precisions, which the sampler reports
        return None
    return None if white.is_complex() or bool((white < -1e-6 * white.abs().max()).any()) else white


def looks_unit_ranged(operator: Operator, y: Tensor, std: float) -> bool:
    """Return whether y has no value below mid-grey, which suggests images in [0, 1], not [-1, 1]."""
    if y.is_complex() or bool((y < -4.0 * std).any()) or (white := _white(operator, y)) is None:
        return False
    hidden = 4.0 * std > 0.5 * float(white.max())  # by the noise
    return not hidden and bool(y.mean() > 0.1 * white.mean())


def warn_about_range(operator: Operator, y: Tensor, std: float, remedy: str, stacklevel: int = 3) -> None:
    """Warn the caller's caller if y suggests images in [0, 1]."""
    if looks_unit_ranged(operator, y, std):
        warnings.warn(
            f"images must be in [-1, 1], but no value of y is below mid-grey: for images in [0, 1], {remedy}",
            PixelRangeWarning,
            stacklevel=stacklevel,
        )


def check_range(operator: Operator, y: Tensor, std: float) -> None:
    """Raise ValueError if measurements y cannot be of images in [-1, 1], and warn if they seem not to be.

    Args:
        operator: Operator A.
        y: Measurements (B, *measurement).
        std: Standard deviation of the noise.
    """
    if not bool(y.isfinite().all()):
        raise ValueError("y contains NaN or infinite values: mark missing values with operators.Mask")
    white = _white(operator, y)
    if white is not None and float(y.abs().max()) > _FAR * (float(white.max()) + std):
        raise ValueError(
            f"images must be in [-1, 1], but y has values from {float(y.min()):.4g} to {float(y.max()):.4g}: "
            f"y / 127.5 - 1 maps [0, 255] to it; or pass {_RESCALED.format(low=0, high=255)}"
        )
    remedy = f"map them to [-1, 1] (2 * x - 1, twice the noise), or pass {_RESCALED.format(low=0, high=1)}"
    warn_about_range(operator, y, std, remedy, stacklevel=4)
