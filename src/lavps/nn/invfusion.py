r"""InvFusion: features seen through the measurement operator.

Tokens of D channels, each standing for a square of P x P pixels, are read as :math:`k = D / (C P^2)` images
of C channels; with z a value of the measurement,

.. math:: \tilde y = A^+\, \mathrm{gelu}(W [A f_1, \dots, A f_k, y])_z ,

read as tokens again. The network attends to both.

References:
    - Elata et al., InvFussion: Bridging Supervised and Zero-shot Diffusion for Inverse Problems, 2025.
"""

from __future__ import annotations

__all__ = ["InvFusion"]

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import RMSNorm, crop, merge_tokens, split_tokens
from .protocols import MeasurementLike


class InvFusion(nn.Module):
    """Feature degradation: features mapped through the operator, mixed with y and mapped back.

    It needs a linear operator. If k is not an integer, a linear layer projects the tokens to the next smaller
    number of images (at least one) and another projects back.

    Args:
        width: Channels D of a token.
        patch: Side P of a token in pixels.
        image_channels: Channels C of an image.
        damping: Damping of the pseudo-inverse, which limits the amplification of noise.
    """

    def __init__(self, width: int, patch: int, image_channels: int = 3, damping: float = 1e-3) -> None:
        super().__init__()
        self.patch, self.image_channels, self.damping = patch, image_channels, damping
        self.features = max(width // (image_channels * patch**2), 1)
        inner = self.features * image_channels * patch**2
        self.norm_in = RMSNorm(width)
        self.enter = nn.Identity() if inner == width else nn.Linear(width, inner, bias=False)
        self.mix = nn.Linear(self.features + 1, self.features)
        self.leave = nn.Identity() if inner == width else nn.Linear(inner, width, bias=False)
        self.norm_out = RMSNorm(width)

    def forward(self, tokens: Tensor, problem: MeasurementLike) -> Tensor:
        """Return y~ (B, H, W, D) for tokens (B, H, W, D) of B images with padded size (P H, P W)."""
        if not problem.operator.linear:
            raise TypeError(
                f"InvFusion needs a pseudo-inverse and {problem.operator!r} is not linear: "
                "condition the network by LikelihoodGradient instead"
            )
        if problem.image_shape[0] != self.image_channels or len(problem) != len(tokens):
            raise ValueError(
                f"InvFusion was built for images of {self.image_channels} channels and received a batch of "
                f"{len(tokens)}; the problem has {len(problem)} images of shape {problem.image_shape}"
            )
        images = split_tokens(self.enter(self.norm_in(tokens)), self.patch)
        # Operators run in full precision: transforms lack half precision, conjugate gradients stall in it.
        with torch.autocast(tokens.device.type, enabled=False):
            back = self._through(images, problem)
        return self.norm_out(self.leave(merge_tokens(back.to(tokens.dtype), self.patch)))  # type: ignore[no-any-return]

    def _through(self, images: Tensor, problem: MeasurementLike) -> Tensor:
        """Apply A, the mix with y, and A^+ to images (B, H, W, k C) at full resolution."""
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
        """Apply gelu(W v + b) per value of the measurement: (B, k + 1, *measurement) to (B, k, ...)."""
        if values.is_complex():  # real and imaginary part are two values
            return torch.complex(*self._mix(torch.view_as_real(values)).unbind(-1))
        weight, bias = self.mix.weight.to(values.dtype), self.mix.bias.to(values.dtype)
        return F.gelu(F.linear(values.movedim(1, -1), weight, bias)).movedim(-1, 1)
