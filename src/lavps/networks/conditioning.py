r"""How a network learns of the measurement.

By channels beside the image, functions of the context :math:`c = (x_0, x_t, s, t, y, A)`:

- :class:`Palette`: what the measurement alone says of the image, :math:`(A^T A + \delta I)^{-1} A^T y`;
- :class:`LikelihoodGradient`: what it says against the current estimate,

  .. math:: g = J^T W (y - A(x_0)) / \lambda_{max}(J^T W J),

  J the Jacobian of A at :math:`x_0`, W the precision of the noise. The raw gradient grows as
  :math:`1/\sigma_y^2`; divided by the curvature it is a step in the units of the image, as long as the
  misfit, whatever the noise and the operator.

Or by the operator itself, inside the network (:class:`InvFusion`): tokens of D channels, each standing for a
square of P x P pixels, are read as :math:`k = D / (C P^2)` images of C channels; with z a value of the
measurement,

.. math:: \tilde y = A^+\, \mathrm{gelu}(W [A f_1, \dots, A f_k, y])_z ,

read as tokens again. The network attends to both: it asks what its own features would have measured.

References:
    - Saharia et al., Palette: Image-to-Image Diffusion Models, 2022.
    - Elata et al., InvFussion: Bridging Supervised and Zero-shot Diffusion for Inverse Problems, 2025.
"""

from __future__ import annotations

__all__ = [
    "Conditioning",
    "InvFusion",
    "LikelihoodGradient",
    "Palette",
    "conditioning_channels",
]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..problem import InverseProblem
from ..transitions import per_sample
from ..variational import Context
from .layers import RMSNorm, crop, merge_tokens, split_tokens


class Conditioning(Protocol):
    """A rule for channels beside the image."""

    def channels(self, image_channels: int) -> int:
        """How many there are, for images of so many channels."""
        ...

    def images(self, context: Context) -> Tensor:
        """These channels (B, channels, *spatial), each row a function of its own row of the context."""
        ...


def conditioning_channels(parts: Sequence[Conditioning], context: Context) -> Tensor:
    """The channels of several conditionings, one after the other: (B, sum of channels, *spatial)."""
    return torch.cat([context.x_0[:, :0], *(part.images(context) for part in parts)], dim=1)


_TOLERANCE = 1e-3  # of A^+ y by conjugate gradients: a network does not see the fourth digit


@dataclass(frozen=True)
class Palette:
    """The measurement brought back to the image: as many channels as the image has.

    A nonlinear operator has neither inverse nor adjoint: there the channels are y itself where it has the
    image's shape, else J^T y at x_0, scaled to unit mean square.

    Args:
        back: the damped pseudo-inverse, or the adjoint over the operator's norm squared.
        damping: of the pseudo-inverse; near the noise's variance over that of the images.
    """

    back: Literal["pseudo_inverse", "adjoint"] = "pseudo_inverse"
    damping: float = 0.01

    def __post_init__(self) -> None:
        if self.back not in ("pseudo_inverse", "adjoint"):
            raise ValueError(f'back must be "pseudo_inverse" or "adjoint", got {self.back!r}')
        if self.damping < 0:
            raise ValueError(f"damping must not be negative, got {self.damping}")

    def channels(self, image_channels: int) -> int:
        """C."""
        return image_channels

    def images(self, context: Context) -> Tensor:
        """A^+ y, in the dtype of x_0; computed once for a linear problem."""
        problem, x_0 = context.problem, context.x_0
        if problem.operator.linear:
            return problem.remembered(self, lambda: self._linear(problem)).to(x_0)
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
    """The gradient of the log-likelihood at x_0 over its curvature: as many channels as the image has.

    Costs one application of A and one of J^T; the curvature is computed once for a linear problem with
    Gaussian noise, else at every x_0 anew, by power iteration.
    """

    def channels(self, image_channels: int) -> int:
        """C."""
        return image_channels

    def images(self, context: Context) -> Tensor:
        """J^T W (y - A(x_0)) / lambda_max, 0 where the likelihood is flat; not differentiable in x_0."""
        problem, x_0 = context.problem, context.x_0.detach()
        with torch.no_grad():
            return _over(problem.pull(x_0), problem.curvature(x_0))


def _over(x: Tensor, size: Tensor) -> Tensor:
    """x (B, ...) over size (B,), row by row; 0 where the size is."""
    positive = size > torch.finfo(size.dtype).tiny
    return torch.where(per_sample(positive, positive.new_empty(x.shape)), x / per_sample(size, x), 0.0)


class InvFusion(nn.Module):
    """Feature degradation: tokens, seen through the operator, compared with y and brought back.

    Linear operators only. Where k is not whole, the tokens are projected to the nearest whole number of
    images below (at least one) and back.

    Args:
        width: D, channels of a token.
        patch: P, the side of a token in pixels.
        image_channels: C.
        damping: of the pseudo-inverse: features of an undamped deblurring would drown in its noise.
    """

    def __init__(self, width: int, patch: int, image_channels: int = 3, damping: float = 1e-3) -> None:
        super().__init__()
        self.patch = patch
        self.image_channels = image_channels
        self.damping = damping
        self.features = max(width // (image_channels * patch**2), 1)
        inner = self.features * image_channels * patch**2
        self.norm_in = RMSNorm(width)
        self.enter = nn.Identity() if inner == width else nn.Linear(width, inner, bias=False)
        self.mix = nn.Linear(self.features + 1, self.features)
        self.leave = nn.Identity() if inner == width else nn.Linear(inner, width, bias=False)
        self.norm_out = RMSNorm(width)

    def forward(self, tokens: Tensor, problem: InverseProblem) -> Tensor:
        """Tokens (B, H, W, D) of images whose padded size is (P H, P W), B the problem's; y~ (B, H, W, D)."""
        if not problem.operator.linear:
            raise TypeError(
                f"InvFusion needs a pseudo-inverse and {problem.operator!r} is not linear: "
                "tell the network of it by the channels of LikelihoodGradient instead"
            )
        if problem.image_shape[0] != self.image_channels or len(problem) != len(tokens):
            raise ValueError(
                f"InvFusion was built for images of {self.image_channels} channels and met a batch of "
                f"{len(tokens)}; the problem has {len(problem)} images {problem.image_shape}"
            )
        images = split_tokens(self.enter(self.norm_in(tokens)), self.patch)
        # Operators are no place for half precision: transforms lack it, conjugate gradients stall in it.
        with torch.autocast(tokens.device.type, enabled=False):
            back = self._through(images, problem)
        return self.norm_out(self.leave(merge_tokens(back.to(tokens.dtype), self.patch)))  # type: ignore[no-any-return]

    def _through(self, images: Tensor, problem: InverseProblem) -> Tensor:
        """(B, H, W, k C) at full resolution, through A, the mix with y, and A^+, to the same shape."""
        single = images.float() if images.dtype in (torch.float16, torch.bfloat16) else images
        b, h, w, _ = single.shape
        padded = single.permute(0, 3, 1, 2).reshape(b, self.features, self.image_channels, h, w)
        inside = crop(padded, problem.image_shape)
        measured = problem.operator.apply_features(inside)
        y = problem.y[:, None].to(measured.dtype)
        mixed = self._mix(torch.cat([measured, y], dim=1)).contiguous()
        back = problem.operator.pseudo_inverse_features(mixed, self.damping).to(single.dtype)
        margin = (0, padded.shape[-1] - back.shape[-1], 0, padded.shape[-2] - back.shape[-2])
        return F.pad(back, margin).flatten(1, 2).permute(0, 2, 3, 1)

    def _mix(self, values: Tensor) -> Tensor:
        """gelu(W v + b) for every value of the measurement: (B, k + 1, *measurement) to (B, k, ...)."""
        if values.is_complex():  # the two parts are two values
            return torch.view_as_complex(self._mix(torch.view_as_real(values)).contiguous())
        weight, bias = self.mix.weight.to(values.dtype), self.mix.bias.to(values.dtype)
        return F.gelu(F.linear(values.movedim(1, -1), weight, bias)).movedim(-1, 1)
