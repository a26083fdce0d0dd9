"""EDM2's network as a plain function of a dictionary of tensors, by the numbered equations of its paper."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from support.foreign_reference import Weights


@dataclass(frozen=True)
class Edm2:
    resolution: int = 8
    channels: int = 64
    mult: tuple[int, ...] = (1, 2)
    blocks: int = 1
    attention: tuple[int, ...] = (4,)
    classes: int = 0

    @property
    def kwargs(self) -> dict[str, object]:
        return {
            "img_resolution": self.resolution,
            "img_channels": 3,
            "label_dim": self.classes,
            "model_channels": self.channels,
            "channel_mult": list(self.mult),
            "num_blocks": self.blocks,
            "attn_resolutions": list(self.attention),
        }


def edm2(w: Weights, a: Edm2, x: Tensor, c: Tensor, onehot: Tensor | None = None) -> Tensor:
    """The raw network F under noise conditions c (B,)."""

    def layer(name: str, x: Tensor, width: int, kernel: int = 0, gain: Tensor | float = 1.0) -> Tensor:
        shape = (width, x.shape[1], *[kernel] * (2 if kernel else 0))
        weight = w.of(f"{name}.weight", *shape)
        fan = math.prod(shape[1:])
        norm = weight.reshape(width, -1).norm(dim=1).reshape(-1, *[1] * (len(shape) - 1))
        weight = weight / (1e-4 + norm / math.sqrt(fan)) * gain / math.sqrt(fan)
        return F.conv2d(x, weight, padding=kernel // 2) if kernel else x @ weight.T

    def pixel_norm(x: Tensor, axis: int) -> Tensor:
        return x / (1e-4 + x.norm(dim=axis, keepdim=True) / math.sqrt(x.shape[axis]))

    def silu(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x) / 0.596

    def mix(a: Tensor, b: Tensor, t: float) -> Tensor:
        return ((1 - t) * a + t * b) / math.sqrt((1 - t) ** 2 + t**2)

    widest = a.channels * max(a.mult)
    angles = c[:, None] * w.of("emb_fourier.freqs", a.channels) + w.of("emb_fourier.phases", a.channels)
    e = layer("emb_noise", math.sqrt(2) * angles.cos(), widest)
    if a.classes:
        e = mix(e, layer("emb_label", onehot * math.sqrt(a.classes), widest), 0.5)
    e = silu(e)

    def block(p: str, x: Tensor, width: int, encoder: bool, way: str = "", attention: bool = False) -> Tensor:
        if way == "down":
            x = (x[..., ::2, ::2] + x[..., 1::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, 1::2]) / 4
        elif way == "up":
            x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
        projects = x.shape[1] != width
        if encoder:
            x = pixel_norm(layer(f"{p}.conv_skip", x, width, 1) if projects else x, 1)
        y = layer(f"{p}.conv_res0", silu(x), width, 3)
        y = y * (1 + layer(f"{p}.emb_linear", e, width, gain=w.of(f"{p}.emb_gain")))[:, :, None, None]
        y = layer(f"{p}.conv_res1", silu(y), width, 3)
        if not encoder and projects:
            x = layer(f"{p}.conv_skip", x, width, 1)
        x = mix(x, y, 0.3)
        if attention:
            b, _, height, breadth = x.shape
            y = layer(f"{p}.attn_qkv", x, 3 * width, 1).reshape(b, width // 64, 64, 3, -1)
            q, k, v = pixel_norm(y, 2).unbind(3)
            seen = torch.einsum("bhcq,bhck->bhqk", q, k / 8).softmax(-1)
            y = torch.einsum("bhqk,bhck->bhcq", seen, v).reshape(b, width, height, breadth)
            x = mix(x, layer(f"{p}.attn_proj", y, width, 1), 0.3)
        return x.clip(-256, 256)

    def join(a: Tensor, b: Tensor) -> Tensor:
        n, m = a.shape[1], b.shape[1]
        c = math.sqrt((n + m) / 0.5)
        return torch.cat([c / math.sqrt(n) * 0.5 * a, c / math.sqrt(m) * 0.5 * b], 1)

    x = torch.cat([x, torch.ones(len(x), 1, *x.shape[2:])], 1)
    skips: list[Tensor] = []
    for level, mult in enumerate(a.mult):
        res = a.resolution >> level
        p = f"enc.{res}x{res}_"
        x = (
            block(f"{p}down", x, x.shape[1], True, "down")
            if level
            else layer(f"{p}conv", x, a.channels * mult, 3)
        )
        skips.append(x)
        for i in range(a.blocks):
            x = block(f"{p}block{i}", x, a.channels * mult, True, attention=res in a.attention)
            skips.append(x)
    for level in reversed(range(len(a.mult))):
        res = a.resolution >> level
        p = f"dec.{res}x{res}_"
        if level == len(a.mult) - 1:
            x = block(f"{p}in0", x, x.shape[1], False, attention=True)
            x = block(f"{p}in1", x, x.shape[1], False)
        else:
            x = block(f"{p}up", x, x.shape[1], False, "up")
        for i in range(a.blocks + 1):
            joined = join(x, skips.pop())
            x = block(f"{p}block{i}", joined, a.channels * a.mult[level], False, attention=res in a.attention)
    return layer("out_conv", x, 3, 3, gain=w.of("out_gain"))
