r"""Base classes of measurement operators :math:`A`.

A subclass defines A(x) for images (B, C, \*spatial) and the image shape for a given measurement shape.
The adjoint, the Jacobian products, the pseudo-inverse and the norm have defaults based on automatic
differentiation and conjugate gradients; a subclass overrides them where a closed form exists.

Operators are immutable and deterministic. Random operators are drawn from :mod:`lavps.operators.families`.
Parameters may be batched: one mask, kernel or scale per item. A parameter with one row applies to every row.
"""

from __future__ import annotations

__all__ = ["CallableOperator", "NotDifferentiableError", "Operator"]

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor

from .autograd import central_difference, linear_map, smooth_map
from .linalg import conjugate_gradient, largest_singular_value
from .probing import measures_linearly


class NotDifferentiableError(TypeError):
    """Error raised when an operator without a gradient is differentiated."""

    def __init__(self, operator: Operator) -> None:
        super().__init__(
            f"torch cannot differentiate {operator!r}: its output is detached from its input. MGDM, MGPS, "
            "DPS, MMPS and LAVPS with gradient steps need a gradient: write the function with torch "
            "operations, or pass CallableOperator(..., adjoint=...) for a linear function and "
            "CallableOperator(..., linear=False, vjp=...) for any other (lavps.operators.from_numpy accepts "
            "the same for NumPy functions). Without a gradient, use "
            "MGDM(prior, guidance=Amortized(model, steps=0)) with a model that does not differentiate A, or "
            "Supervised with a denoiser conditioned on y."
        )


class Operator(ABC):
    """Measurement operator A from images (B, C, *spatial) to measurements (B, *measurement)."""

    linear: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Return A(x), one measurement per row; differentiable in x."""

    @abstractmethod
    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the image shape (C, *spatial) for this measurement shape, both without the batch."""

    def observed(self, y: Tensor) -> Tensor | None:
        """Return 1 for the observed entries of y and 0 elsewhere, broadcastable to y; None if all are."""
        return None

    def select(self, rows: Tensor) -> Operator:
        """Return the operator whose row i has the parameters of row ``rows[i]``."""
        return self

    def to(self, *args: torch.device | str | torch.dtype) -> Operator:
        """Return the operator with its tensors on another device or in another dtype."""
        return self

    @property
    def batch(self) -> int:
        """Number of rows of the parameters; 1 if all items share them."""
        return 1

    @property
    def measurement_ndim(self) -> int | None:
        """Number of axes of one measurement, without the batch; None if the operator does not fix it."""
        return None

    @property
    def noise_std(self) -> float | Tensor | None:
        """Standard deviation of the Gaussian noise that comes with the operator, if any."""
        return None

    def unsaturated(self, x: Tensor, y: Tensor, std: Tensor) -> Tensor:
        """Return x with saturated entries moved to the limit of saturation where y, of noise std, is not."""
        return x

    def vjp(self, x: Tensor, v: Tensor) -> Tensor:
        """Return J^T v (complex measurements: J^H v) with J the Jacobian of A at x."""
        if torch.is_inference_mode_enabled():
            raise RuntimeError("operator gradients need torch.no_grad(), not torch.inference_mode()")
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = self(x)
            if not y.requires_grad:
                raise NotDifferentiableError(self)
            (gradient,) = torch.autograd.grad(y, x, v.to(y.dtype))
        return gradient

    def jvp(self, x: Tensor, u: Tensor) -> Tensor:
        """Return J u with J the Jacobian of A at x (A u for a linear operator)."""
        if self.linear:
            return self(u)
        try:
            # Differentiating the vjp in its cotangent needs reverse mode only, which every operator supports.
            return torch.autograd.functional.jvp(self.__call__, x, u)[1].detach()  # type: ignore[no-any-return,no-untyped-call]
        except RuntimeError as error:
            if "is not implemented" not in str(error):  # fused attention has no second derivative
                raise
        with torch.no_grad():
            return central_difference(self.__call__, x, u)

    def adjoint(self, y: Tensor) -> Tensor:
        """Return A^T y (A^H y for complex measurements); linear operators only."""
        self._require_linear("an adjoint")

        def transpose(v: Tensor) -> Tensor:
            like = v.real if v.is_complex() else v
            return self.vjp(like.new_zeros(v.shape[0], *self.input_shape(v.shape[1:])), v)

        return linear_map(y, transpose, self.__call__)

    def pseudo_inverse(
        self, y: Tensor, damping: float = 0.0, iterations: int = 100, tolerance: float = 1e-6
    ) -> Tensor:
        """Return (A^T A + damping I)^+ A^T y, the minimum-norm least-squares solution; linear operators only.

        Solved by conjugate gradients, per sample. ``damping`` limits noise amplification by an
        ill-conditioned A. The backward pass is one more solve and stores no graph of the iterations.
        """
        self._require_linear("a pseudo-inverse")

        def solve(b: Tensor) -> Tensor:
            return conjugate_gradient(lambda x: self.adjoint(self(x)) + damping * x, b, iterations, tolerance)

        return linear_map(y, lambda v: solve(self.adjoint(v)), lambda u: self(solve(u)))

    def norm(self, x: Tensor, iterations: int = 30) -> Tensor:
        """Return the largest singular value of the Jacobian at x, shape (B,), by power iteration."""
        return largest_singular_value(partial(self.jvp, x), partial(self.vjp, x), x, iterations)

    def repeat(self, times: int) -> Operator:
        """Return the operator with each row of the parameters repeated ``times`` times."""
        if times == 1 or self.batch == 1:
            return self
        return self.select(torch.arange(self.batch).repeat_interleave(times))

    def apply_features(self, x: Tensor) -> Tensor:
        """Apply A along a feature axis: (B, F, C, *spatial) to (B, F, *measurement)."""
        y = self.repeat(x.shape[1])(x.flatten(0, 1))
        return y.reshape(*x.shape[:2], *y.shape[1:])

    def pseudo_inverse_features(self, y: Tensor, damping: float = 0.0) -> Tensor:
        """Apply A^+ along a feature axis: (B, F, *measurement) to (B, F, C, *spatial)."""
        x = self.repeat(y.shape[1]).pseudo_inverse(y.flatten(0, 1), damping)
        return x.reshape(*y.shape[:2], *x.shape[1:])

    def matrix(self, image_shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """Return A as a dense matrix (measurement size, image size), for small problems."""
        self._require_linear("a matrix")
        if self.batch > 1:
            raise ValueError(f"{self!r} has {self.batch} rows: take one with select(torch.tensor([i])) first")
        size = math.prod(image_shape)
        return self(torch.eye(size, dtype=dtype).reshape(size, *image_shape)).flatten(1).T

    def _require_linear(self, what: str) -> None:
        if not self.linear:
            raise TypeError(f"{self!r} is not linear and does not have {what}")

    def _require_rows(self, x: Tensor) -> None:
        # Without this check a batch of one would silently broadcast to the rows of the parameters.
        if self.batch not in (1, x.shape[0]):
            raise ValueError(
                f"{self!r} has parameters for {self.batch} items, but the batch has {x.shape[0]}: "
                "select its rows with select(rows), or use repeat(times) for several samples per item"
            )


class SameShapeOperator(Operator):
    """Operator whose measurements have the shape of its images."""

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the measurement shape."""
        return tuple(measurement_shape)


class WrappedOperator(Operator):
    """Operator derived from another one that has the same parameters and measurements.

    Args:
        operator: Wrapped operator A.
    """

    linear: bool  # type: ignore[misc]

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.linear = operator.linear

    @abstractmethod
    def _wrap(self, operator: Operator) -> Operator:
        """Wrap another operator in the same way."""

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the image shape of the wrapped operator."""
        return self.operator.input_shape(measurement_shape)

    def observed(self, y: Tensor) -> Tensor | None:
        """Return the entries that the wrapped operator observes."""
        return self.operator.observed(y)

    def select(self, rows: Tensor) -> Operator:
        """Return the operator with the parameters of these rows."""
        return self._wrap(self.operator.select(rows))

    def to(self, *args: torch.device | str | torch.dtype) -> Operator:
        """Return the operator with its tensors on another device or in another dtype."""
        return self._wrap(self.operator.to(*args))

    @property
    def batch(self) -> int:
        """Number of rows of the parameters."""
        return self.operator.batch

    @property
    def measurement_ndim(self) -> int | None:
        """Number of axes of one measurement of the wrapped operator."""
        return self.operator.measurement_ndim

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.operator!r})"


class CallableOperator(Operator):
    """Function as an operator.

    Args:
        function: Function from (B, C, *spatial) to (B, *measurement) that treats rows independently.
        in_shape: Image shape (C, *spatial).
        linear: Whether it is linear; default from the derivative given, else tested by three evaluations.
        adjoint: Adjoint A^T of a linear function. With it the function need not be differentiable by torch.
        vjp: Product (x, v) -> J^T v with the Jacobian J at x, for a nonlinear function that torch cannot
            differentiate. J u is then computed by finite differences.

    Example:
        >>> cumulative = CallableOperator(lambda x: x.cumsum(-1), in_shape=(1, 3))
        >>> cumulative.adjoint(torch.ones(1, 1, 3))
        tensor([[[3., 2., 1.]]])
    """

    linear: bool  # type: ignore[misc]

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        in_shape: Sequence[int],
        linear: bool | None = None,
        adjoint: Callable[[Tensor], Tensor] | None = None,
        vjp: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        if linear is None:
            linear = vjp is None if (adjoint, vjp) != (None, None) else measures_linearly(function, in_shape)
        if adjoint is not None and not linear:
            raise ValueError("only a linear function has an adjoint: omit adjoint= or set linear=True")
        if vjp is not None and linear:
            raise ValueError("a linear function has an adjoint: pass adjoint= instead of vjp=")
        self.function, self.in_shape, self.linear = function, tuple(in_shape), linear
        self._adjoint, self._vjp = adjoint, vjp

    def __call__(self, x: Tensor) -> Tensor:
        """Return function(x), with the given adjoint or vjp as its derivative."""
        if self._adjoint is not None:
            return linear_map(x, self.function, self._adjoint)
        if self._vjp is not None:
            return smooth_map(x, self.function, self._vjp)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.function(x)
        try:
            y = self.function(x)
        except RuntimeError as error:
            if "requires grad" in str(error):  # x.numpy() inside the function
                raise NotDifferentiableError(self) from error
            raise
        if not y.requires_grad:
            raise NotDifferentiableError(self)
        return y

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """Return ``in_shape``."""
        return self.in_shape

    @cached_property
    def measurement_shape(self) -> tuple[int, ...] | None:
        """Shape of one measurement, from one evaluation of the function; None if that fails."""
        try:
            with torch.no_grad():
                return tuple(self.function(torch.zeros(1, *self.in_shape)).shape[1:])
        except Exception:
            return None

    @property
    def measurement_ndim(self) -> int | None:
        """Number of axes of one measurement."""
        return None if self.measurement_shape is None else len(self.measurement_shape)

    def vjp(self, x: Tensor, v: Tensor) -> Tensor:
        """Return J^T v from the given vjp or by automatic differentiation."""
        return super().vjp(x, v) if self._vjp is None else self._vjp(x.detach(), v)

    def jvp(self, x: Tensor, u: Tensor) -> Tensor:
        """Return J u; with a given vjp, by central differences (two evaluations of the function)."""
        return super().jvp(x, u) if self._vjp is None else central_difference(self.function, x, u)

    def adjoint(self, y: Tensor) -> Tensor:
        """Return A^T y from the given adjoint or by automatic differentiation."""
        return super().adjoint(y) if self._adjoint is None else linear_map(y, self._adjoint, self.function)

    def __repr__(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"CallableOperator({name}, in_shape={self.in_shape}, linear={self.linear})"
