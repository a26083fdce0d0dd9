"""Conjugate gradients and power iteration on a batch of independent linear maps."""

from __future__ import annotations

__all__ = ["conjugate_gradient", "inner", "largest_singular_value"]

from collections.abc import Callable

import torch
from torch import Tensor

from ..random import NoiseStreams, Purpose

LinearMap = Callable[[Tensor], Tensor]


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Re <a, b> per row, shape (B,)."""
    if a.is_complex() or b.is_complex():
        return (a.conj() * b).real.flatten(1).sum(1)
    return (a * b).flatten(1).sum(1)


def conjugate_gradient(matvec: LinearMap, b: Tensor, iterations: int, tolerance: float = 0.0) -> Tensor:
    """Solve M x = b for a symmetric positive semi-definite M, row by row, from x = 0.

    A row whose residual has fallen below ``tolerance`` times |b| stands still: it is what it would have
    been alone, whatever the other rows still need.

    Args:
        matvec: x -> M x on (B, *shape).
        b: right-hand sides (B, *shape).
        iterations: the largest number of products with M.
        tolerance: relative residual at which a row stops.
    """
    shape = (-1, *[1] * (b.ndim - 1))
    x, r, p = torch.zeros_like(b), b, b
    rr = inner(r, r)
    goal = (tolerance**2 * rr).clamp(min=torch.finfo(rr.dtype).tiny)
    for _ in range(iterations):
        active = rr > goal
        if not bool(active.any()):
            break
        mp = matvec(p)
        curvature = inner(p, mp)
        active = active & (curvature > 0)
        step = torch.where(active, rr / torch.where(active, curvature, 1.0), 0.0)
        x = x + step.reshape(shape) * p
        r = r - step.reshape(shape) * mp
        rr_next = inner(r, r)
        ratio = torch.where(active, rr_next / torch.where(active, rr, 1.0), 0.0)
        p = r + ratio.reshape(shape) * p
        rr = torch.where(active, rr_next, 0.0 * rr)
    return x


def largest_singular_value(
    forward: LinearMap, backward: LinearMap, like: Tensor, iterations: int, weight: Tensor | None = None
) -> Tensor:
    r"""That of :math:`W^{1/2} J`, per row, shape (B,), by power iteration.

    Args:
        forward: J u.
        backward: J^T v.
        like: of the shape of u, (B, ...).
        iterations: how many.
        weight: W, of the shape of v and not negative; None for 1.
    """
    # One start vector for all rows and all runs: the estimate of a row depends on that row alone.
    start = NoiseStreams((0,), (0,), (0,)).normal(Purpose.PROBE, like.shape[1:], like)
    u = start.expand_as(like).clone()
    size = torch.zeros(len(like), dtype=like.dtype, device=like.device)
    for _ in range(iterations):
        u = u / inner(u, u).sqrt().clamp(min=torch.finfo(like.dtype).tiny).reshape(-1, *[1] * (u.ndim - 1))
        v = forward(u)
        weighted = v if weight is None else weight * v
        size = inner(v, weighted).sqrt()
        u = backward(weighted)
    return size
