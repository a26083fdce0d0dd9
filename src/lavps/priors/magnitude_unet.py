r"""EDM2's U-Net, whose every layer keeps the magnitude of what passes through it.

There are no norms with parameters and no biases. Sums are weighted to unit magnitude,
:math:`((1 - w) a + w b) / \sqrt{(1 - w)^2 + w^2}`, joined features each to an equal share, silu is divided by
its own magnitude 0.596, and features and attention's queries, keys and values are divided by their rms over
channels. Weights are normalised in the published network at every call; here they are stored normalised,
their gains included, which is the same for a network that no longer learns.

References:
    - Karras et al., Analyzing and Improving the Training Dynamics of Diffusion Models, 2024.
"""

from __future__ import annotations

__all__ = ["MagnitudeUNet", "MagnitudeUNetConfig", "balanced"]

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_EPSILON = 1e-4


@dataclass(frozen=True)
class MagnitudeUNetConfig:
    """The shape of a magnitude-preserving U-Net.

    Args:
        in_channels: channels of images, in and out.
        channels: of each level, finest first.
        blocks: residual blocks of each level on the way down; one more on the way up.
        attention: whether the blocks of each level attend.
        features: Fourier features of the noise condition.
        embedding: width of the embedding.
        head_channels: channels of a head of attention.
        residual_balance: weight of the residual branch.
        attention_balance: weight of attention.
        skip_balance: weight of the skip where it is joined.
        clip: bound of all features.
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

    def __post_init__(self) -> None:
        for name in ("channels", "blocks", "attention"):  # lists, when they come from JSON
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; :func:`~lavps.networks.build_network` reads them back."""
        return {"kind": self.kind, **asdict(self)}


def balanced(a: Tensor, b: Tensor, weight: float) -> Tensor:
    """The sum of two features of unit magnitude, of unit magnitude."""
    return torch.lerp(a, b, weight) / math.hypot(1 - weight, weight)


def _joined(a: Tensor, b: Tensor, weight: float) -> Tensor:
    """Both along the channels, each with its share of the magnitude whatever its number of channels."""
    n, m = a.shape[1], b.shape[1]
    total = math.sqrt((n + m) / ((1 - weight) ** 2 + weight**2))
    return torch.cat([total * (1 - weight) / math.sqrt(n) * a, total * weight / math.sqrt(m) * b], dim=1)


def _unit(x: Tensor, axis: int) -> Tensor:
    return x / (_EPSILON + x.square().mean(axis, keepdim=True).sqrt())


def _silu(x: Tensor) -> Tensor:
    return F.silu(x) / 0.596


class _Block(nn.Module):
    """One block; on the way down features are normalised before, on the way up joined ones are projected."""

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
        """Features (B, C, H, W) and the embedding (B, E)."""
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
            seen = F.scaled_dot_product_attention(q, k, v)
            h = self.out(seen.transpose(-1, -2).reshape(x.shape))
            x = balanced(x, h, self.config.attention_balance)
        return x.clamp(-self.config.clip, self.config.clip)


class MagnitudeUNet(nn.Module):
    """The magnitude-preserving U-Net, for inference.

    Args:
        config: its shape.
    """

    def __init__(self, config: MagnitudeUNetConfig) -> None:
        super().__init__()
        self.config = config
        self.frequencies: Tensor
        self.phases: Tensor
        self.register_buffer("frequencies", torch.zeros(config.features))
        self.register_buffer("phases", torch.zeros(config.features))
        self.embed = nn.Linear(config.features, config.embedding)  # the class is in the bias
        width = config.channels[0]
        self.stem = nn.Conv2d(config.in_channels + 1, width, 3, padding=1, bias=False)
        self.encoder, self.middle, self.decoder = (nn.ModuleList() for _ in range(3))
        skips = [width]
        for level, channels in enumerate(config.channels):
            if level:
                self.encoder.append(_Block(width, width, config, True, "down"))
                skips.append(width)
            for _ in range(config.blocks[level]):
                self.encoder.append(_Block(width, channels, config, True, attention=config.attention[level]))
                width = channels
                skips.append(width)
        self.middle.append(_Block(width, width, config, False, attention=True))
        self.middle.append(_Block(width, width, config, False))
        for level in reversed(range(len(config.channels))):
            channels, attends = config.channels[level], config.attention[level]
            for _ in range(config.blocks[level] + 1):
                self.decoder.append(_Block(width + skips.pop(), channels, config, False, attention=attends))
                width = channels
            if level:
                self.decoder.append(_Block(width, width, config, False, "up"))
        self.out = nn.Conv2d(width, config.in_channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """The output (B, C, H, W) for images x (B, C, H, W) under noise conditions c (B,)."""
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
