"""Conjugate gradients on a batch of independent linear systems."""

from __future__ import annotations

__all__ = ["conjugate_gradient", "inner"]

from collections.abc import Callable

import torch
from torch import Tensor


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Re <a, b> per row, shape (B,)."""
    if a.is_complex() or b.is_complex():
        return (a.conj() * b).real.flatten(1).sum(1)
    return (a * b).flatten(1).sum(1)


def conjugate_gradient(
    matvec: Callable[[Tensor], Tensor], b: Tensor, iterations: int, tolerance: float = 0.0
) -> Tensor:
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
