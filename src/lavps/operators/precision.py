"""Operators that keep their precision where networks are allowed to lose theirs.

Training in mixed precision runs the whole loss inside ``torch.autocast``, which turns every product of
matrices and every convolution into bfloat16: right for a network, wrong for a measurement, whose rounding
(1e-2) would exceed the noise it is compared with.
"""

from __future__ import annotations

__all__ = ["FullPrecision", "in_full_precision"]

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .base import Operator


class FullPrecision(Operator):
    """An operator, the same inside of ``torch.autocast`` as outside.

    Args:
        operator: which.
    """

    linear: bool  # type: ignore[misc]

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.linear = operator.linear

    def __call__(self, x: Tensor) -> Tensor:
        """A(x)."""
        return _exactly(self.operator, x)

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """The operator's own."""
        return self.operator.input_shape(measurement_shape)

    def observed(self, y: Tensor) -> Tensor | None:
        """The operator's own."""
        return self.operator.observed(y)

    def select(self, rows: Tensor) -> Operator:
        """The operator of these rows."""
        return FullPrecision(self.operator.select(rows))

    def to(self, *args: torch.device | str | torch.dtype) -> Operator:
        """The operator on another device or in another dtype."""
        return FullPrecision(self.operator.to(*args))

    @property
    def batch(self) -> int:
        """Rows of the parameters."""
        return self.operator.batch

    def vjp(self, x: Tensor, v: Tensor) -> Tensor:
        """J^T v."""
        return _exactly(self.operator.vjp, x, v)

    def jvp(self, x: Tensor, u: Tensor) -> Tensor:
        """J u."""
        return _exactly(self.operator.jvp, x, u)

    def adjoint(self, y: Tensor) -> Tensor:
        """A^T y."""
        return _exactly(self.operator.adjoint, y)

    def pseudo_inverse(
        self, y: Tensor, damping: float = 0.0, iterations: int = 100, tolerance: float = 1e-6
    ) -> Tensor:
        """A^+ y."""
        return _exactly(self.operator.pseudo_inverse, y, damping, iterations, tolerance)

    def norm(self, x: Tensor, iterations: int = 30) -> Tensor:
        """Largest singular value of the Jacobian at x, per row (B,)."""
        return _exactly(self.operator.norm, x, iterations)

    def __repr__(self) -> str:
        return f"FullPrecision({self.operator!r})"


def _exactly(function: Callable[..., Tensor], x: Tensor, *arguments: Any) -> Tensor:
    half = x.dtype in (torch.float16, torch.bfloat16)
    with torch.autocast(x.device.type, enabled=False):
        return function(x.float() if half else x, *arguments)


def in_full_precision(operator: Operator, device: torch.device) -> Operator:
    """The operator, wrapped where autocast is on; elsewhere itself."""
    return FullPrecision(operator) if torch.is_autocast_enabled(device.type) else operator
