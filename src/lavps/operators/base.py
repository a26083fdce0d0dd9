r"""The contract of a measurement operator :math:`A`, and what follows from it.

A subclass states how to apply A to images (B, C, \*spatial) and which image shape belongs to a
measurement. The adjoint, the Jacobian products, the pseudo-inverse and the norm follow by automatic
differentiation and conjugate gradients; a subclass overrides them where it knows better.

Operators are immutable: A(x) == A(x), always. Randomness lives in the families of
:mod:`lavps.operators.families`, which return operators.

Parameters may be batched: a mask, kernel or scale per item. Rows of x then meet rows of the
parameter; a parameter with one row serves every row of x.
"""

from __future__ import annotations

__all__ = ["CallableOperator", "NotDifferentiableError", "Operator", "as_operator"]

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from .conjugate import conjugate_gradient, largest_singular_value
from .derivatives import central_difference, linear_map, smooth_map


class NotDifferentiableError(TypeError):
    """A gradient was asked of an operator that has none."""

    def __init__(self, operator: Operator) -> None:
        super().__init__(
            f"{operator!r} has no gradient that torch could follow (its output is cut off from its input). "
            "MGDM, MGPS, DPS, MMPS and LAVPS with gradient steps need one: write the function with torch "
            "operations, or state CallableOperator(..., adjoint=...) for a linear function, "
            "CallableOperator(..., linear=False, vjp=...) for any other (lavps.operators.from_numpy takes "
            "the same for NumPy functions). Without a gradient remain LAVPS(prior, model, "
            "gradient_steps_start=0), with a warm start that does not differentiate A, "
            "and Supervised with a denoiser that reads y itself."
        )


class Operator(ABC):
    """A measurement operator A: images (B, C, *spatial) to measurements (B, *measurement)."""

    linear: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """A(x), one measurement per row; differentiable in x."""

    @abstractmethod
    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """The image shape (C, *spatial) that gives measurements of this shape (both without batch)."""

    def observed(self, y: Tensor) -> Tensor | None:
        """Which entries of y carry information: 1 or 0, broadcastable to y; None when all do."""
        return None

    def select(self, rows: Tensor) -> Operator:
        """The operator whose row i has the parameters of row ``rows[i]``; itself where none are batched."""
        return self

    def to(self, *args: torch.device | str | torch.dtype) -> Operator:
        """The operator with its tensors on another device or in another dtype."""
        return self

    @property
    def batch(self) -> int:
        """Rows of the parameters: 1 when shared by all items."""
        return 1

    @property
    def noise_std(self) -> float | Tensor | None:
        """Standard deviation of Gaussian noise stated together with the operator; None where none is."""
        return None

    # -- what follows from the above ------------------------------------------------------------------

    def vjp(self, x: Tensor, v: Tensor) -> Tensor:
        """J^T v with J the Jacobian of A at x; complex measurements: J^H v."""
        if torch.is_inference_mode_enabled():
            raise RuntimeError(
                "the gradient of an operator needs torch.no_grad(), not torch.inference_mode()"
            )
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = self(x)
            if not y.requires_grad:
                raise NotDifferentiableError(self)
            (gradient,) = torch.autograd.grad(y, x, v.to(y.dtype))
        return gradient

    def jvp(self, x: Tensor, u: Tensor) -> Tensor:
        """J u with J the Jacobian of A at x (for a linear operator A u)."""
        if self.linear:
            return self(u)
        try:
            # Differentiating the vjp in its cotangent needs reverse mode only, which every operator has.
            return torch.autograd.functional.jvp(self.__call__, x, u)[1].detach()  # type: ignore[no-any-return,no-untyped-call]
        except RuntimeError as error:
            if "is not implemented" not in str(error):  # fused attention has a first derivative only
                raise
        with torch.no_grad():
            return central_difference(self.__call__, x, u)

    def adjoint(self, y: Tensor) -> Tensor:
        """A^T y (A^H y for complex measurements); linear operators only."""
        self._require_linear("an adjoint")

        def transpose(v: Tensor) -> Tensor:
            like = v.real if v.is_complex() else v
            return self.vjp(like.new_zeros(v.shape[0], *self.input_shape(v.shape[1:])), v)

        return linear_map(y, transpose, self.__call__)

    def pseudo_inverse(
        self, y: Tensor, damping: float = 0.0, iterations: int = 100, tolerance: float = 1e-6
    ) -> Tensor:
        """(A^T A + damping I)^+ A^T y, the least-squares solution of least norm; linear operators only.

        By conjugate gradients from zero, per sample. ``damping`` tames the noise of an ill-conditioned A.
        Differentiable in y: its own transpose is A (A^T A + damping I)^+, one more solve and no graph of
        the iterations.
        """
        self._require_linear("a pseudo-inverse")

        def solve(b: Tensor) -> Tensor:
            return conjugate_gradient(lambda x: self.adjoint(self(x)) + damping * x, b, iterations, tolerance)

        return linear_map(y, lambda v: solve(self.adjoint(v)), lambda u: self(solve(u)))

    def norm(self, x: Tensor, iterations: int = 30) -> Tensor:
        """Largest singular value of the Jacobian at x, per row, shape (B,), by power iteration."""
        return largest_singular_value(partial(self.jvp, x), partial(self.vjp, x), x, iterations)

    def repeat(self, times: int) -> Operator:
        """Each row's parameters ``times`` in a row: the operator of a batch with repeated items."""
        if times == 1 or self.batch == 1:
            return self
        return self.select(torch.arange(self.batch).repeat_interleave(times))

    def apply_features(self, x: Tensor) -> Tensor:
        """A on every slice of an extra feature axis: (B, F, C, *spatial) to (B, F, *measurement)."""
        y = self.repeat(x.shape[1])(x.flatten(0, 1))
        return y.reshape(*x.shape[:2], *y.shape[1:])

    def pseudo_inverse_features(self, y: Tensor, damping: float = 0.0) -> Tensor:
        """A^+ on every slice of an extra feature axis: (B, F, *measurement) to (B, F, C, *spatial)."""
        x = self.repeat(y.shape[1]).pseudo_inverse(y.flatten(0, 1), damping)
        return x.reshape(*y.shape[:2], *x.shape[1:])

    def matrix(self, image_shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """A as a dense matrix (measurement size, image size); for small exact problems, one row of A."""
        self._require_linear("a matrix")
        if self.batch > 1:
            raise ValueError(f"{self!r} has {self.batch} rows: take one with select(torch.tensor([i])) first")
        size = math.prod(image_shape)
        columns = self(torch.eye(size, dtype=dtype).reshape(size, *image_shape))
        return columns.flatten(1).T

    def _require_linear(self, what: str) -> None:
        if not self.linear:
            raise TypeError(f"{self!r} is not linear and has no such thing as {what}")

    def _require_rows(self, x: Tensor) -> None:
        # Without this a batch of one would silently broadcast to as many rows as there are parameters.
        if self.batch not in (1, x.shape[0]):
            raise ValueError(
                f"{self!r} has parameters for {self.batch} items and met a batch of {x.shape[0]}: "
                "pick its rows with select(rows), or repeat(times) for several samples an item"
            )


class CallableOperator(Operator):
    """Any function as an operator: adjoint by VJP, pseudo-inverse by conjugate gradients.

    Args:
        function: maps (B, C, *spatial) to (B, *measurement), row by row.
        in_shape: the image shape (C, *spatial); a measurement alone does not tell it.
        linear: whether the function is linear; `lavps.operators.check` tells.
        adjoint: A^T, where it is known (and then used for the vjp of a linear function too, so the
            function itself need not be differentiable by torch).
        vjp: (x, v) -> J^T v with J the Jacobian at x, for a nonlinear function that torch cannot
            differentiate. J u is then taken by finite differences.
    """

    linear: bool  # type: ignore[misc]

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        in_shape: Sequence[int],
        linear: bool = True,
        adjoint: Callable[[Tensor], Tensor] | None = None,
        vjp: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        if adjoint is not None and not linear:
            raise ValueError("only a linear function has an adjoint; drop adjoint= or set linear=True")
        if vjp is not None and linear:
            raise ValueError("a linear function has an adjoint: give adjoint= instead of vjp=")
        self.function = function
        self.in_shape = tuple(in_shape)
        self.linear = linear
        self._adjoint = adjoint
        self._vjp = vjp

    def __call__(self, x: Tensor) -> Tensor:
        """The function itself, with the given adjoint or vjp as its derivative where there is one."""
        if self._adjoint is not None:
            return linear_map(x, self.function, self._adjoint)
        if self._vjp is not None:
            return smooth_map(x, self.function, self._vjp)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.function(x)
        try:
            y = self.function(x)
        except RuntimeError as error:
            if "requires grad" in str(error):  # x.numpy() inside of the function
                raise NotDifferentiableError(self) from error
            raise
        if not y.requires_grad:
            raise NotDifferentiableError(self)
        return y

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """The stated ``in_shape``."""
        return self.in_shape

    def vjp(self, x: Tensor, v: Tensor) -> Tensor:
        """The given one, or by torch."""
        return super().vjp(x, v) if self._vjp is None else self._vjp(x.detach(), v)

    def jvp(self, x: Tensor, u: Tensor) -> Tensor:
        """J u; by central differences where torch does not know the function, two evaluations of it."""
        if self._vjp is None:
            return super().jvp(x, u)
        return central_difference(self.function, x, u)

    def adjoint(self, y: Tensor) -> Tensor:
        """The given adjoint, or A^T y by VJP."""
        return super().adjoint(y) if self._adjoint is None else linear_map(y, self._adjoint, self.function)

    def __repr__(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"CallableOperator({name}, in_shape={self.in_shape}, linear={self.linear})"


def as_operator(
    operator: Operator | Callable[[Tensor], Tensor],
    in_shape: Sequence[int] | None = None,
    complex_measurement: bool = False,
) -> Operator:
    """An operator from an operator, a deepinv physics or a plain function.

    A plain function is taken as nonlinear, which is always safe for guidance; wrap it in
    :class:`CallableOperator` to state that it is linear. A physics becomes a
    :class:`~lavps.operators.PhysicsOperator`.

    Args:
        operator: what is to become an operator.
        in_shape: image shape (C, *spatial); needed for a plain function only.
        complex_measurement: the measurements at hand are complex, also where a physics has two real channels.
    """
    from .interop import PhysicsOperator, is_physics  # it is an Operator itself, and comes after this module

    if isinstance(operator, Operator):
        return operator
    if is_physics(operator):
        return PhysicsOperator(operator, in_shape, complex_measurement=complex_measurement)
    if not callable(operator):
        raise TypeError(f"an operator must be an Operator or a callable, got {type(operator).__name__}")
    if in_shape is None:
        raise ValueError(
            "a plain function does not tell the shape of its images: pass in_shape=(C, *spatial), "
            "or wrap it: CallableOperator(function, in_shape=(3, 64, 64), linear=True)"
        )
    return CallableOperator(operator, in_shape, linear=False)
