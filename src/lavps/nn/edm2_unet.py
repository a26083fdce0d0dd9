r"""EDM2's U-Net, whose layers preserve the magnitude of features.

It has no biases and no norms with parameters. Sums are weighted to unit magnitude,
:math:`((1 - w) a + w b) / \sqrt{(1 - w)^2 + w^2}`, concatenated features contribute equally, silu is divided
by its magnitude 0.596, and features, queries, keys and values are divided by their rms over channels. The
published network normalizes its weights at every call; here they are stored normalized and multiplied by
their gains, which is equivalent for inference.

References:
    - Karras et al., Analyzing and Improving the Training Dynamics of Diffusion Models, 2024.
"""

from __future__ import annotations

__all__ = ["MagnitudeUNet", "MagnitudeUNetConfig", "balanced"]

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import NetworkConfig

_EPSILON = 1e-4


@dataclass(frozen=True)
class MagnitudeUNetConfig(NetworkConfig):
    """Architecture of a magnitude-preserving U-Net.

    Args:
        in_channels: Channels of images, input and output.
        channels: Channels of each level, finest first.
        blocks: Residual blocks of each level in the encoder; the decoder has one more.
        attention: Presence of attention in the blocks of each level.
        features: Number of Fourier features of the noise condition.
        embedding: Width of the embedding.
        head_channels: Channels per attention head.
        residual_balance: Weight of the residual branch.
        attention_balance: Weight of attention.
        skip_balance: Weight of the skip connection.
        clip: Bound of all features.
    """

    kind: ClassVar[str] = "magnitude_unet"
    in_channels: int
    channels: tuple[int, ...]
    blocks: tuple[int, ...]
    attention: tuple[bool, ...]
    features: int
    embedding: int
    head_channels: int = 64
    residual_balance: float = 0.3
    attention_balance: float = 0.3
    skip_balance: float = 0.5
    clip: float = 256.0


def balanced(a: Tensor, b: Tensor, weight: float) -> Tensor:
    """Return the weighted sum of two features of unit magnitude, scaled to unit magnitude."""
    return torch.lerp(a, b, weight) / math.hypot(1 - weight, weight)


def _joined(a: Tensor, b: Tensor, weight: float) -> Tensor:
    """Concatenate channels so that each part has its share of the magnitude, whatever its channel count."""
    n, m = a.shape[1], b.shape[1]
    total = math.sqrt((n + m) / ((1 - weight) ** 2 + weight**2))
    return torch.cat([total * (1 - weight) / math.sqrt(n) * a, total * weight / math.sqrt(m) * b], dim=1)


def _unit(x: Tensor, axis: int) -> Tensor:
    return x / (_EPSILON + x.square().mean(axis, keepdim=True).sqrt())


def _silu(x: Tensor) -> Tensor:
    return F.silu(x) / 0.596


class _MagnitudeBlock(nn.Module):
    """A block of features (B, C, H, W) and embeddings (B, E); only encoder blocks normalize their input."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        config: MagnitudeUNetConfig,
        down: bool,
        mode: Literal["keep", "down", "up"] = "keep",
        attention: bool = False,
    ) -> None:
        super().__init__()
        self.config, self.down, self.mode = config, down, mode
        self.heads = max(1, out_channels // config.head_channels)
        first = out_channels if down else in_channels
        self.conv1 = nn.Conv2d(first, out_channels, 3, padding=1, bias=False)
        self.embed = nn.Linear(config.embedding, out_channels, bias=False)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        project = in_channels != out_channels
        self.skip = nn.Conv2d(in_channels, out_channels, 1, bias=False) if project else None
        self.qkv = nn.Conv2d(out_channels, 3 * out_channels, 1, bias=False) if attention else None
        self.out = nn.Conv2d(out_channels, out_channels, 1, bias=False) if attention else None

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        if self.mode == "down":
            x = F.avg_pool2d(x, 2)
        elif self.mode == "up":
            x = F.interpolate(x, scale_factor=2, mode="nearest")
        if self.down:
            x = _unit(x if self.skip is None else self.skip(x), 1)
        h = self.conv1(_silu(x)) * (1 + self.embed(e))[..., None, None]
        h = self.conv2(_silu(h))
        if not self.down and self.skip is not None:
            x = self.skip(x)
        x = balanced(x, h, self.config.residual_balance)
        if self.qkv is not None and self.out is not None:
            b, c, height, width = x.shape
            qkv = self.qkv(x).reshape(b, 3, self.heads, c // self.heads, height * width)
            q, k, v = _unit(qkv, 3).transpose(-1, -2).unbind(1)
            values = F.scaled_dot_product_attention(q, k, v)
            h = self.out(values.transpose(-1, -2).reshape(x.shape))
            x = balanced(x, h, self.config.attention_balance)
        return x.clamp(-self.config.clip, self.config.clip)


class MagnitudeUNet(nn.Module):
    """The magnitude-preserving U-Net, for inference."""

    def __init__(self, config: MagnitudeUNetConfig) -> None:
        super().__init__()
        self.config = config
        self.frequencies: Tensor
        self.phases: Tensor
        self.register_buffer("frequencies", torch.zeros(config.features))
        self.register_buffer("phases", torch.zeros(config.features))
        self.embed = nn.Linear(config.features, config.embedding)  # the bias includes the class embedding
        width = config.channels[0]
        self.stem = nn.Conv2d(config.in_channels + 1, width, 3, padding=1, bias=False)
        self.encoder, self.middle, self.decoder = (nn.ModuleList() for _ in range(3))
        skips = [width]
        for level, channels in enumerate(config.channels):
            if level:
                self.encoder.append(_MagnitudeBlock(width, width, config, True, "down"))
                skips.append(width)
            for _ in range(config.blocks[level]):
                self.encoder.append(
                    _MagnitudeBlock(width, channels, config, True, attention=config.attention[level])
                )
                width = channels
                skips.append(width)
        self.middle.append(_MagnitudeBlock(width, width, config, False, attention=True))
        self.middle.append(_MagnitudeBlock(width, width, config, False))
        for level in reversed(range(len(config.channels))):
            channels, attends = config.channels[level], config.attention[level]
            for _ in range(config.blocks[level] + 1):
                self.decoder.append(
                    _MagnitudeBlock(width + skips.pop(), channels, config, False, attention=attends)
                )
                width = channels
            if level:
                self.decoder.append(_MagnitudeBlock(width, width, config, False, "up"))
        self.out = nn.Conv2d(width, config.in_channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """Return the output (B, C, H, W) for images x (B, C, H, W) and noise conditions c (B,)."""
        features = (c.to(self.frequencies)[:, None] * self.frequencies + self.phases).cos() * math.sqrt(2)
        e = _silu(self.embed(features))
        x = self.stem(torch.cat([x, torch.ones_like(x[:, :1])], dim=1))
        skips = [x]
        for module in self.encoder:
            x = module(x, e)
            skips.append(x)
        for module in self.middle:
            x = module(x, e)
        for module in self.decoder:
            x = module(x if module.mode == "up" else _joined(x, skips.pop(), self.config.skip_balance), e)
        return self.out(x)  # type: ignore[no-any-return]
