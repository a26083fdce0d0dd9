"""Operators from functions and from physics of deepinv; measurements with their batch axis."""

from __future__ import annotations

__all__ = ["as_operator", "check_measurement", "with_batch_axis"]

from collections.abc import Callable, Sequence

from torch import Tensor

from .base import CallableOperator, Operator
from .interop import PhysicsOperator, is_physics


def as_operator(
    operator: Operator | Callable[[Tensor], Tensor],
    in_shape: Sequence[int] | None = None,
    complex_measurement: bool = False,
) -> Operator:
    """Convert a deepinv physics or a plain function to an operator; return operators unchanged.

    A plain function is treated as nonlinear, which is always safe for guidance. To declare it linear, wrap it
    in :class:`CallableOperator`.

    Args:
        operator: Operator, deepinv physics or function of images (B, C, *spatial).
        in_shape: Image shape (C, *spatial); required for a plain function.
        complex_measurement: Whether a physics with two real channels is to return complex measurements.

    Example:
        >>> import torch
        >>> as_operator(torch.exp, in_shape=(3, 64, 64)).linear
        False
    """
    if isinstance(operator, Operator):
        return operator
    if is_physics(operator):
        return PhysicsOperator(operator, in_shape, complex_measurement=complex_measurement)
    if not callable(operator):
        raise TypeError(f"an operator must be an Operator or a callable, got {type(operator).__name__}")
    if in_shape is None:
        raise ValueError(
            "the image shape of a plain function is unknown: pass in_shape=(C, *spatial), "
            "or wrap it: CallableOperator(function, in_shape=(3, 64, 64), linear=True)"
        )
    return CallableOperator(operator, in_shape, linear=False)


def check_measurement(y: Tensor) -> None:
    """Raise TypeError unless y is a tensor of real or complex numbers."""
    if not isinstance(y, Tensor):
        raise TypeError(f"measurements must be a tensor, got {type(y).__name__}: use torch.as_tensor(y)")
    if not (y.is_floating_point() or y.is_complex()):
        raise TypeError(
            f"measurements must be floating point, got {y.dtype}. 8-bit images: y = image / 127.5 - 1 "
            "maps [0, 255] to [-1, 1], the range of every prior"
        )


def with_batch_axis(y: Tensor, operator: Operator, image_ndim: int | None = None) -> Tensor:
    """Return y with a batch axis: added if y can only be one measurement, without a batch.

    That is so if the operator fixes the number of axes of a measurement, or if only then its images have
    ``image_ndim`` axes.

    Args:
        y: Measurements (B, *measurement), or one measurement.
        operator: Operator A.
        image_ndim: Number of axes of an image (C, *spatial), if known.

    Raises:
        ValueError: The shape is not that of the operator's measurements.

    Example:
        >>> import torch
        >>> from lavps.operators import AveragePool
        >>> with_batch_axis(torch.zeros(3, 16, 16), AveragePool(4), image_ndim=3).shape
        torch.Size([1, 3, 16, 16])
    """

    def fits(shape: Sequence[int]) -> bool:
        try:
            return len(operator.input_shape(tuple(shape))) == image_ndim
        except (ValueError, RuntimeError, IndexError):
            return False

    if y.ndim == operator.measurement_ndim or (image_ndim and not fits(y.shape[1:]) and fits(y.shape)):
        y = y[None]
    if y.ndim < 2:
        raise ValueError(f"measurements need a batch axis: got shape {tuple(y.shape)}, use y[None]")
    expected = operator.measurement_shape if isinstance(operator, CallableOperator) else None
    if expected is not None and tuple(y.shape[1:]) != expected:
        raise ValueError(
            f"{operator!r} gives measurements {expected} of an image, but y has {tuple(y.shape[1:])} per item"
        )
    return y
