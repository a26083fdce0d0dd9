r"""Rules for the midpoint s < t of a guided step (the weights :math:`\omega_t^s` of the paper's Eq. 13)."""

from __future__ import annotations

__all__ = ["FractionMidpoint", "Midpoint", "MixedMidpoint", "PreviousMidpoint", "UniformMidpoint"]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Midpoint(Protocol):
    """A rule for s given the place k in the grid."""

    def draw(self, grid: Tensor, k: int, uniform: Callable[[], Tensor]) -> Tensor:
        """The midpoint below grid[k].

        Args:
            grid: times t_0 < ... < t_K.
            k: current place, at least 2.
            uniform: gives one uniform number per row (B,), for rules that draw.

        Returns:
            s in (0, t_k), float64, shape () or (B,).
        """
        ...


@dataclass(frozen=True)
class PreviousMidpoint:
    """s = t_{k-1}, the paper's choice."""

    def draw(self, grid: Tensor, k: int, uniform: Callable[[], Tensor]) -> Tensor:
        """t_{k-1}."""
        return grid[k - 1]


@dataclass(frozen=True)
class UniformMidpoint:
    """s uniform on [t_1, t_k), a draw of its own for every row."""

    def draw(self, grid: Tensor, k: int, uniform: Callable[[], Tensor]) -> Tensor:
        """t_1 + u (t_k - t_1)."""
        return grid[1] + uniform() * (grid[k] - grid[1])


@dataclass(frozen=True)
class MixedMidpoint:
    """Uniform while t_k > ``switch``, then t_{k-1} (MGDM's "mix")."""

    switch: float = 0.5

    def draw(self, grid: Tensor, k: int, uniform: Callable[[], Tensor]) -> Tensor:
        """Early: uniform; late: the previous time."""
        rule: Midpoint = UniformMidpoint() if float(grid[k]) > self.switch else PreviousMidpoint()
        return rule.draw(grid, k, uniform)


@dataclass(frozen=True)
class FractionMidpoint:
    """s = fraction * t_k (MGPS's choice), but not below t_1."""

    fraction: float = 0.75

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ValueError(f"fraction must lie strictly between 0 and 1, got {self.fraction}")

    def draw(self, grid: Tensor, k: int, uniform: Callable[[], Tensor]) -> Tensor:
        """max(t_1, fraction t_k)."""
        return (self.fraction * grid[k]).clamp(min=float(grid[1]))
