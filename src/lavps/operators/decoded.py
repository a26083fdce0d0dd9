r"""Operators on latents: :math:`z \mapsto A(\mathrm{decode}(z))`."""

from __future__ import annotations

__all__ = ["DecodedOperator"]

from collections.abc import Sequence

from torch import Tensor

from ..priors import LatentPrior
from .base import Operator, WrappedOperator


class DecodedOperator(WrappedOperator):
    """Measurement of decoded latents; nonlinear for every A.

    Args:
        operator: Operator A on images.
        prior: Latent prior with the decoder, see :class:`~lavps.priors.LatentPrior`.
    """

    def __init__(self, operator: Operator, prior: LatentPrior) -> None:
        self.operator = operator
        self.linear = False
        self.prior = prior

    def _wrap(self, operator: Operator) -> Operator:
        return DecodedOperator(operator, self.prior)

    def __call__(self, x: Tensor) -> Tensor:
        """Return A(decode(z)) for latents z (B, c, h, w)."""
        return self.operator(self.prior.decode(x))

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the latent shape (c, h, w) of the images that A measures."""
        return self.prior.latent_shape(self.operator.input_shape(measurement_shape))
