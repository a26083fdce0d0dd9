r"""What is wrong with an operator, in plain words.

The checks behind the contract of :class:`lavps.operators.Operator`, on random images x, u and measurements v:

.. math:: \langle A u, v \rangle = \langle u, A^T v \rangle, \qquad A(a x + b u) = a A x + b A u,

:math:`A(x) = A(x)`, row i of a batch is what it would be alone, float32 stays float32 and float64 stays
float64, and there is a gradient. For a nonlinear operator the first identity is asked of the Jacobian at x.
Nothing here raises for a bad operator.
"""

from __future__ import annotations

__all__ = ["check"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..random import NoiseStreams, Purpose
from .base import Operator, as_operator
from .conjugate import inner
from .report import OperatorReport


def check(
    operator: Operator | Callable[[Tensor], Tensor],
    shape: Sequence[int],
    batch: int = 2,
    tolerance: float = 1e-4,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> OperatorReport:
    """Try an operator on random images and report what breaks the contract.

    Args:
        operator: an operator, or a plain function (taken as nonlinear; the report says if it looks linear).
        shape: image shape (C, *spatial).
        batch: rows to try; an operator with batched parameters is tried on as many rows as it has.
        tolerance: largest relative error that passes.
        seed: of the random images.
        device: a second device to try; by default CUDA where there is one.
    """
    operator = as_operator(operator, shape)
    if device is None and torch.cuda.is_available():
        device = "cuda"
    trial = _Trial(operator, tuple(shape), operator.batch if operator.batch > 1 else batch, tolerance, seed)
    if trial.find_dtypes():
        for step in (
            trial.repeatability,
            trial.rows,
            trial.shapes,
            trial.linearity,
            trial.gradient,
            trial.adjoint,
        ):
            trial.attempt(step)
        if device is not None:
            trial.attempt(lambda: trial.on_device(torch.device(device)))
    return OperatorReport(
        repr(operator),
        operator.linear,
        tuple(shape),
        **trial.found,  # type: ignore[arg-type]
        problems=tuple(trial.problems),
        notes=tuple(trial.notes),
    )


@dataclass
class _Trial:
    """One run of the checks; collects what they find."""

    operator: Operator
    shape: tuple[int, ...]
    batch: int
    tolerance: float
    seed: int
    dtype: torch.dtype = torch.float64
    found: dict[str, object] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def images(self, index: int, dtype: torch.dtype | None = None) -> Tensor:
        streams = NoiseStreams.of(self.batch, self.seed)
        like = torch.zeros((), dtype=dtype or self.dtype)
        return (0.5 * streams.normal(Purpose.PROBE, self.shape, like, index=index)).clamp(-1.0, 1.0)

    def attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            what = getattr(step, "__name__", "device").strip("<>").replace("lambda", "another device")
            self.problems.append(f"the check of {what} stopped with {_told(error)}")

    def find_dtypes(self) -> bool:
        """Call A in both precisions; take the best that works for the other checks."""
        kept: dict[torch.dtype, bool] = {}
        for dtype in (torch.float32, torch.float64):
            try:
                y = self.operator(self.images(0, dtype))
            except Exception as error:
                self.problems.append(
                    f"A fails on {dtype} images with {_told(error)}: cast its parameters to x's dtype, "
                    "as in weight.to(x)"
                )
                continue
            if y.ndim < 1 or y.shape[0] != self.batch:
                self.problems.append(
                    f"{self.batch} images give an output of shape {tuple(y.shape)}: the first axis must "
                    "count the images, and A must treat each alone"
                )
                return False
            kept[dtype] = y.real.dtype == dtype
            if not kept[dtype]:
                self.problems.append(
                    f"{dtype} images give {y.dtype} measurements: cast constants and parameters to x's dtype"
                )
        self.found["preserves_dtype"] = len(kept) == 2 and all(kept.values())
        self.dtype = max(kept, key=lambda dtype: torch.finfo(dtype).bits, default=self.dtype)
        return bool(kept)

    def repeatability(self) -> None:
        x = self.images(0)
        before = x.clone()
        first, second = self.operator(x), self.operator(x)
        if not torch.equal(x, before):
            self.problems.append(
                "A changes its input in place: work on a copy (x.clone(), mul instead of mul_)"
            )
        same = first.shape == second.shape and _distance(first, second) <= 1e-6
        self.found["deterministic"] = same
        if not bool(torch.isfinite(first).all()):
            self.problems.append("A gives non-finite values on images in [-1, 1]")
        elif not same:
            self.problems.append(
                "A(x) differs between two calls: draw masks, kernels and noise once, outside the operator "
                "(measurement noise belongs to the problem, not to A)"
            )

    def rows(self) -> None:
        x = self.images(0)
        y = self.operator(x)
        alone = [self.operator.select(torch.tensor([i]))(x[i : i + 1]) for i in range(self.batch)]
        self.found["batch_independent"] = _distance(torch.cat(alone), y) <= self.tolerance
        if not self.found["batch_independent"]:
            self.problems.append(
                "a row of a batch differs from the same image alone: reduce over axes 1 and up only, never "
                "over the batch; with batched parameters, override select()"
            )

    def shapes(self) -> None:
        y = self.operator(self.images(0))
        self.found["measurement_shape"] = tuple(y.shape[1:])
        told = tuple(self.operator.input_shape(y.shape[1:]))
        if told != self.shape:
            self.problems.append(
                f"input_shape({tuple(y.shape[1:])}) says {told}, the images are {self.shape}: correct "
                "input_shape (or in_shape= of a CallableOperator)"
            )

    def linearity(self) -> None:
        x, u = self.images(0), self.images(1)
        error = _distance(self.operator(0.7 * x - 1.3 * u), 0.7 * self.operator(x) - 1.3 * self.operator(u))
        self.found["linearity_error"] = error
        if self.operator.linear and not error <= self.tolerance:
            self.problems.append(
                f"declared linear, but A(a x + b u) differs from a A x + b A u by {error:.1e}: set "
                "linear=False (an affine A, with an offset, counts as nonlinear: subtract the offset from y "
                "instead)"
            )
        elif not self.operator.linear and error <= self.tolerance:
            self.notes.append(
                "behaves linearly: CallableOperator(..., linear=True) gains adjoint and pseudo-inverse"
            )

    def adjoint(self) -> None:
        x, u = self.images(0), self.images(1)
        forward = self.operator(u)
        # Half along A u, half random: a wrong factor then shows in full, not hidden by dimension.
        noise = NoiseStreams.of(self.batch, self.seed).normal(
            Purpose.PROBE, forward.shape[1:], forward, index=2
        )
        v = _unit(forward) + _unit(noise)
        try:
            if self.operator.linear:
                error, name = _dot_error(forward, v, u, self.operator.adjoint(v)), "the adjoint"
            else:
                error, name = (
                    _dot_error(self.operator.jvp(x, u), v, u, self.operator.vjp(x, v)),
                    "the gradient",
                )
        except Exception:
            if self.found.get("differentiable") is False:
                return  # the same complaint, already made
            raise
        self.found["adjoint_error"] = error
        if not error <= self.tolerance:
            self.problems.append(
                f"{name} fails the dot test, <A u, v> != <u, A^T v>, by {error:.1e}: correct it, or "
                "leave it out and it will be derived by automatic differentiation (complex: A^H, with the "
                "conjugate)"
            )

    def gradient(self) -> None:
        x, u = self.images(0), self.images(1)
        v = self.operator(u)
        try:
            pulled = self.operator.vjp(x, v)
        except Exception as reason:
            self.found["differentiable"] = False
            self.problems.append(
                f"A has no gradient ({_told(reason)}): write it with torch operations, or, if it is linear, "
                "pass CallableOperator(..., adjoint=...); no sampler with likelihood guidance can use it so"
            )
            return
        self.found["differentiable"] = True
        if self.operator.linear:
            error = _dot_error(self.operator(u), v, u, pulled)
            if not error <= self.tolerance:
                self.problems.append(f"vjp is not the transpose of A: the dot test fails by {error:.1e}")
            return
        self._compare_differences(x, u, pulled)

    def _compare_differences(self, x: Tensor, u: Tensor, pulled: Tensor) -> None:
        step = torch.finfo(self.dtype).eps ** (1 / 3)
        change = (self.operator(x + step * u) - self.operator(x - step * u)) / (2 * step)
        coarse = self.operator(x + 0.5 * u) - self.operator(x - 0.5 * u)
        if not bool(pulled.any()) and bool(coarse.abs().max() > 0):
            self.problems.append(
                "the gradient of A is 0 everywhere though A changes (rounding, comparison or argmax inside?)"
                ": use a straight-through or smoothed version, guidance cannot move otherwise"
            )
            return
        self.found["gradient_error"] = error = _distance(self.operator.jvp(x, u), change)
        if not error <= 1e-2:
            self.notes.append(
                f"the gradient differs from finite differences by {error:.1e}: meant for a straight-through "
                "gradient, otherwise look for an error in a custom backward"
            )

    def on_device(self, device: torch.device) -> None:
        self.found["device"] = str(device)
        # float32: not every device has float64.
        x = self.images(0, torch.float32)
        y = self.operator.to(device)(x.to(device))
        if y.device.type != device.type:
            self.problems.append(
                f"images on {device} give measurements on {y.device}: move parameters to x's "
                "device, as in weight.to(x)"
            )
        elif device.type != "meta" and not _distance(y.cpu(), self.operator(x)) <= 1e-3:
            self.problems.append(f"A on {device} differs from A on the CPU")


def _told(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"


def _unit(x: Tensor) -> Tensor:
    size = inner(x, x).sqrt().clamp(min=1e-30).reshape(-1, *[1] * (x.ndim - 1))
    return x / size


def _distance(a: Tensor, b: Tensor) -> float:
    """Largest difference relative to the largest entry; infinite for other shapes."""
    if a.shape != b.shape:
        return float("inf")
    largest = torch.maximum(a.abs().max(), b.abs().max()).clamp(min=1e-30)
    return float((a - b).abs().max() / largest)


def _dot_error(forward: Tensor, v: Tensor, u: Tensor, back: Tensor) -> float:
    """|<A u, v> - <u, A^T v>|, relative to the lengths, the largest over rows."""
    if back.shape != u.shape:
        return float("inf")
    left, right = inner(forward, v), inner(u, back)
    scale = torch.maximum(inner(forward, forward) * inner(v, v), inner(u, u) * inner(back, back)).sqrt()
    return float(((left - right).abs() / scale.clamp(min=1e-30)).max())
