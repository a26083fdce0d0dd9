r"""Functions with user-defined derivatives, which may run outside torch (NumPy, a compiled simulator).

A linear map :math:`x \mapsto A x` with its adjoint :math:`v \mapsto A^T v` is differentiable to every order.
Any other function with a vjp :math:`(x, v) \mapsto J(x)^T v` is differentiable once.
"""

from __future__ import annotations

__all__ = ["central_difference", "linear_map", "smooth_map"]

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

Map = Callable[[Tensor], Tensor]
Pullback = Callable[[Tensor, Tensor], Tensor]


class _LinearMap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, function: Map, adjoint: Map) -> Tensor:
        ctx.maps = function, adjoint  # type: ignore[attr-defined]
        return function(x)

    @staticmethod
    def backward(ctx: FunctionCtx, v: Tensor) -> tuple[Tensor, None, None]:
        function, adjoint = ctx.maps  # type: ignore[attr-defined]
        return linear_map(v, adjoint, function), None, None


class _SmoothMap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, function: Map, vjp: Pullback) -> Tensor:
        ctx.save_for_backward(x)
        ctx.vjp = vjp  # type: ignore[attr-defined]
        return function(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, v: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return ctx.vjp(x, v), None, None  # type: ignore[attr-defined]


def central_difference(function: Map, x: Tensor, u: Tensor) -> Tensor:
    """Return J u with J the function's Jacobian at x (B, ...), row by row, from two evaluations."""
    largest = u.abs().flatten(1).amax(1).clamp(min=torch.finfo(u.dtype).tiny)
    step = torch.finfo(u.dtype).eps ** (1 / 3) / largest.reshape(-1, *[1] * (u.ndim - 1))
    change = function(x + step * u) - function(x - step * u)
    slope: Tensor = change / (2.0 * step.reshape(-1, *[1] * (change.ndim - 1)))
    return slope


def linear_map(x: Tensor, function: Map, adjoint: Map) -> Tensor:
    """Return function(x), with ``adjoint`` as the transpose of its derivative."""
    result: Tensor = _LinearMap.apply(x, function, adjoint)  # type: ignore[no-untyped-call]
    return result


def smooth_map(x: Tensor, function: Map, vjp: Pullback) -> Tensor:
    """Return function(x), with v -> vjp(x, v) as the transpose of its derivative."""
    result: Tensor = _SmoothMap.apply(x, function, vjp)  # type: ignore[no-untyped-call]
    return result
