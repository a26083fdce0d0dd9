"""Operators from functions and from physics of deepinv."""

from __future__ import annotations

__all__ = ["as_operator"]

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
