r"""HDiT: the hourglass diffusion transformer, on pixels.

Each patch of p x p pixels is a token. In the encoder, levels of transformer blocks alternate with merging
2 x 2 tokens; in the decoder with splitting, followed by a learned interpolation with the skip connection:

.. math::
    x &\leftarrow x + \mathrm{attention}(\mathrm{norm}(x; c)) \\
    x &\leftarrow x + \mathrm{GEGLU}(\mathrm{norm}(x; c)),

with c the condition vector of times and class. Fine levels attend in a neighbourhood, coarse ones globally,
so the cost is linear in the number of pixels. The depth of an outer level counts once in the encoder and
once in the decoder. The output is initialized to zero.

At the ``joint`` levels the network also attends to its features mapped through the operator
(:class:`~lavps.nn.invfusion.InvFusion`), in the encoder and in the decoder.

References:
    - Crowson et al., Scalable High-Resolution Pixel-Space Image Synthesis with Hourglass Diffusion
      Transformers, 2024.
"""

from __future__ import annotations

__all__ = ["HDiT", "HDiTConfig", "hdit_ffhq256", "hdit_imagenet256", "hdit_tiny"]

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import CosineAttention
from .config import NetworkConfig
from .invfusion import InvFusion
from .layers import (
    AdaRMSNorm,
    ConditionEmbedding,
    FeedForward,
    Merge,
    RMSNorm,
    Split,
    crop,
    pad_to_multiple,
    split_tokens,
    zeroed,
)
from .protocols import MeasurementLike


@dataclass(frozen=True)
class HDiTConfig(NetworkConfig):
    """Architecture of an HDiT.

    Args:
        in_channels: Channels of the input, including all conditioning channels.
        out_channels: Channels of the output.
        patch: Side p of the finest tokens in pixels.
        widths: Channels of a token per level, finest first.
        depths: Transformer blocks per level; outer levels have them twice, in encoder and decoder.
        attention: Side of the neighbourhood per level, odd, or None for global attention.
        head_dim: Channels per attention head, a multiple of 8.
        mapping_width: Width M of the condition vector.
        mapping_depth: Number of layers of the mapping network.
        num_classes: Number of classes, 0 for none; one more stands for "no class".
        second_time: Conditioning on a second time s.
        joint: Levels with joint attention to the measurement (InvFusion).
        image_channels: Channels of the images that the operator acts on at joint levels.
        damping: Damping of the pseudo-inverse at joint levels.
        dropout: Dropout rate of the transformer blocks.
        checkpointing: Recomputation of the blocks in the backward pass, to save memory.
        frequencies: Number of frequencies of the Fourier features of a time.
        positions: "tokens" counted from the corner, or relative to the "image", from -1 to 1.
    """

    kind: ClassVar[str] = "hdit"
    in_channels: int = 3
    out_channels: int = 3
    patch: int = 4
    widths: tuple[int, ...] = (64, 128)
    depths: tuple[int, ...] = (2, 2)
    attention: tuple[int | None, ...] = (7, None)
    head_dim: int = 32
    mapping_width: int = 128
    mapping_depth: int = 1
    num_classes: int = 0
    second_time: bool = False
    joint: tuple[int, ...] = ()
    image_channels: int = 3
    damping: float = 1e-3
    dropout: float = 0.0
    checkpointing: bool = False
    frequencies: int = 64
    positions: Literal["tokens", "image"] = "tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.widths) == len(self.depths) == len(self.attention) > 0:
            raise ValueError("widths, depths and attention need one entry per level, at least one")
        if self.head_dim % 8 or any(width % self.head_dim for width in self.widths):
            raise ValueError(
                f"head_dim must be a multiple of 8 dividing all widths, got {self.head_dim}, {self.widths}"
            )
        if any(window is not None and (window < 1 or window % 2 == 0) for window in self.attention):
            raise ValueError(f"windows of neighbourhood attention must be odd, got {self.attention}")
        if any(level not in range(len(self.widths)) for level in self.joint):
            raise ValueError(f"joint must be levels in 0..{len(self.widths) - 1}, got {self.joint}")

    @property
    def multiple(self) -> int:
        """Divisor of the image height and width; other sizes are padded."""
        return self.patch << (len(self.widths) - 1)


def hdit_tiny(in_channels: int = 3, out_channels: int = 3) -> HDiTConfig:
    """Return a network of 1.0 million parameters, for 64 x 64 images on a CPU."""
    return HDiTConfig(in_channels, out_channels)


def hdit_ffhq256(in_channels: int = 3, out_channels: int = 3) -> HDiTConfig:
    """Return a network of 152 million parameters, for faces of 256 x 256 pixels."""
    return HDiTConfig(
        in_channels,
        out_channels,
        widths=(192, 384, 768, 1536),
        depths=(2, 2, 4, 2),
        attention=(5, 7, None, None),
        head_dim=64,
        mapping_width=256,
        mapping_depth=2,
    )


def hdit_imagenet256(in_channels: int = 3, out_channels: int = 3, num_classes: int = 1000) -> HDiTConfig:
    """Return a class-conditional network of 597 million parameters, for ImageNet at 256 x 256 pixels."""
    return HDiTConfig(
        in_channels,
        out_channels,
        widths=(384, 768, 1536),
        depths=(2, 2, 16),
        attention=(7, 7, None),
        head_dim=64,
        mapping_width=768,
        mapping_depth=2,
        num_classes=num_classes,
    )


class _TransformerBlock(nn.Module):
    """A transformer block of tokens (B, H, W, D): attention and feed-forward, each with norm and residual."""

    def __init__(self, config: HDiTConfig, level: int) -> None:
        super().__init__()
        width = config.widths[level]
        self.attention = CosineAttention(
            width,
            config.head_dim,
            config.mapping_width,
            config.attention[level],
            level in config.joint,
            config.dropout,
            config.positions == "image",
        )
        self.norm = AdaRMSNorm(width, config.mapping_width)
        self.feed_forward = FeedForward(width, dropout=config.dropout)

    def forward(self, x: Tensor, condition: Tensor, fused: Tensor | None) -> Tensor:
        x = x + self.attention(x, condition, fused)
        return x + self.feed_forward(self.norm(x, condition))  # type: ignore[no-any-return]


class _Level(nn.Module):
    """The blocks of one level, in the encoder or the decoder."""

    def __init__(self, config: HDiTConfig, level: int) -> None:
        super().__init__()
        self.checkpointing = config.checkpointing
        self.blocks = nn.ModuleList(_TransformerBlock(config, level) for _ in range(config.depths[level]))
        patch = config.patch * 2**level
        fusion = (config.widths[level], patch, config.image_channels, config.damping)
        self.fusion = InvFusion(*fusion) if level in config.joint else None

    def forward(self, x: Tensor, condition: Tensor, problem: MeasurementLike | None) -> Tensor:
        # Computed once per level: a pseudo-inverse may take a hundred products with A.
        fused = self.fusion(x, problem) if self.fusion is not None else None
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, condition, fused, use_reentrant=False)
            else:
                x = block(x, condition, fused)
        return x


class HDiT(nn.Module):
    """The hourglass diffusion transformer.

    Example:
        >>> import torch
        >>> from lavps.nn import HDiT, hdit_tiny
        >>> HDiT(hdit_tiny())(torch.randn(1, 3, 16, 16), torch.tensor(0.5)).shape
        torch.Size([1, 3, 16, 16])
    """

    def __init__(self, config: HDiTConfig) -> None:
        super().__init__()
        self.config = config
        widths, outer = config.widths, range(len(config.widths) - 1)
        self.embedding = ConditionEmbedding(
            config.mapping_width,
            config.mapping_depth,
            config.second_time,
            config.num_classes,
            config.frequencies,
        )
        self.enter = Merge(config.in_channels, widths[0], config.patch)
        self.down = nn.ModuleList(_Level(config, level) for level in outer)
        self.merges = nn.ModuleList(Merge(widths[level], widths[level + 1]) for level in outer)
        self.middle = _Level(config, len(widths) - 1)
        self.splits = nn.ModuleList(Split(widths[level + 1], widths[level]) for level in outer)
        self.up = nn.ModuleList(_Level(config, level) for level in outer)
        self.norm = RMSNorm(widths[0])
        self.leave = zeroed(nn.Linear(widths[0], config.out_channels * config.patch**2, bias=False))

    def forward(
        self,
        x: Tensor,
        t: Tensor,
        s: Tensor | None = None,
        labels: Tensor | None = None,
        problem: MeasurementLike | None = None,
    ) -> Tensor:
        """Return the output (B, out_channels, H, W).

        Args:
            x: Images (B, in_channels, H, W) of any size, padded by reflection where necessary.
            t: Time, or another noise condition of order one, shape () or (B,).
            s: Second time, shape () or (B,), if the network has one.
            labels: Classes, shape (B,); None for no class.
            problem: B measurements and their operators, for joint levels.
        """
        if self.config.joint and problem is None:
            raise ValueError(f"levels {self.config.joint} attend to a measurement: pass problem=")
        condition = self.embedding(len(x), t, s, labels)
        tokens = self.enter(pad_to_multiple(x, self.config.multiple).permute(0, 2, 3, 1))
        skips = []
        for level, merge in zip(self.down, self.merges, strict=True):
            tokens = level(tokens, condition, problem)
            skips.append(tokens)
            tokens = merge(tokens)
        tokens = self.middle(tokens, condition, problem)
        for i in reversed(range(len(skips))):
            tokens = self.up[i](self.splits[i](tokens, skips[i]), condition, problem)
        pixels = split_tokens(self.leave(self.norm(tokens)), self.config.patch)
        return crop(pixels.permute(0, 3, 1, 2), x.shape).to(x.dtype)
