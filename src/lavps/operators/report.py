"""Findings of a check of an operator."""

from __future__ import annotations

__all__ = ["OperatorReport"]

from dataclasses import dataclass


@dataclass(frozen=True)
class OperatorReport:
    """Findings of :func:`check`; errors are relative, maxima over the batch, and None if not measured.

    Attributes:
        operator: Name of the operator.
        declared_linear: Whether the operator is declared linear.
        image_shape: Image shape (C, *spatial).
        measurement_shape: Shape of a measurement, without batch.
        adjoint_error: Error of the dot test <A u, v> = <u, A^T v> (nonlinear: for the Jacobian).
        linearity_error: Difference between A(a x + b u) and a A x + b A u, also for nonlinear operators.
        gradient_error: Difference between J u and finite differences of A (nonlinear only).
        deterministic: Whether two evaluations of A(x) agree.
        batch_independent: Whether each row of a batch equals the evaluation of that row alone.
        preserves_dtype: Whether float32 and float64 (or their complex counterparts) are preserved.
        differentiable: Whether torch can differentiate A.
        device: Device besides the CPU on which A was tested.
        problems: Violations of the contract, with advice.
        notes: Remarks that are not violations.
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
        """Whether there are no problems."""
        return not self.problems

    def __str__(self) -> str:
        kind = "linear" if self.declared_linear else "nonlinear"
        lines = [f"{self.operator} ({kind}): {'ok' if self.ok else f'{len(self.problems)} problem(s)'}"]
        lines.append(f"  images {self.image_shape} -> measurements {self.measurement_shape}")
        errors = "adjoint_error", "linearity_error", "gradient_error"
        for name in (*errors, "deterministic", "batch_independent", "preserves_dtype", "differentiable"):
            if (value := getattr(self, name)) is not None:
                text = f"{value:.1e}" if name in errors else "yes" if value else "NO"
                lines.append(f"  {name.replace('_', ' ')}: {text}")
        lines += [] if self.device is None else [f"  tested on: {self.device}"]
        lines += [f"  PROBLEM: {problem}" for problem in self.problems]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])
