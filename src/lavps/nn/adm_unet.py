r"""The U-Net of residual blocks behind DDPM++, NCSN++, ADM and EDM's versions of them.

Levels of residual blocks in the encoder and, with skip connections concatenated, in the decoder compute

.. math::
    h &= \mathrm{conv}(\mathrm{resample}(\mathrm{silu}(\mathrm{norm}(x)))), \qquad
    (s, b) = W\,\mathrm{silu}(e) \\
    x &\leftarrow r\,\big(\mathrm{skip}(\mathrm{resample}(x))
        + \mathrm{conv}(\mathrm{silu}((1 + s)\,\mathrm{norm}(h) + b))\big),

followed by self-attention :math:`x \leftarrow r\,(x + \mathrm{attention}(\mathrm{norm}(x)))` at some levels.
e is the embedding of the noise condition c through :math:`\cos, \sin(c f_k)` and two linear layers; the bias
of these layers includes the embedding of the chosen class. Without the scale s, b is added to h before the
norm. :mod:`lavps.checkpoints` maps the tensors of other libraries to this network.

References:
    - Song et al., Score-Based Generative Modeling through SDEs, 2021 (DDPM++, NCSN++).
    - Dhariwal and Nichol, Diffusion Models Beat GANs on Image Synthesis, 2021 (ADM).
    - Karras et al., Elucidating the Design Space of Diffusion-Based Generative Models, 2022 (EDM).
"""

from __future__ import annotations

__all__ = ["ResidualUNet", "ResidualUNetConfig"]

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import NetworkConfig

Resample = Literal["keep", "down", "up"]


@dataclass(frozen=True)
class ResidualUNetConfig(NetworkConfig):
    """Architecture of a residual U-Net.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        stem: Channels after the first convolution.
        channels: Channels of each level, finest first.
        blocks: Residual blocks of each level in the encoder; the decoder has one more.
        attention: Presence of attention in the blocks of each level.
        features: Twice the number of frequencies f.
        embedding: Width of e.
        last_attends_only: Restriction of attention in the decoder to the last block of a level.
        heads: Number of attention heads; None to derive it from ``head_channels``.
        head_channels: Channels per attention head where ``heads`` is None.
        scale_shift: Presence of the scale s.
        resampling: "block" for residual blocks that resample, "conv" for single convolutions.
        resampling_projects: Convolution in the skip of resampling blocks even between equal widths.
        filter: Resampling filter, (1, 1) for averaging and repetition.
        pyramid: NCSN++'s residual encoder, which adds downsampled features at each level.
        branch_scale: Factor r.
        group_size: Minimum number of channels per group of the norms, which have at most 32 groups.
        epsilon: Epsilon of the norms.
    """

    kind: ClassVar[str] = "residual_unet"
    in_channels: int
    out_channels: int
    stem: int
    channels: tuple[int, ...]
    blocks: tuple[int, ...]
    attention: tuple[bool, ...]
    features: int
    embedding: int
    last_attends_only: bool = False
    heads: int | None = None
    head_channels: int = 64
    scale_shift: bool = True
    resampling: Literal["block", "conv"] = "block"
    resampling_projects: bool = False
    filter: tuple[int, ...] = (1, 1)
    pyramid: bool = False
    branch_scale: float = 1.0
    group_size: int = 1
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.channels) == len(self.blocks) == len(self.attention) > 0:
            raise ValueError("channels, blocks and attention need one entry per level, at least one")

    def heads_of(self, channels: int) -> int:
        """Return the number of attention heads of a layer with this many channels."""
        return self.heads if self.heads is not None else max(1, channels // self.head_channels)


def _kernel(x: Tensor, taps: tuple[int, ...]) -> Tensor:
    row = torch.tensor(taps, dtype=x.dtype, device=x.device) / sum(taps)
    return torch.outer(row, row).expand(x.shape[1], 1, -1, -1)


def _resampled(x: Tensor, mode: Resample, taps: tuple[int, ...]) -> Tensor:
    if mode == "keep":
        return x
    if taps == (1, 1):
        return F.avg_pool2d(x, 2) if mode == "down" else F.interpolate(x, scale_factor=2, mode="nearest")
    kernel, margin = _kernel(x, taps), (len(taps) - 1) // 2
    if mode == "down":
        return F.conv2d(x, kernel, stride=2, padding=margin, groups=x.shape[1])
    return F.conv_transpose2d(x, 4 * kernel, stride=2, padding=margin, groups=x.shape[1])


def _norm(channels: int, config: ResidualUNetConfig) -> nn.GroupNorm:
    return nn.GroupNorm(min(32, channels // config.group_size), channels, config.epsilon)


class _SpatialAttention(nn.Module):
    """Self-attention over all pixels; rows of ``qkv`` are ordered by (q k v, head, channel)."""

    def __init__(self, channels: int, config: ResidualUNetConfig) -> None:
        super().__init__()
        self.heads = config.heads_of(channels)
        if channels % self.heads:
            raise ValueError(f"{channels} channels do not divide into {self.heads} heads")
        self.norm = _norm(channels, config)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2)
        values = F.scaled_dot_product_attention(*qkv.unbind(1)).transpose(-1, -2)
        return self.out(values.reshape(b, c, h, w))  # type: ignore[no-any-return]


class _ResidualBlock(nn.Module):
    """A residual block of features (B, C, H, W) and silu(e) (B, E), with optional resampling or attention."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        config: ResidualUNetConfig,
        attention: bool = False,
        mode: Resample = "keep",
    ) -> None:
        super().__init__()
        self.mode, self.taps, self.factor = mode, config.filter, config.branch_scale
        self.scale_shift = config.scale_shift
        self.norm1 = _norm(in_channels, config)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.embed = nn.Linear(config.embedding, out_channels * (2 if config.scale_shift else 1))
        self.norm2 = _norm(out_channels, config)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        projects = in_channels != out_channels or (mode != "keep" and config.resampling_projects)
        self.skip = nn.Conv2d(in_channels, out_channels, 1) if projects else None
        self.attention = _SpatialAttention(out_channels, config) if attention else None

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        h = self.conv1(_resampled(F.silu(self.norm1(x)), self.mode, self.taps))
        modulation = self.embed(e)[..., None, None]
        if self.scale_shift:
            scale, shift = modulation.chunk(2, dim=1)
            h = self.norm2(h) * (1 + scale) + shift
        else:
            h = self.norm2(h + modulation)
        x = _resampled(x, self.mode, self.taps)
        x = self.factor * ((x if self.skip is None else self.skip(x)) + self.conv2(F.silu(h)))
        return x if self.attention is None else self.factor * (x + self.attention(x))


class _Convolution(nn.Module):
    """Downsampling by a strided convolution, or upsampling by repetition and a convolution."""

    def __init__(self, channels: int, mode: Resample) -> None:
        super().__init__()
        self.mode = mode
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, stride=2 if mode == "down" else 1)

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        if self.mode == "up":
            x = F.interpolate(x, scale_factor=2, mode="nearest")
        return self.conv(x)  # type: ignore[no-any-return]


class _Pyramid(nn.Module):
    """A convolution and the filter at stride 2, with the padding of both applied at once."""

    def __init__(self, in_channels: int, out_channels: int, config: ResidualUNetConfig) -> None:
        super().__init__()
        self.taps = config.filter
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1 + (len(self.taps) - 1) // 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return F.conv2d(x, _kernel(x, self.taps), stride=2, groups=x.shape[1])


class ResidualUNet(nn.Module):
    """The U-Net of residual blocks."""

    def __init__(self, config: ResidualUNetConfig) -> None:
        super().__init__()
        self.config = config
        self.frequencies: Tensor
        half = config.features // 2
        self.register_buffer("frequencies", 1e4 ** (-torch.arange(half) / half))
        self.embed_in = nn.Linear(config.features, config.embedding)
        self.embed_out = nn.Linear(config.embedding, config.embedding)
        self.stem = nn.Conv2d(config.in_channels, config.stem, 3, padding=1)
        self.encoder, self.middle, self.decoder, self.pyramid = (nn.ModuleList() for _ in range(4))
        width, coarser = config.stem, config.in_channels
        skips, last = [width], len(config.channels) - 1
        for level, channels in enumerate(config.channels):
            if level:
                self.encoder.append(self._resampling(width, "down"))
                skips.append(width)
                if config.pyramid:
                    self.pyramid.append(_Pyramid(coarser, width, config))
                    coarser = width
            for _ in range(config.blocks[level]):
                self.encoder.append(_ResidualBlock(width, channels, config, config.attention[level]))
                width = channels
                skips.append(width)
        self.middle.extend(
            [_ResidualBlock(width, width, config, attention=True), _ResidualBlock(width, width, config)]
        )
        for level in range(last, -1, -1):
            for i in range(config.blocks[level] + 1):
                is_last = i == config.blocks[level]
                attends = config.attention[level] and (is_last or not config.last_attends_only)
                self.decoder.append(
                    _ResidualBlock(width + skips.pop(), config.channels[level], config, attends)
                )
                width = config.channels[level]
            if level:
                self.decoder.append(self._resampling(width, "up"))
        self.norm = _norm(config.channels[0], config)
        self.out = nn.Conv2d(config.channels[0], config.out_channels, 3, padding=1)

    def _resampling(self, width: int, mode: Resample) -> nn.Module:
        if self.config.resampling == "conv":
            return _Convolution(width, mode)
        return _ResidualBlock(width, width, self.config, mode=mode)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """Return the output (B, out_channels, H, W).

        Args:
            x: Images (B, in_channels, H, W); sizes are multiples of 2 to the number of levels minus one.
            c: Noise conditions, shape (B,).
        """
        multiple = 2 ** (len(self.config.channels) - 1)
        if any(size % multiple for size in x.shape[-2:]):
            raise ValueError(
                f"image height and width must be multiples of {multiple}, got {tuple(x.shape[-2:])}"
            )
        angles = c.to(self.frequencies)[:, None] * self.frequencies
        features = torch.cat([angles.cos(), angles.sin()], dim=1)
        e = F.silu(self.embed_out(F.silu(self.embed_in(features))))
        image, x = x, self.stem(x)
        skips, joined = [x], iter(self.pyramid)
        for module in self.encoder:
            x = module(x, e)
            if self.config.pyramid and module.mode == "down":
                x = image = (x + next(joined)(image)) / math.sqrt(2)
            skips.append(x)
        for module in self.middle:
            x = module(x, e)
        for module in self.decoder:
            x = module(x if module.mode == "up" else torch.cat([x, skips.pop()], dim=1), e)
        return self.out(F.silu(self.norm(x)))  # type: ignore[no-any-return]
