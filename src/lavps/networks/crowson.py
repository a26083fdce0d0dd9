r"""HDiT as others store it: k-diffusion's image_transformer_v2, and InvFusion's release built on it.

The architecture is :class:`~lavps.networks.HDiT`'s; what differs is named here. Positions run from -1 to 1
over the image instead of counting tokens. The scale of cosine attention is stored as such, not as its log. A
vector for augmentations, constant in sampling, is added to the embedding of the time, and so is that of the
class: both become the weight of a feature of frequency 0, :math:`\cos(0) = 1`, so that nothing is
approximated. InvFusion's files have one more name on the way to each layer, and "unet" before all.

Neither the side of a neighbourhood nor sigma_data is in the tensors. k-diffusion's files carry a
configuration that says both; without one the sides are 7, the coarsest level attends everywhere (5, 7 and
everywhere twice in the four-level network for faces), and sigma_data is 0.5.

References:
    - Crowson et al., Scalable High-Resolution Pixel-Space Image Synthesis with Hourglass Diffusion
      Transformers, 2024.
    - Elata et al., InvFussion: Bridging Supervised and Zero-shot Diffusion for Inverse Problems, 2025.
"""

from __future__ import annotations

__all__ = ["HDIT_LAYOUTS", "load_hdit"]

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..priors import EDMPrior
from ..priors.foreign import Layout, Loaded, Options
from ..priors.foreign.labels import chosen_label
from ..priors.foreign.reading import Checkpoint
from ..priors.foreign.renaming import Renamer
from ..schedule import VE
from .hdit import HDiT, HDiTConfig

_BLOCK = {
    "attention.norm.scale.weight": "self_attn.norm.linear.weight",
    "attention.query_key_value.weight": "self_attn.qkv_proj.weight",
    "attention.log_scale": "self_attn.scale",
    "attention.positions.frequencies": "self_attn.pos_emb.freqs",
    "attention.out.weight": "self_attn.out_proj.weight",
    "norm.scale.weight": "ff.norm.linear.weight",
    "feed_forward.up.weight": "ff.up_proj.weight",
    "feed_forward.down.weight": "ff.down_proj.weight",
}
_FACES = (192, 384, 768, 1536)


def load_hdit(checkpoint: Checkpoint, options: Options) -> Loaded:
    """The prior in a file of k-diffusion or InvFusion."""
    checkpoint = replace(checkpoint, tensors=_plain_names(checkpoint.tensors))
    said: Mapping[str, Any] = checkpoint.config.get("config", checkpoint.config).get("model", {})
    if said.get("type", "image_transformer_v2") != "image_transformer_v2":
        raise ValueError(f"{checkpoint.path} is a {said['type']}, not an image_transformer_v2")
    config, assumed = _shape_of(checkpoint, said)
    # One row of the embedding is "no class".
    rows = checkpoint.tensors.get("class_emb.weight")
    classes = 0 if rows is None else len(rows) - 1
    label, about = chosen_label(options.label, classes, classes, str(checkpoint.path))
    network = HDiT(config)
    network.load_state_dict(_renamed(checkpoint, network, None if rows is None else rows[label]))
    network.requires_grad_(False).to(options.device)
    state = checkpoint.instance.state if checkpoint.instance is not None else {}
    # A k-diffusion configuration that is silent means 1.
    sigma_data = float(said.get("sigma_data", 1.0) if said else state.get("sigma_data", 0.5))
    schedule = VE(float(said.get("sigma_min", 0.002)), float(said.get("sigma_max", 80.0)))
    windows = ", ".join("all" if window is None else str(window) for window in config.attention)
    line = (
        f"HDiT, {config.in_channels}-channel images, patch {config.patch}, levels of "
        f"{', '.join(map(str, config.widths))} channels attending to {windows}, {about}, EDM preconditioning "
        f"with sigma_data {sigma_data:g}{'; assumed: ' + assumed if assumed else ''}"
    )
    size = said.get("input_size")
    shape = None if size is None else (config.in_channels, *map(int, size))
    return Loaded(EDMPrior(network, schedule, sigma_data), line, shape)


def _plain_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """InvFusion's names as k-diffusion's."""
    if not any(name.startswith("unet.") for name in tensors):
        return dict(tensors)
    return {
        re.sub(r"\.attn\.(self_attn|ff)\.", r".\1.", name.removeprefix("unet.")): value
        for name, value in tensors.items()
        if not name.startswith("logvar_")
    }


def _shape_of(checkpoint: Checkpoint, said: Mapping[str, Any]) -> tuple[HDiTConfig, str]:
    """The architecture, and in words what of it was assumed."""
    tensors, path = checkpoint.tensors, checkpoint.path
    if conditional := [
        n for n in tensors if "jk_proj" in n or "mapping_cond" in n or "feature_degradation" in n
    ]:
        raise ValueError(f"{path} is conditional ({conditional[0]}): a prior knows no measurement")
    outer = sorted({int(n.split(".")[1]) for n in tensors if n.startswith("down_levels.")})
    levels = [*(f"down_levels.{level}" for level in outer), "mid_level"]
    if any(f"{level}.0.self_attn.qkv_proj.weight" not in tensors for level in levels):
        raise ValueError(f"{path} has levels without attention, which are not known")
    widths = tuple(tensors[f"{level}.0.self_attn.out_proj.weight"].shape[0] for level in levels)
    heads = [len(tensors[f"{level}.0.self_attn.scale"]) for level in levels]
    expansions = {
        tensors[f"{level}.0.ff.down_proj.weight"].shape[1] / w
        for level, w in zip(levels, widths, strict=True)
    }
    mapping = tensors["mapping.in_norm.scale"].shape[0]
    depth = len({n.split(".")[2] for n in tensors if n.startswith("mapping.blocks.")})
    if expansions != {3.0} or len({w // h for w, h in zip(widths, heads, strict=True)}) != 1:
        raise ValueError(f"{path} has feed-forward layers not 3 times as wide, or heads of several sizes")
    pixels_in, pixels_out = (
        tensors["patch_in.proj.weight"].shape[1],
        tensors["patch_out.proj.weight"].shape[0],
    )
    if pixels_in != pixels_out:
        raise ValueError(f"{path} maps {pixels_in} numbers a patch to {pixels_out}: it is no prior")
    attention, assumed = _windows(said, widths)
    channels = int(said.get("input_channels", 3 if pixels_in % 3 == 0 else 1))
    patch = round((pixels_in / channels) ** 0.5)
    if patch * patch * channels != pixels_in:
        raise ValueError(
            f"{path} has patches of {pixels_in} numbers, which are no squares of {channels} channels"
        )
    config = HDiTConfig(
        in_channels=channels,
        out_channels=channels,
        patch=patch,
        widths=widths,
        depths=tuple(
            len({n.split(".")[level.count(".") + 1] for n in tensors if n.startswith(f"{level}.")})
            for level in levels
        ),
        attention=attention,
        head_dim=widths[0] // heads[0],
        mapping_width=mapping,
        mapping_depth=depth,
        frequencies=len(tensors["time_emb.weight"]) + 1,
        positions="image",
    )
    return config, assumed


def _windows(said: Mapping[str, Any], widths: tuple[int, ...]) -> tuple[tuple[int | None, ...], str]:
    """The side of each level's neighbourhood, and in words what was assumed."""
    if not said:
        sides = (5, 7, None, None) if widths == _FACES else (*(7 for _ in widths[1:]), None)
        return sides, "the neighbourhoods and sigma_data, by the published networks"
    default = [{"type": "neighborhood"} for _ in widths[1:]] + [{"type": "global"}]
    chosen: list[int | None] = []
    for level in said.get("self_attns") or default:
        if level["type"] not in ("neighborhood", "global"):
            raise ValueError(f"attention of type {level['type']!r} is not known")
        chosen.append(None if level["type"] == "global" else int(level.get("kernel_size", 7)))
    return tuple(chosen), ""


def _renamed(checkpoint: Checkpoint, network: HDiT, told: Tensor | None) -> dict[str, Tensor]:
    """The tensors under the names of :class:`HDiT`; ``told`` is the embedding of the class (M,)."""
    names = Renamer(checkpoint)
    names.take("enter.project", "patch_in.proj")
    names.take("leave", "patch_out.proj")
    names.tensor("norm.gain", "out_norm.scale")
    names.tensor("embedding.mapping.first.gain", "mapping.in_norm.scale")
    names.tensor("embedding.mapping.last.gain", "mapping.out_norm.scale")
    for i in range(network.config.mapping_depth):
        names.tensor(f"embedding.mapping.layers.{i}.0.gain", f"mapping.blocks.{i}.norm.scale")
        names.take(f"embedding.mapping.layers.{i}.1.up", f"mapping.blocks.{i}.up_proj")
        names.take(f"embedding.mapping.layers.{i}.1.down", f"mapping.blocks.{i}.down_proj")
    outer = range(len(network.config.widths) - 1)
    places = [(f"{way}.{level}", f"{way}_levels.{level}", level) for way in ("down", "up") for level in outer]
    for ours, theirs, level in [*places, ("middle", "mid_level", -1)]:
        for i in range(network.config.depths[level]):
            for mine, other in _BLOCK.items():
                names.tensor(f"{ours}.blocks.{i}.{mine}", f"{theirs}.{i}.{other}")
            scale = f"{ours}.blocks.{i}.attention.log_scale"
            names.found[scale] = names.found[scale].log()
    for level in outer:
        names.take(f"merges.{level}.project", f"merges.{level}.proj")
        names.take(f"splits.{level}.project", f"splits.{level}.proj")
        names.tensor(f"splits.{level}.weight", f"splits.{level}.fac")
    _embed(names, checkpoint.tensors, told)
    return names.finished(network)


def _embed(names: Renamer, tensors: Mapping[str, Tensor], told: Tensor | None) -> None:
    """The features of the time, and one of frequency 0 that brings all that does not depend on it."""
    names.ignore(n for n in tensors if n.startswith(("time_", "aug_", "class_emb.")))
    cosines, sines = tensors["time_in_proj.weight"].chunk(2, dim=1)
    # Without augmentation all cosines are 1 and all sines 0.
    constant = tensors["aug_in_proj.weight"].chunk(2, dim=1)[0].sum(1, keepdim=True)
    if told is not None:
        constant = constant + told[:, None]
    names.found["embedding.t.frequencies"] = torch.cat([tensors["time_emb.weight"].flatten(), torch.zeros(1)])
    names.found["embedding.t.project.weight"] = torch.cat(
        [cosines, constant, sines, torch.zeros_like(constant)], dim=1
    )


_OUTSIDE = ("patch_in.proj.weight", "time_emb.weight", "time_in_proj.weight", "aug_in_proj.weight")
_INSIDE = ("mapping.in_norm.scale", "out_norm.scale", "patch_out.proj.weight")
_ATTENTION = ("qkv_proj.weight", "scale", "pos_emb.freqs", "out_proj.weight")
HDIT_LAYOUTS = (
    Layout(
        "k-diffusion image_transformer_v2 (HDiT)",
        (*_OUTSIDE, *_INSIDE, *(f"mid_level.0.self_attn.{name}" for name in _ATTENTION)),
        load_hdit,
    ),
    Layout(
        "InvFusion HDiT",
        (
            *(f"unet.{name}" for name in (*_OUTSIDE, *_INSIDE)),
            *(f"unet.mid_level.0.attn.self_attn.{name}" for name in _ATTENTION),
        ),
        load_hdit,
    ),
)
