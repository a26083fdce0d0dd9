"""An operator of your own: a lens that is darker towards the corners."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lavps.operators import Operator


@dataclass(frozen=True, eq=False)
class Vignette(Operator):
    """y = (1 - strength r^2) x, r the distance to the middle; strength (B,)."""

    strength: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Measure; adjoint, pseudo-inverse and norm follow from this."""
        self._require_rows(x)
        height, width = x.shape[-2:]
        rows = torch.linspace(-1, 1, height, dtype=x.dtype, device=x.device)
        columns = torch.linspace(-1, 1, width, dtype=x.dtype, device=x.device)
        squared = (rows[:, None].square() + columns.square()) / 2
        return (1 - self.strength.to(x).reshape(-1, 1, 1, 1) * squared) * x

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """Images have the shape of their measurements."""
        return tuple(measurement_shape)

    def select(self, rows: Tensor) -> Operator:
        """The lenses of these rows."""
        if self.batch == 1:
            return self
        return Vignette(self.strength[rows.to(self.strength.device)])

    @property
    def batch(self) -> int:
        """How many lenses there are."""
        return len(self.strength)
