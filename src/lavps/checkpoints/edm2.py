"""EDM2's pickles: the magnitude-preserving U-Net, its weights normalized on loading.

Files for 512 x 512 images hold a prior over 4-channel latents of a Stable Diffusion autoencoder, without the
autoencoder. "No class" is a zero vector, as in the library.
"""

from __future__ import annotations

__all__ = ["EDM2", "load_edm2"]

import math
from typing import Any

import torch
from torch import Tensor

from ..nn.edm2_unet import MagnitudeUNet, MagnitudeUNetConfig, balanced
from ..priors.adapters import EDMPrior
from ..schedule import VE
from .labels import chosen_label
from .layout import Layout, Loaded, LoadOptions
from .reading import Checkpoint
from .renaming import Renamer, canonical_qkv
from .safe_pickle import Instance
from .sizes import require_checkpoint

_BLOCK = {
    "conv1": "conv_res0",
    "embed": "emb_linear",
    "conv2": "conv_res1",
    "skip": "conv_skip",
    "qkv": "attn_qkv",
    "out": "attn_proj",
}
_OPTIONAL = ("skip", "qkv", "out")


def load_edm2(checkpoint: Checkpoint, options: LoadOptions) -> Loaded:
    """Return the prior in an EDM2 pickle."""
    outer = checkpoint.instance
    inner = None if outer is None else outer.modules.get("unet")
    if outer is None or inner is None:
        raise ValueError(f"{checkpoint.path} is not an EDM2 network")
    config, numbers = _shape_of(inner, checkpoint)
    classes = int(outer.state.get("label_dim") or 0)
    label, about = chosen_label(options.label, classes, classes, str(checkpoint.path))
    require_checkpoint(config.to_dict(), checkpoint.tensors, checkpoint.path)
    network = MagnitudeUNet(config)
    chosen = torch.zeros(classes)
    if label is not None and label < classes:
        chosen[label] = math.sqrt(classes)
    network.load_state_dict(_renamed(checkpoint, inner, network, numbers, chosen))
    network.requires_grad_(False).to(options.device)
    sigma_data = float(outer.state.get("sigma_data", 0.5))
    what = "latents" if config.in_channels == 4 else "images"
    shape = (config.in_channels, *2 * (int(numbers["img_resolution"]),))
    size = " x ".join(map(str, shape))
    line = f"EDM2 U-Net, {what} of {size}, {about}, EDM preconditioning with sigma_data {sigma_data:g}"
    return Loaded(EDMPrior(network, VE(), sigma_data), line, shape)


def _shape_of(inner: Instance, checkpoint: Checkpoint) -> tuple[MagnitudeUNetConfig, dict[str, Any]]:
    defaults = {
        "model_channels": 192,
        "channel_mult": [1, 2, 3, 4],
        "num_blocks": 3,
        "attn_resolutions": [16, 8],
    }
    numbers: dict[str, Any] = {**defaults, **inner.arguments}
    if tuple(numbers.get("resample_filter", (1, 1))) != (1, 1):
        raise ValueError(f"{checkpoint.path} has an unsupported resample_filter {numbers['resample_filter']}")
    base, resolution = int(numbers["model_channels"]), int(numbers["img_resolution"])
    widths = tuple(base * int(mult) for mult in numbers["channel_mult"])
    embedding, features = checkpoint.tensors["unet.emb_noise.weight"].shape
    clip = numbers.get("clip_act", 256)
    return MagnitudeUNetConfig(
        int(numbers["img_channels"]),
        widths,
        (int(numbers["num_blocks"]),) * len(widths),
        tuple(resolution >> level in numbers["attn_resolutions"] for level in range(len(widths))),
        features,
        embedding,
        int(numbers.get("channels_per_head", 64)),
        float(numbers.get("res_balance", 0.3)),
        float(numbers.get("attn_balance", 0.3)),
        float(numbers.get("concat_balance", 0.5)),
        math.inf if clip is None else float(clip),
    ), numbers


def _normalized(weight: Tensor, gain: Tensor | float = 1.0) -> Tensor:
    fan = weight[0].numel()
    rms = weight.flatten(1).square().mean(1).sqrt().reshape(-1, *[1] * (weight.ndim - 1))
    return weight / (1e-4 + rms) * (gain / math.sqrt(fan))


def _renamed(
    checkpoint: Checkpoint, inner: Instance, network: MagnitudeUNet, numbers: dict[str, Any], chosen: Tensor
) -> dict[str, Tensor]:
    """Return the normalized tensors under the names of :class:`MagnitudeUNet`."""
    tensors, names = checkpoint.tensors, Renamer(checkpoint)
    names.ignore(n for n in tensors if n.startswith("logvar_") or n.endswith("_gain") or "emb_label" in n)
    names.tensor("frequencies", "unet.emb_fourier.freqs")
    names.tensor("phases", "unet.emb_fourier.phases")
    names.take("embed", "unet.emb_noise")
    names.take("out", "unet.out_conv")
    encoder, decoder = (list(inner.modules[part].modules) for part in ("enc", "dec"))
    names.take("stem", f"unet.enc.{encoder[0]}")
    blocks = [(f"encoder.{i}", f"unet.enc.{name}") for i, name in enumerate(encoder[1:])]
    blocks += [(f"middle.{i}", f"unet.dec.{name}") for i, name in enumerate(decoder[:2])]
    blocks += [(f"decoder.{i}", f"unet.dec.{name}") for i, name in enumerate(decoder[2:])]
    gains: dict[str, Tensor] = {"out.weight": tensors["unet.out_gain"]}
    for ours, theirs in blocks:
        for mine, other in _BLOCK.items():
            names.take(f"{ours}.{mine}", f"{theirs}.{other}", optional=mine in _OPTIONAL)
        gains[f"{ours}.embed.weight"] = tensors[f"{theirs}.emb_gain"]
    for name, value in names.found.items():
        if name.endswith("weight"):
            names.found[name] = _normalized(value, gains.get(name, 1.0))
    for ours, _ in blocks:
        if f"{ours}.qkv.weight" in names.found:
            heads = max(1, len(names.found[f"{ours}.out.weight"]) // network.config.head_channels)
            canonical_qkv(names.found, f"{ours}.", heads, "head channel kind")
    names.found["embed.bias"] = torch.zeros(network.config.embedding)
    if len(chosen):
        embedding = _normalized(tensors["unet.emb_label.weight"]) @ chosen
        balance, weight = float(numbers.get("label_balance", 0.5)), names.found["embed.weight"]
        names.found["embed.bias"] = balanced(torch.zeros_like(embedding), embedding, balance)
        names.found["embed.weight"] = balanced(weight, torch.zeros_like(weight), balance)
    return names.finished(network)


_KEYS = ("emb_fourier.freqs", "emb_fourier.phases", "emb_noise.weight", "out_conv.weight", "out_gain")
EDM2 = Layout("EDM2", tuple(f"unet.{key}" for key in _KEYS), load_edm2, "Precond")
