r"""A small convolutional U-Net similar to ADM, for use on a CPU.

Patches of p x p pixels become channels, which reduces the work by a factor :math:`p^2` at little loss of
quality. Levels of residual blocks

.. math::
    h &= \mathrm{norm}(\mathrm{conv}(\mathrm{silu}(\mathrm{norm}(x)))) \\
    x &\leftarrow x + \mathrm{conv}(\mathrm{silu}((1 + a) h + b)),

with (a, b) an affine function of the condition vector, halve the resolution in the encoder and double it in
the decoder, whose blocks also receive the encoder's maps. The output is initialized to zero.

Norms act on the channels of a position, as in EDM2, and the memory layout is channels-last: on a CPU this is
faster than ADM's group norms.

References:
    - Dhariwal and Nichol, Diffusion Models Beat GANs on Image Synthesis, 2021 (ADM).
    - Karras et al., Analyzing and Improving the Training Dynamics of Diffusion Models, 2024 (EDM2).
"""

from __future__ import annotations

__all__ = ["UNet", "UNetConfig", "unet_small"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import NetworkConfig
from .layers import ConditionEmbedding, crop, pad_to_multiple, zeroed
from .protocols import MeasurementLike


@dataclass(frozen=True)
class UNetConfig(NetworkConfig):
    """Architecture of a U-Net.

    Args:
        in_channels: Channels of the input, including all conditioning channels.
        out_channels: Channels of the output.
        patch: Side p of the patches that become channels.
        widths: Channels per level, finest first.
        depth: Residual blocks per level in the encoder; the decoder has one more.
        attention: Levels with self-attention; the middle always has it.
        head_dim: Channels per attention head.
        condition_width: Width of the condition vector.
        num_classes: Number of classes, 0 for none; one more stands for "no class".
        second_time: Conditioning on a second time s.
        dropout: Dropout rate of the residual blocks.
    """

    kind: ClassVar[str] = "unet"
    in_channels: int = 3
    out_channels: int = 3
    patch: int = 2
    widths: tuple[int, ...] = (64, 128, 128)
    depth: int = 2
    attention: tuple[int, ...] = (2,)
    head_dim: int = 32
    condition_width: int = 128
    num_classes: int = 0
    second_time: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.widths or self.depth < 1 or self.patch < 1:
            raise ValueError("a U-Net needs at least one level, one block per level and patch >= 1")
        if any(level not in range(len(self.widths)) for level in self.attention):
            raise ValueError(f"attention must be levels in 0..{len(self.widths) - 1}, got {self.attention}")
        attending = {self.widths[level] for level in (*self.attention, -1)}
        if any(width % self.head_dim for width in attending):
            raise ValueError(f"head_dim {self.head_dim} must divide the widths with attention, {attending}")

    @property
    def multiple(self) -> int:
        """Divisor of the image height and width; other sizes are padded."""
        return self.patch << (len(self.widths) - 1)


def unet_small(in_channels: int = 3, out_channels: int = 3) -> UNetConfig:
    """Return a network of 6.6 million parameters, for 64 x 64 images on a CPU."""
    return UNetConfig(in_channels, out_channels)


class _Norm(nn.Module):
    """Layer norm over the channels of each position of a map (B, D, H, W)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        last = x.permute(0, 2, 3, 1)
        return F.layer_norm(last, last.shape[-1:], self.gain, self.shift).permute(0, 3, 1, 2)


class _Residual(nn.Module):
    """A residual block (B, D, H, W) to (B, E, H, W) with scale and shift from the condition."""

    def __init__(self, width: int, out_width: int, condition_width: int, dropout: float) -> None:
        super().__init__()
        self.norm_in = _Norm(width)
        self.conv_in = nn.Conv2d(width, out_width, 3, padding=1)
        self.condition = nn.Linear(condition_width, 2 * out_width)
        self.norm_out = _Norm(out_width)
        self.dropout = nn.Dropout(dropout)
        self.conv_out = zeroed(nn.Conv2d(out_width, out_width, 3, padding=1))
        self.skip = nn.Identity() if width == out_width else nn.Conv2d(width, out_width, 1)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.condition(condition)[:, :, None, None].chunk(2, dim=1)
        hidden = self.norm_out(self.conv_in(F.silu(self.norm_in(x)))) * (1.0 + scale) + shift
        return self.skip(x) + self.conv_out(self.dropout(F.silu(hidden)))  # type: ignore[no-any-return]


class _SelfAttention(nn.Module):
    """Global self-attention with its residual connection."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.norm = _Norm(width)
        self.query_key_value = nn.Conv2d(width, 3 * width, 1)
        self.out = zeroed(nn.Conv2d(width, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        projected = self.query_key_value(self.norm(x)).permute(0, 2, 3, 1)
        tokens = projected.reshape(b, h * w, 3, -1, self.head_dim)
        out = _attend(*tokens.permute(2, 0, 3, 1, 4).contiguous().unbind(0))
        return x + self.out(out.transpose(1, 2).reshape(b, h, w, -1).permute(0, 3, 1, 2))  # type: ignore[no-any-return]


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend over (B, heads, positions, head_dim); for few positions the fused kernel is slower."""
    if query.shape[-2] > 1024:
        return F.scaled_dot_product_attention(query, key, value)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    weights: Tensor = scores.softmax(-1)
    return weights.to(value.dtype) @ value


class _Stage(nn.Module):
    """A residual block and, at some levels, attention; (B, D, H, W) to (B, E, H, W)."""

    def __init__(self, config: UNetConfig, width: int, level: int, attend: bool) -> None:
        super().__init__()
        out_width = config.widths[level]
        self.residual = _Residual(width, out_width, config.condition_width, config.dropout)
        self.attention = _SelfAttention(out_width, config.head_dim) if attend else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return self.attention(self.residual(x, condition))  # type: ignore[no-any-return]


def _stages(config: UNetConfig, inputs: Sequence[int], level: int) -> nn.ModuleDict:
    """Return the stages of a level in the encoder or the decoder, for these numbers of input channels."""
    attend = level in config.attention
    return nn.ModuleDict({"stages": nn.ModuleList(_Stage(config, n, level, attend) for n in inputs)})


class UNet(nn.Module):
    """The convolutional U-Net.

    Example:
        >>> import torch
        >>> from lavps.nn import UNet, unet_small
        >>> UNet(unet_small())(torch.randn(1, 3, 16, 16), torch.tensor(0.5)).shape
        torch.Size([1, 3, 16, 16])
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        widths, last = config.widths, len(config.widths) - 1
        self.embedding = ConditionEmbedding(config.condition_width, 1, config.second_time, config.num_classes)
        self.enter = nn.Conv2d(config.in_channels * config.patch**2, widths[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        self.shrink, self.grow = nn.ModuleList(), nn.ModuleList()
        skips = [widths[0]]
        for level, width in enumerate(widths):
            self.down.append(_stages(config, [skips[-1], *[width] * (config.depth - 1)], level))
            skips += [width] * config.depth
            if level < last:
                self.shrink.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                skips.append(width)
        self.middle = nn.ModuleList(_Stage(config, widths[-1], last, attend) for attend in (True, False))
        current = widths[-1]
        for level in reversed(range(len(widths))):
            inputs = [n + skips.pop() for n in (current, *[widths[level]] * config.depth)]
            self.up.append(_stages(config, inputs, level))
            current = widths[level]
            if level > 0:
                self.grow.append(nn.Conv2d(current, current, 3, padding=1))
        self.norm = _Norm(current)
        self.leave = zeroed(nn.Conv2d(current, config.out_channels * config.patch**2, 3, padding=1))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(
        self,
        x: Tensor,
        t: Tensor,
        s: Tensor | None = None,
        labels: Tensor | None = None,
        problem: MeasurementLike | None = None,
    ) -> Tensor:
        """Return the output (B, out_channels, H, W); the arguments are those of :meth:`HDiT.forward`.

        The problem is ignored: the measurement enters by channels only.
        """
        condition = F.silu(self.embedding(len(x), t, s, labels))
        folded = F.pixel_unshuffle(pad_to_multiple(x, self.config.multiple), self.config.patch)
        skips = [self.enter(folded.contiguous(memory_format=torch.channels_last))]
        for level, down in enumerate(self.down):
            for stage in down["stages"]:  # type: ignore[index]
                skips.append(stage(skips[-1], condition))
            if level < len(self.shrink):
                skips.append(self.shrink[level](skips[-1]))
        hidden = skips[-1]
        for stage in self.middle:
            hidden = stage(hidden, condition)
        for level, up in enumerate(self.up):
            for stage in up["stages"]:  # type: ignore[index]
                hidden = stage(torch.cat([hidden, skips.pop()], dim=1), condition)
            if level < len(self.grow):
                hidden = self.grow[level](F.interpolate(hidden, scale_factor=2.0, mode="nearest"))
        out = self.leave(F.silu(self.norm(hidden)))
        return crop(F.pixel_shuffle(out, self.config.patch), x.shape).to(x.dtype)
