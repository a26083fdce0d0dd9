r"""Operators for a pixel range other than [-1, 1].

With :math:`m = (low + high) / 2`, :math:`h = (high - low) / 2` and images x in [-1, 1], an operator on
pixels in [low, high] measures :math:`A(m + h x)`, which is affine for a linear A:

.. math:: A(m + h x) = A m + h A x.

Under Gaussian noise this is equivalent to measuring :math:`y - A m` with the linear operator :math:`h A`.
:class:`~lavps.InverseProblem` makes that substitution, so that the adjoint, the pseudo-inverse and the exact
posterior remain available. The noise stays in the units of the measurement.
"""

from __future__ import annotations

__all__ = ["RescaledOperator"]

from collections.abc import Sequence

import torch
from torch import Tensor

from .autograd import Map
from .base import Operator, WrappedOperator
from .convert import as_operator


class RescaledOperator(WrappedOperator):
    """Operator on pixels in [low, high] as an operator on pixels in [-1, 1].

    It is linear if the wrapped operator is linear and the range is symmetric about 0.

    Args:
        operator: Operator, deepinv physics, or plain function (with ``in_shape``).
        low: Pixel value of black.
        high: Pixel value of white.
        in_shape: Image shape (C, *spatial); required for a plain function.

    Example:
        >>> from lavps.operators import Identity
        >>> RescaledOperator(Identity(), 0, 1)(torch.tensor([[-1.0, 0.0, 1.0]]))
        tensor([[0.0000, 0.5000, 1.0000]])
    """

    def __init__(
        self, operator: Operator | Map, low: float, high: float, in_shape: Sequence[int] | None = None
    ) -> None:
        if not low < high:
            raise ValueError(f"a range needs low < high, got [{low}, {high}]")
        super().__init__(as_operator(operator, in_shape))
        self.low, self.high = float(low), float(high)
        self.middle, self.half = (self.low + self.high) / 2, (self.high - self.low) / 2
        self.linear = self.linear and self.middle == 0.0

    def _wrap(self, operator: Operator) -> Operator:
        return RescaledOperator(operator, self.low, self.high)

    def __call__(self, x: Tensor) -> Tensor:
        """Return A(m + h x)."""
        return self.operator(self._pixels(x))

    @property
    def noise_std(self) -> float | Tensor | None:
        """Standard deviation of the wrapped operator's noise, in the units of the measurement."""
        return self.operator.noise_std

    def unsaturated(self, x: Tensor, y: Tensor, std: Tensor) -> Tensor:
        """Return the images moved by the operator in its own range."""
        pixels = self._pixels(x)
        return x + (self.operator.unsaturated(pixels, y, std) - pixels) / self.half

    def vjp(self, x: Tensor, v: Tensor) -> Tensor:
        """Return h J^T v with J the Jacobian of A at m + h x."""
        return self.half * self.operator.vjp(self._pixels(x), v)

    def jvp(self, x: Tensor, u: Tensor) -> Tensor:
        """Return h J u with J the Jacobian of A at m + h x."""
        return self.half * self.operator.jvp(self._pixels(x), u)

    def adjoint(self, y: Tensor) -> Tensor:
        """Return h A^T y; only for a range symmetric about 0."""
        self._require_linear("an adjoint")
        return self.half * self.operator.adjoint(y)

    def pseudo_inverse(
        self, y: Tensor, damping: float = 0.0, iterations: int = 100, tolerance: float = 1e-6
    ) -> Tensor:
        """Return (h^2 A^T A + damping I)^+ h A^T y; only for a range symmetric about 0."""
        self._require_linear("a pseudo-inverse")
        damping = damping / self.half**2
        return self.operator.pseudo_inverse(y, damping, iterations, tolerance) / self.half

    def norm(self, x: Tensor, iterations: int = 30) -> Tensor:
        """Return h times the norm of A at m + h x, shape (B,)."""
        return self.half * self.operator.norm(self._pixels(x), iterations)

    def centred(self, y: Tensor) -> tuple[Tensor, Operator]:
        """Return the measurement y - A m and the linear operator h A; unchanged for a nonlinear A."""
        if self.linear or not self.operator.linear:
            return y, self
        real = y.real if y.is_complex() else y
        grey = real.new_full((self.batch, *self.input_shape(y.shape[1:])), self.middle)
        with torch.no_grad():
            offset = self.operator(grey)
        return y - offset, RescaledOperator(self.operator, -self.half, self.half)

    def _pixels(self, x: Tensor) -> Tensor:
        return self.half * x if self.middle == 0.0 else self.middle + self.half * x

    def __repr__(self) -> str:
        return f"RescaledOperator({self.operator!r}, {self.low}, {self.high})"
