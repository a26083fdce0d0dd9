"""k-diffusion's image_transformer_v2 as a plain function of a dictionary of tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from support.foreign_reference import Weights


@dataclass(frozen=True)
class Hdit:
    widths: tuple[int, ...] = (32, 64)
    depths: tuple[int, ...] = (1, 2)
    windows: tuple[int | None, ...] = (3, None)
    head: int = 16
    patch: int = 2
    mapping: int = 24
    mapping_depth: int = 2
    classes: int = 0  # without "no class"
    prefix: str = ""  # InvFusion: "unet."
    layer: str = ""  # InvFusion: ".attn"


def _rms(x: Tensor, gain: Tensor) -> Tensor:
    return x * gain / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def _window(i: int, n: int, side: int) -> range:
    start = min(max(i - side // 2, 0), n - side)
    return range(start, start + side)


def hdit(w: Weights, a: Hdit, x: Tensor, c: Tensor, labels: Tensor | None = None) -> Tensor:
    """The raw network F for images (B, 3, H, W), noise conditions c (B,)."""

    def linear(name: str, x: Tensor, width: int) -> Tensor:
        return w.linear(a.prefix + name, x, width, bias=False)

    def of(name: str, *shape: int) -> Tensor:
        return w.of(a.prefix + name, *shape)

    def geglu(p: str, x: Tensor, width: int) -> Tensor:
        up = linear(f"{p}.up_proj", x, 6 * width)
        return linear(f"{p}.down_proj", up[..., : 3 * width] * F.gelu(up[..., 3 * width :]), width)

    m = a.mapping
    angles = 2 * math.pi * c[:, None] @ of("time_emb.weight", m // 2, 1).T
    e = linear("time_in_proj", torch.cat([angles.cos(), angles.sin()], -1), m)
    quiet = torch.zeros(len(x), 9) @ of("aug_emb.weight", m // 2, 9).T
    e = e + linear("aug_in_proj", torch.cat([quiet.cos(), quiet.sin()], -1), m)
    if a.classes:
        e = e + of("class_emb.weight", a.classes + 1, m)[labels]
    e = _rms(e, of("mapping.in_norm.scale", m))
    for i in range(a.mapping_depth):
        e = e + geglu(f"mapping.blocks.{i}", _rms(e, of(f"mapping.blocks.{i}.norm.scale", m)), m)
    e = _rms(e, of("mapping.out_norm.scale", m))

    def adaptive(p: str, x: Tensor) -> Tensor:
        return _rms(x, 1 + linear(f"{p}.norm.linear", e, x.shape[-1])[:, None, None])

    def attention(p: str, x: Tensor, pos: Tensor, side: int | None) -> Tensor:
        b, h, v, d = x.shape
        heads = d // a.head
        qkv = linear(f"{p}.qkv_proj", adaptive(p, x), 3 * d).reshape(b, h, v, 3, heads, a.head)
        scale = of(f"{p}.scale", heads)
        freqs = of(f"{p}.pos_emb.freqs", heads, a.head // 8)
        theta = torch.cat([pos[..., None, :1] * freqs, pos[..., None, 1:] * freqs], -1)
        n = a.head // 4

        def turned(u: Tensor) -> Tensor:
            u = u * scale.sqrt()[:, None] / (u.square().sum(-1, keepdim=True) + 1e-6).sqrt()
            one, two = u[..., :n], u[..., n : 2 * n]
            cos, sin = theta.cos(), theta.sin()
            return torch.cat([one * cos - two * sin, two * cos + one * sin, u[..., 2 * n :]], -1)

        q, k, values = turned(qkv[..., 0, :, :]), turned(qkv[..., 1, :, :]), qkv[..., 2, :, :]
        out = torch.zeros_like(values)
        for i in range(h):
            for j in range(v):
                rows = range(h) if side is None else _window(i, h, min(side, h))
                columns = range(v) if side is None else _window(j, v, min(side, v))
                seen = [part[:, rows.start : rows.stop, columns.start : columns.stop] for part in (k, values)]
                keys, vals = (part.reshape(b, -1, heads, a.head) for part in seen)
                weights = torch.einsum("bhe,bnhe->bnh", q[:, i, j], keys).softmax(1)
                out[:, i, j] = torch.einsum("bnh,bnhe->bhe", weights, vals)
        return x + linear(f"{p}.out_proj", out.reshape(b, h, v, d), d)

    def level(p: str, x: Tensor, pos: Tensor, number: int) -> Tensor:
        for i in range(a.depths[number]):
            x = attention(f"{p}.{i}{a.layer}.self_attn", x, pos, a.windows[number])
            q = f"{p}.{i}{a.layer}.ff"
            x = x + geglu(q, adaptive(q, x), x.shape[-1])
        return x

    def merged(u: Tensor, f: int) -> Tensor:
        return torch.cat([u[:, i::f, j::f] for i in range(f) for j in range(f)], -1)

    def split(u: Tensor, f: int) -> Tensor:
        b, h, v, d = u.shape
        big = torch.zeros(b, h * f, v * f, d // f**2)
        for n, part in enumerate(u.chunk(f * f, -1)):
            big[:, n // f :: f, n % f :: f] = part
        return big

    x = linear("patch_in.proj", merged(x.movedim(1, -1), a.patch), a.widths[0])
    height, width = x.shape[1:3]
    longer = max(height, width)
    rows, columns = ((2 * torch.arange(n) + 1 - n) / longer for n in (height, width))
    pos = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1)
    skips = []
    for n in range(len(a.widths) - 1):
        x = level(f"down_levels.{n}", x, pos, n)
        skips.append((x, pos))
        x = linear(f"merges.{n}.proj", merged(x, 2), a.widths[n + 1])
        pos = (pos[::2, ::2] + pos[1::2, 1::2]) / 2
    x = level("mid_level", x, pos, -1)
    for n in reversed(range(len(a.widths) - 1)):
        skip, pos = skips.pop()
        part = of(f"splits.{n}.fac", 1)
        x = (1 - part) * skip + part * split(linear(f"splits.{n}.proj", x, 4 * a.widths[n]), 2)
        x = level(f"up_levels.{n}", x, pos, n)
    x = _rms(x, of("out_norm.scale", a.widths[0]))
    return split(linear("patch_out.proj", x, 3 * a.patch**2), a.patch).movedim(-1, 1)
