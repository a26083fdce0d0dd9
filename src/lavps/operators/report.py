"""What a check of an operator found, as a record that prints itself."""

from __future__ import annotations

__all__ = ["OperatorReport"]

from dataclasses import dataclass


@dataclass(frozen=True)
class OperatorReport:
    """What :func:`check` found. Errors are relative, the largest over the batch; None where not measured.

    Attributes:
        operator: the operator's name.
        declared_linear: what the operator says of itself.
        image_shape: (C, *spatial).
        measurement_shape: shape of a measurement, without batch.
        adjoint_error: dot test, <A u, v> against <u, A^T v> (nonlinear: of the Jacobian).
        linearity_error: A(a x + b u) against a A x + b A u; measured whatever is declared.
        gradient_error: the Jacobian along a direction, against finite differences of A (nonlinear only).
        deterministic: A(x) == A(x).
        batch_independent: every row of a batch equals the call on that row alone.
        preserves_dtype: float32 and float64 (or their complex partners) come out as they went in.
        differentiable: torch can differentiate A.
        device: the device, besides the CPU, on which A was tried.
        problems: what breaks the contract and what to do about it.
        notes: what is worth knowing and breaks nothing.
    """

    operator: str
    declared_linear: bool
    image_shape: tuple[int, ...]
    measurement_shape: tuple[int, ...] | None = None
    adjoint_error: float | None = None
    linearity_error: float | None = None
    gradient_error: float | None = None
    deterministic: bool | None = None
    batch_independent: bool | None = None
    preserves_dtype: bool | None = None
    differentiable: bool | None = None
    device: str | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing breaks the contract."""
        return not self.problems

    def __str__(self) -> str:
        kind = "linear" if self.declared_linear else "nonlinear"
        lines = [f"{self.operator} ({kind}): {'ok' if self.ok else f'{len(self.problems)} problem(s)'}"]
        lines.append(f"  images {self.image_shape} -> measurements {self.measurement_shape}")
        for name in ("adjoint_error", "linearity_error", "gradient_error"):
            value = getattr(self, name)
            lines += [] if value is None else [f"  {name.replace('_', ' ')}: {value:.1e}"]
        for name in ("deterministic", "batch_independent", "preserves_dtype", "differentiable"):
            value = getattr(self, name)
            lines += [] if value is None else [f"  {name.replace('_', ' ')}: {'yes' if value else 'NO'}"]
        lines += [] if self.device is None else [f"  tried on: {self.device}"]
        lines += [f"  PROBLEM: {problem}" for problem in self.problems]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])
