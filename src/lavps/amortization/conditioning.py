r"""Conditioning of a network on the measurement.

Channels beside the image are functions of the context :math:`c = (x_0, x_t, s, t, y, A)`:

- :class:`Palette`: the regularized inverse of the measurement, :math:`(A^T A + \delta I)^{-1} A^T y`;
- :class:`LikelihoodGradient`: the likelihood gradient at the current estimate,

  .. math:: g = J^T W (y - A(x_0)) / \lambda_{max}(J^T W J),

  with J the Jacobian of A at :math:`x_0` and W the precision of the noise. The raw gradient grows as
  :math:`1/\sigma_y^2`; division by the curvature makes it a step in image units for any noise and operator.

The operator itself, inside the network, is :class:`~lavps.nn.InvFusion`.

References:
    - Saharia et al., Palette: Image-to-Image Diffusion Models, 2022.
"""

from __future__ import annotations

__all__ = ["Conditioning", "LikelihoodGradient", "Palette", "conditioning_channels"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from ..problem import InverseProblem
from ..transitions import per_sample
from ..variational import Context


class Conditioning(Protocol):
    """Channels beside the image, as a function of the context."""

    def channels(self, image_channels: int) -> int:
        """Return the number of channels for images of ``image_channels`` channels."""

    def images(self, context: Context) -> Tensor:
        """Return the channels (B, channels, *spatial); each row depends on its row of the context only."""


def conditioning_channels(parts: Sequence[Conditioning], context: Context) -> Tensor:
    """Concatenate the channels of several conditionings: (B, sum of channels, *spatial)."""
    return torch.cat([context.x_0[:, :0], *(part.images(context) for part in parts)], dim=1)


_TOLERANCE = 1e-3  # relative residual of A^+ y by conjugate gradients


@dataclass(frozen=True)
class Palette:
    """The measurement mapped to image space, with as many channels as the image.

    For a nonlinear operator the channels are y itself if it has the image's shape, else J^T y at x_0, scaled
    to unit mean square.

    Args:
        back: Damped pseudo-inverse, or adjoint divided by the squared norm of the operator.
        damping: Damping of the pseudo-inverse, near the noise variance divided by the image variance.

    Example:
        >>> from lavps.amortization import Palette
        >>> Palette(damping=0.1).channels(image_channels=3)
        3
    """

    back: Literal["pseudo_inverse", "adjoint"] = "pseudo_inverse"
    damping: float = 0.01

    def __post_init__(self) -> None:
        if self.back not in ("pseudo_inverse", "adjoint"):
            raise ValueError(f'back must be "pseudo_inverse" or "adjoint", got {self.back!r}')
        if self.damping < 0:
            raise ValueError(f"damping must not be negative, got {self.damping}")

    def channels(self, image_channels: int) -> int:
        """Return C."""
        return image_channels

    def images(self, context: Context) -> Tensor:
        """Return A^+ y in the dtype of x_0, computed once per linear problem."""
        problem, x_0 = context.problem, context.x_0
        if problem.operator.linear:
            return problem.cached(self, lambda: self._linear(problem)).to(x_0)
        if problem.y.shape == x_0.shape and not problem.y.is_complex():
            return problem.y.to(x_0)
        back = problem.operator.vjp(x_0, problem.y)
        return _over(back, back.flatten(1).square().mean(1).sqrt())

    def _linear(self, problem: InverseProblem) -> Tensor:
        operator, y = problem.operator, problem.y
        if self.back == "pseudo_inverse":
            return operator.pseudo_inverse(y, self.damping, tolerance=_TOLERANCE)
        back = operator.adjoint(y)
        return _over(back, operator.norm(back).square())


@dataclass(frozen=True)
class LikelihoodGradient:
    """The gradient of the log-likelihood at x_0 divided by its curvature, with C channels.

    It costs one application of A and one of J^T. The curvature is computed by power iteration, once for a
    linear problem with Gaussian noise, else at every x_0.
    """

    def channels(self, image_channels: int) -> int:
        """Return C."""
        return image_channels

    def images(self, context: Context) -> Tensor:
        """Return J^T W (y - A(x_0)) / lambda_max, 0 for a flat likelihood; not differentiable in x_0."""
        problem, x_0 = context.problem, context.x_0.detach()
        with torch.no_grad():
            return _over(problem.likelihood_score(x_0), problem.curvature(x_0))


def _over(x: Tensor, size: Tensor) -> Tensor:
    """Divide x (B, ...) by size (B,) per row; return 0 where the size is 0."""
    positive = size > torch.finfo(size.dtype).tiny
    return torch.where(per_sample(positive, positive.new_empty(x.shape)), x / per_sample(size, x), 0.0)
