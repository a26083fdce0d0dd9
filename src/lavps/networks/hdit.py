r"""HDiT: the hourglass diffusion transformer, on pixels.

An image is cut into patches of p x p pixels, one token each. On the way down, levels of transformer blocks
alternate with merging 2 x 2 tokens; on the way up with splitting, mixed with the skip by a learned weight:

.. math::
    x &\leftarrow x + \mathrm{attention}(\mathrm{norm}(x; c)) \\
    x &\leftarrow x + \mathrm{GEGLU}(\mathrm{norm}(x; c)),

c the condition vector of the time (the times, the class). Fine levels attend in a neighbourhood, coarse ones
everywhere, so the cost grows as the number of pixels. The depth of an outer level counts once on the way
down and once on the way up. The output starts at zero.

At the ``joint`` levels the network also attends to what the operator makes of its features
(:class:`~lavps.networks.conditioning.InvFusion`), once on the way down and once on the way up.

References:
    - Crowson et al., Scalable High-Resolution Pixel-Space Image Synthesis with Hourglass Diffusion
      Transformers, 2024.
    - Elata et al., InvFussion: Bridging Supervised and Zero-shot Diffusion for Inverse Problems, 2025.
"""

from __future__ import annotations

__all__ = ["HDiT", "HDiTConfig", "hdit_ffhq256", "hdit_imagenet256", "hdit_tiny"]

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..problem import InverseProblem
from .attention import CosineAttention
from .conditioning import InvFusion
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


@dataclass(frozen=True)
class HDiTConfig:
    """The shape of an HDiT.

    Args:
        in_channels: channels of the input, all conditioning channels included.
        out_channels: channels of the output.
        patch: p, pixels a side of a token of the finest level.
        widths: channels of a token, one per level, finest first.
        depths: transformer blocks, one per level; outer levels have them twice, down and up.
        attention: side of the neighbourhood, odd, or None for all tokens; one per level.
        head_dim: channels of an attention head, a multiple of 8.
        mapping_width: M, of the condition vector.
        mapping_depth: layers of the mapping network.
        num_classes: 0 for none; else one more stands for "no class".
        second_time: whether the network is told a second time s.
        joint: levels with joint attention to the measurement, InvFusion.
        image_channels: channels of the images that the operator of a joint level acts on.
        damping: of the pseudo-inverse at joint levels.
        dropout: in the transformer blocks.
        checkpointing: recompute the blocks in the backward pass instead of storing their insides.
        frequencies: of the Fourier features of a time.
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
        for name in ("widths", "depths", "attention", "joint"):  # lists, when they come from JSON
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not len(self.widths) == len(self.depths) == len(self.attention) > 0:
            raise ValueError("widths, depths and attention need one entry per level, at least one")
        if self.head_dim % 8 or any(width % self.head_dim for width in self.widths):
            raise ValueError(
                f"head_dim must be a multiple of 8 and divide every width, "
                f"got {self.head_dim} and {self.widths}"
            )
        if any(window is not None and (window < 1 or window % 2 == 0) for window in self.attention):
            raise ValueError(f"the windows of neighbourhood attention are odd, got {self.attention}")
        if any(level not in range(len(self.widths)) for level in self.joint):
            raise ValueError(f"joint names levels 0..{len(self.widths) - 1}, got {self.joint}")

    @property
    def multiple(self) -> int:
        """What the sizes of an image must be a multiple of, else it is padded."""
        return self.patch << (len(self.widths) - 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; :func:`~lavps.networks.build_network` reads them back."""
        return {"kind": self.kind, **asdict(self)}


def hdit_tiny(in_channels: int = 3, out_channels: int = 3) -> HDiTConfig:
    """1.0 million parameters: 64 x 64 images on a CPU."""
    return HDiTConfig(in_channels, out_channels)


def hdit_ffhq256(in_channels: int = 3, out_channels: int = 3) -> HDiTConfig:
    """152 million parameters: faces of 256 x 256."""
    return HDiTConfig(
        in_channels,
        out_channels,
        patch=4,
        widths=(192, 384, 768, 1536),
        depths=(2, 2, 4, 2),
        attention=(5, 7, None, None),
        head_dim=64,
        mapping_width=256,
        mapping_depth=2,
    )


def hdit_imagenet256(in_channels: int = 3, out_channels: int = 3, num_classes: int = 1000) -> HDiTConfig:
    """597 million parameters: ImageNet at 256 x 256, with its classes."""
    return HDiTConfig(
        in_channels,
        out_channels,
        patch=4,
        widths=(384, 768, 1536),
        depths=(2, 2, 16),
        attention=(7, 7, None),
        head_dim=64,
        mapping_width=768,
        mapping_depth=2,
        num_classes=num_classes,
    )


class _Block(nn.Module):
    """One transformer block: attention, then feed-forward, each normed before and added after."""

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
        """(B, H, W, D) to the same."""
        x = x + self.attention(x, condition, fused)
        return x + self.feed_forward(self.norm(x, condition))  # type: ignore[no-any-return]


class _Level(nn.Module):
    """The blocks of one level, on the way down or up."""

    def __init__(self, config: HDiTConfig, level: int) -> None:
        super().__init__()
        self.checkpointing = config.checkpointing
        self.blocks = nn.ModuleList(_Block(config, level) for _ in range(config.depths[level]))
        self.fusion = (
            InvFusion(
                config.widths[level], config.patch * 2**level, config.image_channels, damping=config.damping
            )
            if level in config.joint
            else None
        )

    def forward(self, x: Tensor, condition: Tensor, problem: InverseProblem | None) -> Tensor:
        """(B, H, W, D) to the same."""
        # Once for all blocks of the level: a pseudo-inverse may be a hundred products with A.
        fused = self.fusion(x, problem) if self.fusion is not None else None
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, condition, fused, use_reentrant=False)
            else:
                x = block(x, condition, fused)
        return x


class HDiT(nn.Module):
    """The hourglass diffusion transformer.

    Args:
        config: its shape.
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
        problem: InverseProblem | None = None,
    ) -> Tensor:
        """The output (B, out_channels, H, W).

        Args:
            x: images (B, in_channels, H, W) of any size, padded by reflection where it does not fit.
            t: time, or another number of order one that stands for it, () or (B,).
            s: a second time, () or (B,), where the network has one.
            labels: classes (B,); None for no class.
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
