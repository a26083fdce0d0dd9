"""Conjugate gradients, Lanczos and power iteration on a batch of independent linear maps."""

from __future__ import annotations

__all__ = [
    "conjugate_gradient",
    "inner",
    "largest_singular_value",
    "rounding",
    "spectral_product",
    "weighted_conjugate_gradient",
]

from collections.abc import Callable

import torch
from torch import Tensor

from ..random import NoiseStreams, Purpose

LinearMap = Callable[[Tensor], Tensor]


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Return Re <a, b> per row, shape (B,)."""
    product = (a.conj() * b).real if a.is_complex() or b.is_complex() else a * b
    return product.flatten(1).sum(1)


def conjugate_gradient(matvec: LinearMap, b: Tensor, iterations: int, tolerance: float = 0.0) -> Tensor:
    """Solve M x = b for a symmetric positive semi-definite M, row by row, from x = 0.

    A row stops once its residual is below ``tolerance`` times |b|; its result is independent of the others.

    Args:
        matvec: Product x -> M x on (B, *shape).
        b: Right-hand sides (B, *shape).
        iterations: Maximum number of products with M.
        tolerance: Relative residual at which a row stops.
    """
    return weighted_conjugate_gradient(lambda p, _: matvec(p), None, b, iterations, rtol=tolerance)[0]


def weighted_conjugate_gradient(
    matvec: Callable[[Tensor, Tensor], Tensor],
    weight: LinearMap | None,
    b: Tensor,
    iterations: int | Tensor,
    *,
    rtol: float = 0.0,
    atol: Tensor | float = 0.0,
    shift: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Solve M x = b for an M that is symmetric in the inner product <a, C b>; return C x and b - M x.

    Each iteration takes one product with M and one with C, or with G in its place. The preconditioner is
    1 + s C, whose inverse is 1 - s G.

    Args:
        matvec: Function (x, C x) -> M x on (B, *shape).
        weight: Product x -> C x, C symmetric and positive definite; None for the identity. With a shift s,
            the product with G = (C^-1 + s)^-1.
        b: Right-hand sides (B, *shape).
        iterations: Maximum number of products with M, shape () or (B,).
        rtol: Residual, relative to b, at which a row stops; both in the norm of C, or of G.
        atol: Residual in this norm at which a row stops, shape () or (B,).
        shift: Shift s of the preconditioner, shape (B, 1, ...), at which s C is close to M - 1; None for 0.
    """
    shape = (-1, *[1] * (b.ndim - 1))
    r, cx = b, torch.zeros_like(b)
    cr = r if weight is None else weight(r)
    p = r if shift is None else torch.addcmul(r, shift, cr, value=-1.0)
    cp, rr = cr, inner(r, cr)
    goal = (rtol**2 * rr).clamp(min=torch.finfo(rr.dtype).tiny).maximum(torch.as_tensor(atol).to(rr) ** 2)
    limit = torch.as_tensor(iterations).to(rr.device)
    for n in range(int(limit.max())):
        active = (rr > goal) & (n < limit)
        if not bool(active.any()):
            break
        mp = matvec(p, cp)
        curvature = inner(cp, mp)
        active = active & (curvature > 0)
        step = torch.where(active, rr / torch.where(active, curvature, 1.0), 0.0).reshape(shape)
        cx = torch.addcmul(cx, step, cp)
        r = torch.addcmul(r, step, mp, value=-1.0)
        del mp, cr
        cr = r if weight is None else weight(r)
        rr_next = inner(r, cr)
        ratio = torch.where(active, rr_next / torch.where(active, rr, 1.0), 0.0).reshape(shape)
        p = torch.addcmul(r if shift is None else torch.addcmul(r, shift, cr, value=-1.0), ratio, p)
        cp = p if weight is None else torch.addcmul(cr, ratio, cp)
        rr = torch.where(active, rr_next, 0.0 * rr)
    return cx, r


def rounding(dtype: torch.dtype) -> float:
    """Return the relative size below which an eigenvalue counts as 0."""
    return 100.0 * torch.finfo(dtype).eps


def spectral_product(matvec: LinearMap, b: Tensor, function: LinearMap, iterations: int) -> Tensor:
    """Return f(M) b for a symmetric M, row by row, by Lanczos; f = 1 / m gives conjugate gradients.

    Exact once the number of iterations reaches the number of distinct eigenvalues that occur in b.

    Args:
        matvec: Product x -> M x on (B, *shape).
        b: Real vectors (B, *shape).
        function: Function f of eigenvalues (B, n), float64, finite at 0.
        iterations: Maximum number of products with M.
    """
    shape, tiny, tolerance = (-1, *[1] * (b.ndim - 1)), torch.finfo(b.dtype).tiny, rounding(b.dtype)
    norm = inner(b, b).sqrt()
    q = b / norm.clamp(min=tiny).reshape(shape)
    basis, diagonal, beside = [q], [], []
    for _ in range(iterations):
        w = matvec(q)
        diagonal.append(inner(q, w))
        for _ in range(2):  # Gram-Schmidt, twice for rounding
            for v in basis:
                w = w - inner(v, w).reshape(shape) * v
        size = inner(w, w).sqrt()
        active = size > tolerance * torch.stack(diagonal).abs().amax(0).clamp(min=tiny)
        if len(diagonal) == iterations or not bool(active.any()):
            break
        beside.append(torch.where(active, size, 0.0 * size))
        q = torch.where(active.reshape(shape), w / size.clamp(min=tiny).reshape(shape), 0.0 * w)
        basis.append(q)
    matrix = torch.diag_embed(torch.stack(diagonal, 1).double())
    if beside:
        off = torch.diag_embed(torch.stack(beside, 1).double(), 1)
        matrix = matrix + off + off.mT
    values, vectors = torch.linalg.eigh(matrix.nan_to_num())  # NaN stays in the basis
    weights = (vectors * (function(values) * vectors[:, 0]).unsqueeze(1)).sum(-1) * norm.double()[:, None]
    return sum((w.to(b).reshape(shape) * v for w, v in zip(weights.unbind(1), basis, strict=True)), 0.0 * b)


def largest_singular_value(
    forward: LinearMap, backward: LinearMap, like: Tensor, iterations: int, weight: Tensor | None = None
) -> Tensor:
    r"""Return the largest singular value of :math:`W^{1/2} J`, shape (B,), by power iteration.

    Args:
        forward: Product u -> J u.
        backward: Product v -> J^T v.
        like: Tensor with the shape, dtype and device of u, (B, ...).
        iterations: Number of iterations.
        weight: Non-negative weights W with the shape of v; None for 1.
    """
    # The same initial vector for all rows: the estimate of a row does not depend on the others.
    u = NoiseStreams((0,), (0,), (0,)).normal(Purpose.PROBE, like.shape[1:], like).expand_as(like).clone()
    size = torch.zeros(len(like), dtype=like.dtype, device=like.device)
    for _ in range(iterations):
        u = u / inner(u, u).sqrt().clamp(min=torch.finfo(like.dtype).tiny).reshape(-1, *[1] * (u.ndim - 1))
        v = forward(u)
        weighted = v if weight is None else weight * v
        size = inner(v, weighted).sqrt()
        u = backward(weighted)
    return size
