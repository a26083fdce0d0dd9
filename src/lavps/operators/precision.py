"""Operators in full precision inside ``torch.autocast``.

Training in mixed precision runs the whole loss under ``torch.autocast``, which casts matrix products and
convolutions to bfloat16. For a measurement that rounding error (1e-2) would exceed the noise.
"""

from __future__ import annotations

__all__ = ["FullPrecision", "in_full_precision"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .base import Operator, WrappedOperator


class FullPrecision(WrappedOperator):
    """Operator that ``torch.autocast`` does not affect.

    Args:
        operator: Wrapped operator A.
    """

    def _wrap(self, operator: Operator) -> Operator:
        return FullPrecision(operator)

    def __call__(self, x: Tensor) -> Tensor:
        """Return A(x)."""
        return _exactly(self.operator, x)

    def vjp(self, x: Tensor, v: Tensor) -> Tensor:
        """Return J^T v with J the Jacobian of A at x."""
        return _exactly(self.operator.vjp, x, v)

    def jvp(self, x: Tensor, u: Tensor) -> Tensor:
        """Return J u with J the Jacobian of A at x."""
        return _exactly(self.operator.jvp, x, u)

    def adjoint(self, y: Tensor) -> Tensor:
        """Return A^T y."""
        return _exactly(self.operator.adjoint, y)

    def pseudo_inverse(
        self, y: Tensor, damping: float = 0.0, iterations: int = 100, tolerance: float = 1e-6
    ) -> Tensor:
        """Return (A^T A + damping I)^+ A^T y."""
        return _exactly(self.operator.pseudo_inverse, y, damping, iterations, tolerance)

    def norm(self, x: Tensor, iterations: int = 30) -> Tensor:
        """Return the largest singular value of the Jacobian at x, shape (B,)."""
        return _exactly(self.operator.norm, x, iterations)


def _exactly(function: Callable[..., Tensor], x: Tensor, *arguments: Any) -> Tensor:
    half = x.dtype in (torch.float16, torch.bfloat16)
    with torch.autocast(x.device.type, enabled=False):
        return function(x.float() if half else x, *arguments)


def in_full_precision(operator: Operator, device: torch.device) -> Operator:
    """Return the operator, wrapped in :class:`FullPrecision` if autocast is enabled."""
    return FullPrecision(operator) if torch.is_autocast_enabled(device.type) else operator
