r"""A small convolutional U-Net in the manner of ADM, for work on a CPU.

The image is folded by a factor p (p x p pixels become channels), which costs little quality and saves a
factor :math:`p^2` of work. Levels of residual blocks

.. math::
    h &= \mathrm{norm}(\mathrm{conv}(\mathrm{silu}(\mathrm{norm}(x)))) \\
    x &\leftarrow x + \mathrm{conv}(\mathrm{silu}((1 + a) h + b)),

(a, b) an affine function of the condition vector, halve the size on the way down and double it on the way
up, where each block also reads the map of the same size from the way down. The output starts at zero.

Norms are over the channels of a position, as in EDM2, and maps are laid out with channels last: on a CPU this
is faster than ADM's group norms.

References:
    - Dhariwal and Nichol, Diffusion Models Beat GANs on Image Synthesis, 2021 (ADM).
    - Karras et al., Analyzing and Improving the Training Dynamics of Diffusion Models, 2024 (EDM2).
"""

from __future__ import annotations

__all__ = ["UNet", "UNetConfig", "unet_small"]

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..problem import InverseProblem
from .layers import ConditionEmbedding, crop, pad_to_multiple, zeroed


@dataclass(frozen=True)
class UNetConfig:
    """The shape of a U-Net.

    Args:
        in_channels: channels of the input, all conditioning channels included.
        out_channels: channels of the output.
        patch: p, the factor by which pixels are folded into channels.
        widths: channels, one per level, finest first.
        depth: residual blocks of a level on the way down; one more on the way up.
        attention: levels with self-attention; the middle always has it.
        head_dim: channels of an attention head.
        condition_width: of the condition vector.
        num_classes: 0 for none; else one more stands for "no class".
        second_time: whether the network is told a second time s.
        dropout: in the residual blocks.
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
        for name in ("widths", "attention"):  # lists, when they come from JSON
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.widths or self.depth < 1 or self.patch < 1:
            raise ValueError("a U-Net needs at least one level, one block a level and patch >= 1")
        if any(level not in range(len(self.widths)) for level in self.attention):
            raise ValueError(f"attention names levels 0..{len(self.widths) - 1}, got {self.attention}")
        attending = {self.widths[level] for level in (*self.attention, -1)}
        if any(width % self.head_dim for width in attending):
            raise ValueError(f"head_dim {self.head_dim} must divide the widths with attention, {attending}")

    @property
    def multiple(self) -> int:
        """What the sizes of an image must be a multiple of, else it is padded."""
        return self.patch << (len(self.widths) - 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; :func:`~lavps.networks.build_network` reads them back."""
        return {"kind": self.kind, **asdict(self)}


def unet_small(in_channels: int = 3, out_channels: int = 3) -> UNetConfig:
    """6.6 million parameters: 64 x 64 images on a CPU."""
    return UNetConfig(in_channels, out_channels)


class _Norm(nn.Module):
    """The channels of every position to mean 0 and variance 1, then a learned gain and shift."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, H, W) to the same."""
        last = x.permute(0, 2, 3, 1)
        return F.layer_norm(last, last.shape[-1:], self.gain, self.shift).permute(0, 3, 1, 2)


class _Residual(nn.Module):
    """A residual block, its second norm scaled and shifted by the condition."""

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
        """(B, D, H, W) to (B, E, H, W)."""
        scale, shift = self.condition(condition)[:, :, None, None].chunk(2, dim=1)
        hidden = self.norm_out(self.conv_in(F.silu(self.norm_in(x)))) * (1.0 + scale) + shift
        return self.skip(x) + self.conv_out(self.dropout(F.silu(hidden)))  # type: ignore[no-any-return]


class _Attention(nn.Module):
    """Self-attention over all positions, with its residual."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.norm = _Norm(width)
        self.query_key_value = nn.Conv2d(width, 3 * width, 1)
        self.out = zeroed(nn.Conv2d(width, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, H, W) to the same."""
        b, _, h, w = x.shape
        tokens = (
            self.query_key_value(self.norm(x)).permute(0, 2, 3, 1).reshape(b, h * w, 3, -1, self.head_dim)
        )
        out = _attend(*tokens.permute(2, 0, 3, 1, 4).contiguous().unbind(0))
        return x + self.out(out.transpose(1, 2).reshape(b, h, w, -1).permute(0, 3, 1, 2))  # type: ignore[no-any-return]


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention over (B, heads, positions, head_dim); few positions are faster without the fused kernel."""
    if query.shape[-2] > 1024:
        return F.scaled_dot_product_attention(query, key, value)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    weights: Tensor = scores.softmax(-1)
    return weights.to(value.dtype) @ value


class _Stage(nn.Module):
    """A residual block and, at some levels, attention."""

    def __init__(self, config: UNetConfig, width: int, level: int, attend: bool) -> None:
        super().__init__()
        out_width = config.widths[level]
        self.residual = _Residual(width, out_width, config.condition_width, config.dropout)
        self.attention = _Attention(out_width, config.head_dim) if attend else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """(B, D, H, W) to (B, E, H, W)."""
        return self.attention(self.residual(x, condition))  # type: ignore[no-any-return]


class _Down(nn.Module):
    """The stages of a level on the way down."""

    def __init__(self, stages: list[_Stage]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Tensor, condition: Tensor) -> list[Tensor]:
        """What every stage gives; the last one goes on."""
        maps = []
        for stage in self.stages:
            x = stage(x, condition)
            maps.append(x)
        return maps


class _Up(nn.Module):
    """The stages of a level on the way up."""

    def __init__(self, stages: list[_Stage]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Tensor, condition: Tensor, skips: list[Tensor]) -> Tensor:
        """What the last stage gives; each takes the last of the skips that are left."""
        for stage in self.stages:
            x = stage(torch.cat([x, skips.pop()], dim=1), condition)
        return x


class UNet(nn.Module):
    """The U-Net.

    Args:
        config: its shape.
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
            attend = level in config.attention
            inputs = [skips[-1], *[width] * (config.depth - 1)]
            self.down.append(_Down([_Stage(config, n, level, attend) for n in inputs]))
            skips += [width] * config.depth
            if level < last:
                self.shrink.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                skips.append(width)
        self.middle = nn.ModuleList(_Stage(config, widths[-1], last, attend) for attend in (True, False))
        current = widths[-1]
        for level in reversed(range(len(widths))):
            inputs = [n + skips.pop() for n in (current, *[widths[level]] * config.depth)]
            self.up.append(_Up([_Stage(config, n, level, level in config.attention) for n in inputs]))
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
        problem: InverseProblem | None = None,
    ) -> Tensor:
        """The output (B, out_channels, H, W).

        Args:
            x: images (B, in_channels, H, W) of any size, padded by reflection where it does not fit.
            t: time, or another number of order one that stands for it, () or (B,).
            s: a second time, () or (B,), where the network has one.
            labels: classes (B,); None for no class.
            problem: not used: a U-Net knows of the measurement by its channels alone.
        """
        condition = F.silu(self.embedding(len(x), t, s, labels))
        folded = F.pixel_unshuffle(pad_to_multiple(x, self.config.multiple), self.config.patch)
        skips = [self.enter(folded.contiguous(memory_format=torch.channels_last))]
        for level, down in enumerate(self.down):
            skips += down(skips[-1], condition)
            if level < len(self.shrink):
                skips.append(self.shrink[level](skips[-1]))
        hidden = skips[-1]
        for stage in self.middle:
            hidden = stage(hidden, condition)
        for level, up in enumerate(self.up):
            hidden = up(hidden, condition, skips)
            if level < len(self.grow):
                hidden = self.grow[level](F.interpolate(hidden, scale_factor=2.0, mode="nearest"))
        out = self.leave(F.silu(self.norm(hidden)))
        return crop(F.pixel_shuffle(out, self.config.patch), x.shape).to(x.dtype)
