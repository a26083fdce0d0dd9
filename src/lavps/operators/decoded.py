r"""An operator on images as an operator on latents: :math:`z \mapsto A(\mathrm{decode}(z))`."""

from __future__ import annotations

__all__ = ["DecodedOperator"]

from collections.abc import Sequence

import torch
from torch import Tensor

from ..priors import LatentPrior
from .base import Operator


class DecodedOperator(Operator):
    """A measurement of decoded latents, nonlinear whatever A is.

    Args:
        operator: A, on images.
        prior: the latent prior that decodes, see :class:`~lavps.priors.LatentPrior`.
    """

    linear = False

    def __init__(self, operator: Operator, prior: LatentPrior) -> None:
        self.operator = operator
        self.prior = prior

    def __call__(self, x: Tensor) -> Tensor:
        """A(decode(z)) for latents z (B, c, h, w)."""
        return self.operator(self.prior.decode(x))

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape (c, h, w) of the latents of the images that A measures."""
        return self.prior.latent_shape(self.operator.input_shape(measurement_shape))

    def observed(self, y: Tensor) -> Tensor | None:
        """What A observes."""
        return self.operator.observed(y)

    def select(self, rows: Tensor) -> Operator:
        """A's rows, decoded as before."""
        return DecodedOperator(self.operator.select(rows), self.prior)

    def to(self, *args: torch.device | str | torch.dtype) -> Operator:
        """A elsewhere; the decoder stays with its prior."""
        return DecodedOperator(self.operator.to(*args), self.prior)

    @property
    def batch(self) -> int:
        """A's rows."""
        return self.operator.batch

    def __repr__(self) -> str:
        return f"DecodedOperator({self.operator!r})"
