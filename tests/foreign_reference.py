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
            offset = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
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
