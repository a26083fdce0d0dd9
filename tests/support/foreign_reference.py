"""Published architectures as plain functions of a dictionary of tensors.

Each function names every tensor where it uses it. A :class:`Weights` draws a tensor when it is first asked,
so one run writes the checkpoint and the next reads it: names, shapes and arithmetic have one source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


class Weights(dict[str, Tensor]):
    """Tensors by name, drawn when first asked for."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(seed)

    def of(self, name: str, *shape: int) -> Tensor:
        if name not in self:
            scale = 0.3 if len(shape) < 2 else math.prod(shape[1:]) ** -0.5
            offset = 1.0 if len(shape) == 1 and name.endswith(("weight", "scale")) else 0.0
            self[name] = offset + scale * torch.randn(shape, generator=self.random)
        assert self[name].shape == shape, name
        return self[name]

    def linear(self, name: str, x: Tensor, width: int, bias: bool = True) -> Tensor:
        b = self.of(f"{name}.bias", width) if bias else None
        return F.linear(x, self.of(f"{name}.weight", width, x.shape[-1]), b)

    def conv(
        self, name: str, x: Tensor, width: int, k: int, stride: int = 1, pad: int | None = None
    ) -> Tensor:
        w = self.of(f"{name}.weight", width, x.shape[1], k, k)
        return F.conv2d(x, w, self.of(f"{name}.bias", width), stride, k // 2 if pad is None else pad)

    def group_norm(self, name: str, x: Tensor, groups: int, eps: float = 1e-5) -> Tensor:
        n = x.shape[1]
        return F.group_norm(x, groups, self.of(f"{name}.weight", n), self.of(f"{name}.bias", n), eps)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q, k, v (N, d, T), written out."""
    weights = (torch.einsum("ndt,nds->nts", q, k) / math.sqrt(q.shape[1])).softmax(-1)
    return torch.einsum("nts,nds->ndt", weights, v)


# -- guided-diffusion -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Adm:
    channels: int = 32
    mult: tuple[float, ...] = (1, 3)
    blocks: int = 1
    attention: tuple[int, ...] = (2,)  # downsampling rates
    heads: int | None = 4
    head_channels: int = 64
    new_order: bool = False
    scale_shift: bool = True
    updown: bool = True
    classes: int = 0
    colours: int = 3
    learned: bool = True


def adm(w: Weights, a: Adm, x: Tensor, t: Tensor, y: Tensor | None = None) -> Tensor:
    """The network's output for indices t (B,)."""
    half = a.channels // 2
    angles = t.float()[:, None] * torch.exp(-math.log(10000) * torch.arange(half) / half)[None]
    e = w.linear("time_embed.0", torch.cat([angles.cos(), angles.sin()], 1), 4 * a.channels)
    e = w.linear("time_embed.2", F.silu(e), 4 * a.channels)
    if a.classes:
        e = e + w.of("label_emb.weight", a.classes, 4 * a.channels)[y]

    def res(p: str, x: Tensor, width: int, size: float = 1.0) -> Tensor:
        h = F.silu(w.group_norm(f"{p}.in_layers.0", x, 32))
        if size == 0.5:
            h, x = F.avg_pool2d(h, 2), F.avg_pool2d(x, 2)
        elif size == 2:
            h, x = (u.repeat_interleave(2, 2).repeat_interleave(2, 3) for u in (h, x))
        h = w.conv(f"{p}.in_layers.2", h, width, 3)
        told = w.linear(f"{p}.emb_layers.1", F.silu(e), (1 + a.scale_shift) * width)[:, :, None, None]
        if a.scale_shift:
            h = w.group_norm(f"{p}.out_layers.0", h, 32) * (1 + told[:, :width]) + told[:, width:]
        else:
            h = w.group_norm(f"{p}.out_layers.0", h + told, 32)
        h = w.conv(f"{p}.out_layers.3", F.silu(h), width, 3)
        return h + (x if x.shape[1] == width else w.conv(f"{p}.skip_connection", x, width, 1))

    def attention(p: str, x: Tensor) -> Tensor:
        b, c, *size = x.shape
        heads = a.heads or c // a.head_channels
        kernel = w.of(f"{p}.qkv.weight", 3 * c, c, 1)
        flat = w.group_norm(f"{p}.norm", x, 32).reshape(b, c, -1)
        qkv = F.conv1d(flat, kernel, w.of(f"{p}.qkv.bias", 3 * c))
        if a.new_order:
            q, k, v = (part.reshape(b * heads, c // heads, -1) for part in qkv.chunk(3, dim=1))
        else:
            q, k, v = qkv.reshape(b * heads, 3 * c // heads, -1).chunk(3, dim=1)
        seen = attend(q, k, v).reshape(b, c, -1)
        out = F.conv1d(seen, w.of(f"{p}.proj_out.weight", c, c, 1), w.of(f"{p}.proj_out.bias", c))
        return x + out.reshape(b, c, *size)

    h = w.conv("input_blocks.0.0", x, int(a.mult[0] * a.channels), 3)
    hs, i = [h], 0
    for level, mult in enumerate(a.mult):
        for _ in range(a.blocks):
            i += 1
            h = res(f"input_blocks.{i}.0", h, int(mult * a.channels))
            h = attention(f"input_blocks.{i}.1", h) if 2**level in a.attention else h
            hs.append(h)
        if level < len(a.mult) - 1:
            i += 1
            name = f"input_blocks.{i}.0"
            width = h.shape[1]
            h = res(name, h, width, 0.5) if a.updown else w.conv(f"{name}.op", h, width, 3, stride=2)
            hs.append(h)
    width = h.shape[1]
    h = res("middle_block.0", h, width)
    h = res("middle_block.2", attention("middle_block.1", h), width)
    i = 0
    for level in reversed(range(len(a.mult))):
        width = int(a.mult[level] * a.channels)
        for n in range(a.blocks + 1):
            h, j = res(f"output_blocks.{i}.0", torch.cat([h, hs.pop()], 1), width), 1
            if 2**level in a.attention:
                h, j = attention(f"output_blocks.{i}.1", h), 2
            if level and n == a.blocks:
                name = f"output_blocks.{i}.{j}"
                if a.updown:
                    h = res(name, h, width, 2)
                else:
                    h = w.conv(f"{name}.conv", F.interpolate(h, scale_factor=2), width, 3)
            i += 1
    return w.conv("out.2", F.silu(w.group_norm("out.0", h, 32)), (1 + a.learned) * a.colours, 3)


# -- EDM --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edm:
    song: bool = True
    resolution: int = 16
    channels: int = 16
    mult: tuple[int, ...] = (1, 2)
    blocks: int = 1
    attention: tuple[int, ...] = (8,)
    taps: tuple[int, ...] = (1, 1)
    fourier: bool = False
    residual: bool = False
    classes: int = 0
    augment: int = 0

    @property
    def kwargs(self) -> dict[str, object]:
        """As the constructor of the published class takes them."""
        both = {
            "img_resolution": self.resolution,
            "in_channels": 3,
            "out_channels": 3,
            "label_dim": self.classes,
            "augment_dim": self.augment,
            "model_channels": self.channels,
            "channel_mult": list(self.mult),
            "num_blocks": self.blocks,
            "attn_resolutions": list(self.attention),
        }
        more = {
            "embedding_type": "fourier" if self.fourier else "positional",
            "channel_mult_noise": 2 if self.fourier else 1,
            "encoder_type": "residual" if self.residual else "standard",
            "resample_filter": list(self.taps),
        }
        return both | more if self.song else both


def _filtered(x: Tensor, taps: tuple[int, ...], down: bool, pad: int | None = None) -> Tensor:
    """By hand: zero-stuffing and a plain convolution for up, a plain convolution and a stride for down."""
    f = torch.tensor(taps, dtype=torch.float32)
    kernel = (f[:, None] * f[None] / f.sum() ** 2)[None, None]
    pad = (len(taps) - 1) // 2 if pad is None else pad
    b, c, h, v = x.shape
    if down:
        small = F.conv2d(x.reshape(b * c, 1, h, v), kernel, padding=pad)[..., ::2, ::2]
        return small.reshape(b, c, *small.shape[2:])
    stuffed = torch.zeros(b * c, 1, 2 * h - 1, 2 * v - 1)
    stuffed[..., ::2, ::2] = x.reshape(b * c, 1, h, v)
    return F.conv2d(stuffed, 4 * kernel.flip(2, 3), padding=len(taps) - 1 - pad).reshape(b, c, 2 * h, 2 * v)


def edm(w: Weights, a: Edm, x: Tensor, c: Tensor, onehot: Tensor | None = None) -> Tensor:
    """The raw network F, SongUNet or DhariwalUNet, under noise conditions c (B,)."""
    noise = a.channels * (2 if a.fourier and a.song else 1)
    half, eps, factor = noise // 2, (1e-6 if a.song else 1e-5), (0.5**0.5 if a.song else 1.0)
    if a.fourier and a.song:
        angles = c[:, None] * (2 * math.pi * w.of("map_noise.freqs", half))
    else:
        angles = c[:, None] * (1 / 10000) ** (torch.arange(half) / (half - 1 if a.song else half))
    if a.augment:
        w.of("map_augment.weight", noise, a.augment)
    if a.song:
        e = torch.cat([angles.sin(), angles.cos()], 1)
        if a.classes:
            e = e + w.linear("map_label", onehot * math.sqrt(a.classes), noise)
        e = F.silu(w.linear("map_layer1", F.silu(w.linear("map_layer0", e, 4 * a.channels)), 4 * a.channels))
    else:
        e = w.linear("map_layer0", torch.cat([angles.cos(), angles.sin()], 1), 4 * a.channels)
        e = w.linear("map_layer1", F.silu(e), 4 * a.channels)
        e = F.silu(e + w.linear("map_label", onehot, 4 * a.channels, bias=False) if a.classes else e)

    def norm(p: str, x: Tensor) -> Tensor:
        return w.group_norm(p, x, min(32, x.shape[1] // 4), eps)

    def block(p: str, x: Tensor, width: int, way: str = "", attention: bool = False) -> Tensor:
        def sized(u: Tensor) -> Tensor:
            return _filtered(u, a.taps, way == "down") if way else u

        if way:
            for layer in ("conv0", "skip"):
                w.of(f"{p}.{layer}.resample_filter", 1, 1, len(a.taps), len(a.taps))
        h = w.conv(f"{p}.conv0", sized(F.silu(norm(f"{p}.norm0", x))), width, 3)
        told = w.linear(f"{p}.affine", e, width * (1 if a.song else 2))[:, :, None, None]
        if a.song:
            h = norm(f"{p}.norm1", h + told)
        else:
            h = norm(f"{p}.norm1", h) * (1 + told[:, :width]) + told[:, width:]
        h = w.conv(f"{p}.conv1", F.silu(h), width, 3)
        projected = x.shape[1] != width or (way and a.song)
        x = factor * (h + (w.conv(f"{p}.skip", sized(x), width, 1) if projected else sized(x)))
        if attention:
            heads = 1 if a.song else width // 64
            qkv = w.conv(f"{p}.qkv", norm(f"{p}.norm2", x), 3 * width, 1)
            q, k, v = qkv.reshape(len(x) * heads, width // heads, 3, -1).unbind(2)
            x = factor * (x + w.conv(f"{p}.proj", attend(q, k, v).reshape(x.shape), width, 1))
        return x

    skips: list[Tensor] = []
    aux = x
    for level, mult in enumerate(a.mult):
        res = a.resolution >> level
        p = f"enc.{res}x{res}_"
        if level == 0:
            x = w.conv(f"{p}conv", x, a.channels * (1 if a.song else mult), 3)
        else:
            width = x.shape[1]
            x = block(f"{p}down", x, width, "down")
            if a.residual:
                w.of(f"{p}aux_residual.resample_filter", 1, 1, len(a.taps), len(a.taps))
                wide = w.conv(f"{p}aux_residual", aux, width, 3, pad=1 + (len(a.taps) - 1) // 2)
                aux = x = (x + _filtered(wide, a.taps, True, pad=0)) / 2**0.5
        skips.append(x)
        for i in range(a.blocks):
            x = block(f"{p}block{i}", x, a.channels * mult, attention=res in a.attention)
            skips.append(x)
    for level in reversed(range(len(a.mult))):
        res, width = a.resolution >> level, x.shape[1]
        p = f"dec.{res}x{res}_"
        if level == len(a.mult) - 1:
            x = block(f"{p}in1", block(f"{p}in0", x, width, attention=True), width)
        else:
            x = block(f"{p}up", x, width, "up")
        for i in range(a.blocks + 1):
            attends = res in a.attention and (i == a.blocks or not a.song)
            x = block(f"{p}block{i}", torch.cat([x, skips.pop()], 1), a.channels * a.mult[level], "", attends)
    last = f"dec.{a.resolution}x{a.resolution}_aux_" if a.song else "out_"
    return w.conv(f"{last}conv", F.silu(norm(f"{last}norm", x)), 3, 3)
