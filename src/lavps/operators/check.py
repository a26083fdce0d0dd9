r"""Checks of an operator against the contract of :class:`lavps.operators.Operator`.

On random images x, u and measurements v:

.. math:: \langle A u, v \rangle = \langle u, A^T v \rangle, \qquad A(a x + b u) = a A x + b A u,

A is deterministic, rows of a batch are independent, float32 and float64 are preserved, and A has a gradient.
For a nonlinear operator the first identity is checked for the Jacobian at x. A bad operator is reported,
never raised.
"""

from __future__ import annotations

__all__ = ["check"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from ..devices import resolve_device
from ..random import NoiseStreams, Purpose
from .base import Operator
from .convert import as_operator
from .linalg import inner
from .probing import distance, linearity_error
from .report import OperatorReport


def check(
    operator: Operator | Callable[[Tensor], Tensor],
    shape: Sequence[int],
    batch: int = 2,
    tolerance: float = 1e-4,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> OperatorReport:
    """Evaluate an operator on random images and report violations of the contract.

    Args:
        operator: Operator, or plain function (treated as nonlinear; the report notes if it appears linear).
        shape: Image shape (C, *spatial).
        batch: Number of rows; an operator with batched parameters is tested on its own number of rows.
        tolerance: Largest relative error accepted.
        seed: Seed of the random images.
        device: Second device to test on; by default the accelerator, if there is one.

    Example:
        >>> from lavps.operators import AveragePool
        >>> check(AveragePool(2), (3, 8, 8), device="cpu").ok
        True
    """
    operator = as_operator(operator, shape)
    if device is None and (found := resolve_device()) != "cpu":
        device = found
    trial = _Trial(operator, tuple(shape), operator.batch if operator.batch > 1 else batch, tolerance, seed)
    if trial.find_dtypes():
        for name in ("repeatability", "rows", "shapes", "linearity", "gradient", "adjoint"):
            trial.attempt(name, getattr(trial, name))
        if device is not None:
            trial.attempt("another device", partial(trial.on_device, torch.device(device)))
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
    """One run of the checks and its findings."""

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
        streams = NoiseStreams.from_seed(self.batch, self.seed)
        like = torch.zeros((), dtype=dtype or self.dtype)
        return (0.5 * streams.normal(Purpose.PROBE, self.shape, like, index=index)).clamp(-1.0, 1.0)

    def attempt(self, name: str, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            self.problems.append(f"the check of {name} raised {_summary(error)}")

    def find_dtypes(self) -> bool:
        """Evaluate A in both precisions and select the higher one that works for the other checks."""
        preserved: dict[torch.dtype, bool] = {}
        for dtype in (torch.float32, torch.float64):
            try:
                y = self.operator(self.images(0, dtype))
            except Exception as error:
                self.problems.append(
                    f"A fails on {dtype} images with {_summary(error)}: cast its parameters to x's dtype, "
                    "as in weight.to(x)"
                )
                continue
            if y.ndim < 1 or y.shape[0] != self.batch:
                self.problems.append(
                    f"{self.batch} images give an output of shape {tuple(y.shape)}: the first axis must "
                    "count the images, and A must treat each independently"
                )
                return False
            preserved[dtype] = y.real.dtype == dtype
            if not preserved[dtype]:
                self.problems.append(
                    f"{dtype} images give {y.dtype} measurements: cast constants and parameters to x's dtype"
                )
        self.found["preserves_dtype"] = len(preserved) == 2 and all(preserved.values())
        self.dtype = max(preserved, key=lambda dtype: torch.finfo(dtype).bits, default=self.dtype)
        return bool(preserved)

    def repeatability(self) -> None:
        x = self.images(0)
        before = x.clone()
        first, second = self.operator(x), self.operator(x)
        if not torch.equal(x, before):
            self.problems.append("A changes its input in place: use a copy (x.clone(), mul instead of mul_)")
        same = first.shape == second.shape and distance(first, second) <= 1e-6
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
        alone = [self.operator.select(torch.tensor([i]))(x[i : i + 1]) for i in range(self.batch)]
        self.found["batch_independent"] = distance(torch.cat(alone), self.operator(x)) <= self.tolerance
        if not self.found["batch_independent"]:
            self.problems.append(
                "a row of a batch differs from the same image alone: reduce over axes 1 and up only, never "
                "over the batch; with batched parameters, override select()"
            )

    def shapes(self) -> None:
        measured = tuple(self.operator(self.images(0)).shape[1:])
        self.found["measurement_shape"] = measured
        stated = tuple(self.operator.input_shape(measured))
        if stated != self.shape:
            self.problems.append(
                f"input_shape({measured}) returns {stated}, but the images are {self.shape}: correct "
                "input_shape (or in_shape= of a CallableOperator)"
            )

    def linearity(self) -> None:
        x, u = self.images(0), self.images(1)
        error = linearity_error(self.operator, x, u)
        self.found["linearity_error"] = error
        if self.operator.linear and not error <= self.tolerance:
            self.problems.append(
                f"declared linear, but A(a x + b u) differs from a A x + b A u by {error:.1e}: set "
                "linear=False (an affine A is nonlinear: subtract the offset from y instead)"
            )
        elif not self.operator.linear and error <= self.tolerance:
            self.notes.append(
                "behaves linearly: CallableOperator(..., linear=True) provides adjoint and pseudo-inverse"
            )

    def adjoint(self) -> None:
        x, u = self.images(0), self.images(1)
        forward = self.operator(u)
        # Half along A u, half random: random directions alone would hide a wrong factor in high dimension.
        streams = NoiseStreams.from_seed(self.batch, self.seed)
        v = _unit(forward) + _unit(streams.normal(Purpose.PROBE, forward.shape[1:], forward, index=2))
        try:
            if self.operator.linear:
                error, name = _dot_error(forward, v, u, self.operator.adjoint(v)), "the adjoint"
            else:
                product = self.operator.jvp(x, u)
                error, name = _dot_error(product, v, u, self.operator.vjp(x, v)), "the gradient"
        except Exception:
            if self.found.get("differentiable") is False:
                return  # already reported
            raise
        self.found["adjoint_error"] = error
        if not error <= self.tolerance:
            self.problems.append(
                f"{name} fails the dot test, <A u, v> != <u, A^T v>, by {error:.1e}: correct it, or omit it "
                "and it is derived by automatic differentiation (complex: A^H, with the conjugate)"
            )

    def gradient(self) -> None:
        x, u = self.images(0), self.images(1)
        v = self.operator(u)
        try:
            gradient = self.operator.vjp(x, v)
        except Exception as reason:
            self.found["differentiable"] = False
            self.problems.append(
                f"A has no gradient ({_summary(reason)}): write it with torch operations, or, if it is "
                "linear, pass CallableOperator(..., adjoint=...); likelihood guidance needs a gradient"
            )
            return
        self.found["differentiable"] = True
        if not self.operator.linear:
            self._compare_differences(x, u, gradient)
        elif not (error := _dot_error(v, v, u, gradient)) <= self.tolerance:
            self.problems.append(f"vjp is not the transpose of A: the dot test fails by {error:.1e}")

    def _compare_differences(self, x: Tensor, u: Tensor, gradient: Tensor) -> None:
        step = torch.finfo(self.dtype).eps ** (1 / 3)
        change = (self.operator(x + step * u) - self.operator(x - step * u)) / (2 * step)
        coarse = self.operator(x + 0.5 * u) - self.operator(x - 0.5 * u)
        if not bool(gradient.any()) and bool(coarse.abs().max() > 0):
            self.problems.append(
                "the gradient of A is 0 everywhere although A varies (rounding, comparison or argmax?): "
                "use a straight-through or smoothed version, or guidance has no effect"
            )
            return
        self.found["gradient_error"] = error = distance(self.operator.jvp(x, u), change)
        if not error <= 1e-2:
            self.notes.append(
                f"the gradient differs from finite differences by {error:.1e}: expected for a "
                "straight-through gradient, otherwise a sign of an error in a custom backward"
            )

    def on_device(self, device: torch.device) -> None:
        self.found["device"] = str(device)
        x = self.images(0, torch.float32)  # some devices lack float64
        y = self.operator.to(device)(x.to(device))
        if y.device.type != device.type:
            self.problems.append(
                f"images on {device} give measurements on {y.device}: move parameters to x's device, "
                "as in weight.to(x)"
            )
        elif device.type != "meta" and not distance(y.cpu(), self.operator(x)) <= 1e-3:
            self.problems.append(f"A on {device} differs from A on the CPU")


def _summary(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _unit(x: Tensor) -> Tensor:
    return x / inner(x, x).sqrt().clamp(min=1e-30).reshape(-1, *[1] * (x.ndim - 1))


def _dot_error(forward: Tensor, v: Tensor, u: Tensor, back: Tensor) -> float:
    """Return the maximum over rows of |<A u, v> - <u, A^T v>| relative to the lengths."""
    if back.shape != u.shape:
        return float("inf")
    left, right = inner(forward, v), inner(u, back)
    scale = torch.maximum(inner(forward, forward) * inner(v, v), inner(u, u) * inner(back, back)).sqrt()
    return float(((left - right).abs() / scale.clamp(min=1e-30)).max())
