"""An operator of your own: a lens that is darker towards the corners, more or less so for every item."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lavps.operators import Operator


@dataclass(frozen=True, eq=False)
class Vignette(Operator):
    """y = (1 - strength r^2) x with r the distance to the middle; strength (B,), one an item, or (1,)."""

    strength: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """What the lens lets through. All else (adjoint, pseudo-inverse, norm) follows from this."""
        self._require_rows(x)
        rows, columns = (torch.linspace(-1, 1, n, dtype=x.dtype, device=x.device) for n in x.shape[-2:])
        squared = (rows[:, None].square() + columns.square()) / 2
        return (1 - self.strength.to(x).reshape(-1, 1, 1, 1) * squared) * x

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """Images have the shape of their measurements."""
        return tuple(measurement_shape)

    def select(self, rows: Tensor) -> Operator:
        """The lenses of these rows."""
        return self if self.batch == 1 else Vignette(self.strength[rows.to(self.strength.device)])

    @property
    def batch(self) -> int:
        """How many lenses there are."""
        return len(self.strength)
