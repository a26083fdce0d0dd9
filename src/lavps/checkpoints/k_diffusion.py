r"""HDiT checkpoints of k-diffusion (image_transformer_v2) and of InvFusion's release.

The architecture is :class:`~lavps.nn.HDiT`'s, with these differences. Positions run from -1 to 1 over
the image instead of counting tokens. The scale of cosine attention is not stored as a logarithm. A constant
vector for augmentations and the embedding of the class are added to that of the time: both become the weight
of an exact feature of frequency 0, :math:`\cos(0) = 1`. InvFusion's names have additional components.

The window sizes and sigma_data are not in the tensors but in the configuration of k-diffusion's files.
Without one, windows are 7 with global attention at the coarsest level (5, 7, global, global in the four-level
network for faces), and sigma_data is 0.5.
"""

from __future__ import annotations

__all__ = ["HDIT_LAYOUTS", "load_hdit"]

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..nn.hdit import HDiT, HDiTConfig
from ..priors import EDMPrior
from ..schedule import VE
from .labels import chosen_label
from .layout import Layout, Loaded, LoadOptions
from .reading import Checkpoint
from .renaming import Renamer
from .sizes import require_checkpoint

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


def load_hdit(checkpoint: Checkpoint, options: LoadOptions) -> Loaded:
    """Return the prior in a file of k-diffusion or InvFusion."""
    checkpoint = replace(checkpoint, tensors=_plain_names(checkpoint.tensors))
    stated: Mapping[str, Any] = checkpoint.config.get("config", checkpoint.config).get("model", {})
    if (kind := stated.get("type", "image_transformer_v2")) != "image_transformer_v2":
        raise ValueError(f"{checkpoint.path} is a {kind}, not an image_transformer_v2")
    config, assumed = _shape_of(checkpoint, stated)
    # One row of the embedding stands for "no class".
    rows = checkpoint.tensors.get("class_emb.weight")
    classes = 0 if rows is None else len(rows) - 1
    label, about = chosen_label(options.label, classes, classes, str(checkpoint.path))
    require_checkpoint(config.to_dict(), checkpoint.tensors, checkpoint.path)
    network = HDiT(config)
    network.load_state_dict(_renamed(checkpoint, network, None if rows is None else rows[label]))
    network.requires_grad_(False).to(options.device)
    state = checkpoint.instance.state if checkpoint.instance is not None else {}
    # The default of a k-diffusion configuration is 1.
    sigma_data = float(stated.get("sigma_data", 1.0) if stated else state.get("sigma_data", 0.5))
    schedule = VE(float(stated.get("sigma_min", 0.002)), float(stated.get("sigma_max", 80.0)))
    windows = ", ".join("all" if window is None else str(window) for window in config.attention)
    line = (
        f"HDiT, {config.in_channels}-channel images, patch {config.patch}, levels of "
        f"{', '.join(map(str, config.widths))} channels attending to {windows}, {about}, EDM preconditioning "
        f"with sigma_data {sigma_data:g}{'; assumed: ' + assumed if assumed else ''}"
    )
    size = stated.get("input_size")
    shape = None if size is None else (config.in_channels, *map(int, size))
    return Loaded(EDMPrior(network, schedule, sigma_data), line, shape)


def _plain_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert InvFusion's names to those of k-diffusion."""
    if not any(name.startswith("unet.") for name in tensors):
        return dict(tensors)
    return {
        re.sub(r"\.attn\.(self_attn|ff)\.", r".\1.", name.removeprefix("unet.")): value
        for name, value in tensors.items()
        if not name.startswith("logvar_")
    }


def _shape_of(checkpoint: Checkpoint, stated: Mapping[str, Any]) -> tuple[HDiTConfig, str]:
    """Return the architecture and a description of the assumptions."""
    tensors, path = checkpoint.tensors, checkpoint.path
    layers = ("jk_proj", "mapping_cond", "feature_degradation")
    if conditional := [name for name in tensors if any(layer in name for layer in layers)]:
        raise ValueError(f"{path} is conditional ({conditional[0]}): it is no prior")
    outer = sorted({int(n.split(".")[1]) for n in tensors if n.startswith("down_levels.")})
    levels = [*(f"down_levels.{level}" for level in outer), "mid_level"]
    if any(f"{level}.0.self_attn.qkv_proj.weight" not in tensors for level in levels):
        raise ValueError(f"{path} has levels without attention, which are not supported")
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
    pixels_in = tensors["patch_in.proj.weight"].shape[1]
    pixels_out = tensors["patch_out.proj.weight"].shape[0]
    if pixels_in != pixels_out:
        raise ValueError(f"{path} maps {pixels_in} values per patch to {pixels_out}: it is no prior")
    attention, assumed = _windows(stated, widths)
    channels = int(stated.get("input_channels", 3 if pixels_in % 3 == 0 else 1))
    patch = round((pixels_in / channels) ** 0.5)
    if patch * patch * channels != pixels_in:
        raise ValueError(f"{path} has patches of {pixels_in} values, not squares of {channels} channels")
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


def _windows(stated: Mapping[str, Any], widths: tuple[int, ...]) -> tuple[tuple[int | None, ...], str]:
    """Return the window of each level and a description of the assumptions."""
    if not stated:
        sides = (5, 7, None, None) if widths == _FACES else (*(7 for _ in widths[1:]), None)
        return sides, "windows and sigma_data of the published networks"
    default = [{"type": "neighborhood"} for _ in widths[1:]] + [{"type": "global"}]
    chosen: list[int | None] = []
    for level in stated.get("self_attns") or default:
        if level["type"] not in ("neighborhood", "global"):
            raise ValueError(f"attention of type {level['type']!r} is not supported")
        chosen.append(None if level["type"] == "global" else int(level.get("kernel_size", 7)))
    return tuple(chosen), ""


def _renamed(checkpoint: Checkpoint, network: HDiT, class_embedding: Tensor | None) -> dict[str, Tensor]:
    """Return the tensors under the names of :class:`HDiT`, for a class embedding of shape (M,)."""
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
    levels = [(f"{way}.{level}", f"{way}_levels.{level}", level) for way in ("down", "up") for level in outer]
    for ours, theirs, level in [*levels, ("middle", "mid_level", -1)]:
        for i in range(network.config.depths[level]):
            for mine, other in _BLOCK.items():
                names.tensor(f"{ours}.blocks.{i}.{mine}", f"{theirs}.{i}.{other}")
            scale = f"{ours}.blocks.{i}.attention.log_scale"
            names.found[scale] = names.found[scale].log()
    for level in outer:
        names.take(f"merges.{level}.project", f"merges.{level}.proj")
        names.take(f"splits.{level}.project", f"splits.{level}.proj")
        names.tensor(f"splits.{level}.weight", f"splits.{level}.fac")
    _embed(names, checkpoint.tensors, class_embedding)
    return names.finished(network)


def _embed(names: Renamer, tensors: Mapping[str, Tensor], class_embedding: Tensor | None) -> None:
    """Add the features of the time and one of frequency 0 for all constant embeddings."""
    names.ignore(n for n in tensors if n.startswith(("time_", "aug_", "class_emb.")))
    cosines, sines = tensors["time_in_proj.weight"].chunk(2, dim=1)
    # Without augmentation all cosines are 1 and all sines 0.
    constant = tensors["aug_in_proj.weight"].chunk(2, dim=1)[0].sum(1, keepdim=True)
    if class_embedding is not None:
        constant = constant + class_embedding[:, None]
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
