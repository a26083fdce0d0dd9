r"""Operators that read pixels in another range than [-1, 1].

With :math:`m = (low + high) / 2`, :math:`h = (high - low) / 2` and images x in [-1, 1], an operator over
pixels in [low, high] measures :math:`A(m + h x)`. For a linear A that is affine,

.. math:: A(m + h x) = A m + h A x,

and under Gaussian noise, which knows no origin, the same problem as measuring :math:`y - A m` with the linear
:math:`h A`. :class:`~lavps.InverseProblem` makes that step itself, so that adjoint, pseudo-inverse and exact
posterior stay available. Noise stays in the units of the measurement: nothing here touches them.
"""

from __future__ import annotations

__all__ = ["Ranged"]

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .base import Operator, as_operator


class Ranged(Operator):
    """An operator over pixels in [low, high], as an operator over pixels in [-1, 1].

    ``Ranged(physics, 0, 1)`` is what measurements of images in [0, 1] need; linear where the operator is and
    the range is symmetric about 0.

    Args:
        operator: an operator, a deepinv physics, or a plain function (then give ``in_shape``).
        low: the value of black.
        high: the value of white.
        in_shape: image shape (C, *spatial), needed for a plain function only.
    """

    linear: bool  # type: ignore[misc]

    def __init__(
        self,
        operator: Operator | Callable[[Tensor], Tensor],
        low: float,
        high: float,
        in_shape: Sequence[int] | None = None,
    ) -> None:
        if not low < high:
            raise ValueError(f"a range needs low < high, got [{low}, {high}]")
        self.operator = as_operator(operator, in_shape)
        self.low, self.high = float(low), float(high)
        self.middle, self.half = (self.low + self.high) / 2, (self.high - self.low) / 2
        self.linear = self.operator.linear and self.middle == 0.0

    def __call__(self, x: Tensor) -> Tensor:
        """A(m + h x)."""
        return self.operator(self._pixels(x))

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """The operator's own."""
        return self.operator.input_shape(measurement_shape)

    def observed(self, y: Tensor) -> Tensor | None:
        """The operator's own."""
        return self.operator.observed(y)

    def select(self, rows: Tensor) -> Operator:
        """The operator of these rows."""
        return Ranged(self.operator.select(rows), self.low, self.high)

    def to(self, *args: torch.device | str | torch.dtype) -> Operator:
        """The operator on another device or in another dtype."""
        return Ranged(self.operator.to(*args), self.low, self.high)

    @property
    def batch(self) -> int:
        """Rows of the parameters."""
        return self.operator.batch

    @property
    def noise_std(self) -> float | Tensor | None:
        """The operator's own: measurements are what they were."""
        return self.operator.noise_std

    def vjp(self, x: Tensor, v: Tensor) -> Tensor:
        """H J^T v, J at m + h x."""
        return self.half * self.operator.vjp(self._pixels(x), v)

    def jvp(self, x: Tensor, u: Tensor) -> Tensor:
        """H J u, J at m + h x."""
        return self.half * self.operator.jvp(self._pixels(x), u)

    def adjoint(self, y: Tensor) -> Tensor:
        """H A^T y; of a range symmetric about 0 only."""
        self._require_linear("an adjoint")
        return self.half * self.operator.adjoint(y)

    def pseudo_inverse(
        self, y: Tensor, damping: float = 0.0, iterations: int = 100, tolerance: float = 1e-6
    ) -> Tensor:
        """(h^2 A^T A + damping I)^+ h A^T y; of a range symmetric about 0 only."""
        self._require_linear("a pseudo-inverse")
        damping = damping / self.half**2
        return self.operator.pseudo_inverse(y, damping, iterations, tolerance) / self.half

    def norm(self, x: Tensor, iterations: int = 30) -> Tensor:
        """H times the operator's own norm at m + h x."""
        return self.half * self.operator.norm(self._pixels(x), iterations)

    def centred(self, y: Tensor) -> tuple[Tensor, Operator]:
        """The measurement y - A m and the linear operator h A; themselves where A is not linear."""
        if self.linear or not self.operator.linear:
            return y, self
        real = y.real if y.is_complex() else y
        grey = real.new_full((self.batch, *self.input_shape(y.shape[1:])), self.middle)
        with torch.no_grad():
            offset = self.operator(grey)
        return y - offset, Ranged(self.operator, -self.half, self.half)

    def _pixels(self, x: Tensor) -> Tensor:
        return self.half * x if self.middle == 0.0 else self.middle + self.half * x

    def __repr__(self) -> str:
        return f"Ranged({self.operator!r}, {self.low}, {self.high})"
