"""What networks need of a measurement, as protocols: this package imports no operators and no problems."""

from __future__ import annotations

__all__ = ["MeasurementLike", "OperatorLike"]

from typing import Protocol

from torch import Tensor


class OperatorLike(Protocol):
    """The part of a measurement operator A that a network applies to its features."""

    @property
    def linear(self) -> bool:
        """Whether A is linear."""

    def apply_features(self, features: Tensor) -> Tensor:
        """A f_1, ..., A f_k for features (B, k, C, *spatial)."""

    def pseudo_inverse_features(self, values: Tensor, damping: float) -> Tensor:
        """The damped pseudo-inverse of values (B, k, *measurement)."""


class MeasurementLike(Protocol):
    """Measurements y and their operator; :class:`~lavps.problem.InverseProblem` is one."""

    @property
    def y(self) -> Tensor:
        """Measurements (B, *measurement)."""

    @property
    def operator(self) -> OperatorLike:
        """The operator A."""

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape (C, *spatial) of the images."""

    def __len__(self) -> int:
        """Number B of measurements."""
