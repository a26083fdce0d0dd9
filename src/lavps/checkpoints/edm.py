r"""EDM's pickles: DDPM++, NCSN++ and ADM under the preconditionings of the paper.

A file holds a network object, of which the class, constructor arguments and tensors are read; its source code
is ignored (:mod:`lavps.checkpoints.safe_pickle`). The outer class determines the denoiser:

- EDMPrecond: :class:`~lavps.priors.EDMPrior`;
- VPPrecond: F predicts the noise of :math:`x / \sqrt{1 + \sigma^2}` from the condition :math:`(M - 1)\,t`,
  where :math:`\sigma^2 = e^{\beta_d t^2 / 2 + \beta_{min} t} - 1`;
- VEPrecond: :math:`D = x + \sigma F(x, \log(\sigma / 2))`.

Augmentation labels are zero in sampling and are dropped. "No class" is a zero vector, as in the library.
"""

from __future__ import annotations

__all__ = ["EDM_LAYOUTS", "load_edm"]

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.adm_unet import ResidualUNet, ResidualUNetConfig
from ..priors.adapters import EDMPrior, NetworkPrior
from ..priors.protocol import Prior
from ..schedule import VE, VPLinear
from .labels import chosen_label
from .layout import Layout, Loaded, LoadOptions
from .reading import Checkpoint
from .renaming import Renamer, canonical_qkv
from .safe_pickle import Instance
from .sizes import require_checkpoint

_BLOCK = {
    "norm1": "norm0",
    "conv1": "conv0",
    "embed": "affine",
    "norm2": "norm1",
    "conv2": "conv1",
    "skip": "skip",
}
_ATTENTION = {"norm": "norm2", "qkv": "qkv", "out": "proj"}
_SONG = {"model_channels": 128, "channel_mult": [1, 2, 2, 2], "num_blocks": 4, "attn_resolutions": [16]}
_DHARIWAL = {
    "model_channels": 192,
    "channel_mult": [1, 2, 3, 4],
    "num_blocks": 3,
    "attn_resolutions": [32, 16, 8],
}


class _Reconditioned(nn.Module):
    """A network with its condition computed from the noise level r (B,), and a signed output."""

    def __init__(self, network: nn.Module, condition: Callable[[Tensor], Tensor], sign: float) -> None:
        super().__init__()
        self.network, self._condition, self._sign = network, condition, sign

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        output: Tensor = self._sign * self.network(x, self._condition(r))
        return output


def load_edm(checkpoint: Checkpoint, options: LoadOptions) -> Loaded:
    """Return the prior in an EDM pickle."""
    outer = checkpoint.instance
    inner = None if outer is None else outer.modules.get("model")
    if outer is None or inner is None or inner.kind not in ("SongUNet", "DhariwalUNet"):
        kind = "network" if inner is None else inner.kind
        raise ValueError(f"{checkpoint.path} holds a {kind}; supported are SongUNet and DhariwalUNet")
    config, numbers = _shape_of(inner, checkpoint)
    classes = int(outer.state.get("label_dim") or 0)
    label, about = chosen_label(options.label, classes, classes, f"{checkpoint.path}")
    require_checkpoint(config.to_dict(), checkpoint.tensors, checkpoint.path)
    network = ResidualUNet(config)
    network.load_state_dict(_renamed(checkpoint, inner, network, numbers, classes, label))
    network.requires_grad_(False).to(options.device)
    prior, preconditioning = _preconditioned(network, outer)
    shape = (config.in_channels, *2 * (int(numbers["img_resolution"]),))
    line = f"EDM {inner.kind}, images of {' x '.join(map(str, shape))}, {about}, {preconditioning}"
    return Loaded(prior, line, shape)


def _preconditioned(network: ResidualUNet, outer: Instance) -> tuple[Prior, str]:
    state = outer.state
    if outer.kind == "EDMPrecond":
        sigma_data = float(state["sigma_data"])
        return EDMPrior(network, VE(), sigma_data), f"EDM preconditioning, sigma_data {sigma_data:g}"
    if outer.kind == "VEPrecond":
        conditioned = _Reconditioned(network, lambda r: (0.5 * r).log(), -1.0)
        schedule = VE(float(state["sigma_min"]), float(state["sigma_max"]))
        return NetworkPrior(conditioned, schedule, "eps", "noise_level"), "VE preconditioning"
    slope, low, steps = float(state["beta_d"]), float(state["beta_min"]), int(state["M"])

    def time(r: Tensor) -> Tensor:
        root = (low**2 + 2 * slope * torch.log1p(r.double().square())).sqrt()
        return ((steps - 1) * (root - low) / slope).to(r.dtype)

    chain = VPLinear(low / steps, (low + slope) / steps, steps)
    return NetworkPrior(_Reconditioned(network, time, 1.0), chain, "eps", "noise_level"), "VP preconditioning"


def _shape_of(inner: Instance, checkpoint: Checkpoint) -> tuple[ResidualUNetConfig, dict[str, Any]]:
    """Return the architecture, and the constructor's arguments completed by their published defaults."""
    song = inner.kind == "SongUNet"
    defaults = {"channel_mult_emb": 4, "channel_mult_noise": 1, **(_SONG if song else _DHARIWAL)}
    numbers: dict[str, Any] = {**defaults, **inner.arguments}
    encoder, decoder = (numbers.get(f"{part}_type", "standard") for part in ("encoder", "decoder"))
    if encoder == "skip" or decoder != "standard":
        raise ValueError(f"{checkpoint.path}: SongUNet with skip encoder or decoder is not supported")
    base, resolution = int(numbers["model_channels"]), int(numbers["img_resolution"])
    widths = tuple(base * int(mult) for mult in numbers["channel_mult"])
    shape: dict[str, Any] = {
        "in_channels": int(numbers["in_channels"]),
        "out_channels": int(numbers["out_channels"]),
        "stem": base if song else widths[0],
        "channels": widths,
        "blocks": (int(numbers["num_blocks"]),) * len(widths),
        "attention": tuple(resolution >> i in numbers["attn_resolutions"] for i in range(len(widths))),
        "features": base * int(numbers["channel_mult_noise"]) if song else base,
        "embedding": base * int(numbers["channel_mult_emb"]),
        "group_size": 4,
    }
    if not song:
        return ResidualUNetConfig(**shape), numbers
    return ResidualUNetConfig(
        **shape,
        last_attends_only=True,
        heads=1,
        scale_shift=False,
        resampling_projects=True,
        filter=tuple(numbers.get("resample_filter", (1, 1))),
        pyramid=encoder == "residual",
        branch_scale=math.sqrt(0.5),
        epsilon=1e-6,
    ), numbers


def _renamed(
    checkpoint: Checkpoint,
    inner: Instance,
    network: ResidualUNet,
    numbers: dict[str, Any],
    classes: int,
    label: int | None,
) -> dict[str, Tensor]:
    """Return the tensors under the names, and in the order, of :class:`ResidualUNet`."""
    tensors, song = checkpoint.tensors, inner.kind == "SongUNet"
    names = Renamer(checkpoint, {"frequencies": _frequencies(checkpoint, network)})
    names.ignore(n for n in tensors if n.endswith("resample_filter") or n.startswith("model.map_"))
    names.take("embed_in", "model.map_layer0")
    names.take("embed_out", "model.map_layer1")
    encoder, decoder = (list(inner.modules[part].modules) for part in ("enc", "dec"))
    names.take("stem", f"model.enc.{encoder[0]}")
    finest = f"model.dec.{numbers['img_resolution']}x{numbers['img_resolution']}_aux_"
    names.take("norm", f"{finest}norm" if song else "model.out_norm")
    names.take("out", f"{finest}conv" if song else "model.out_conv")

    def block(ours: str, theirs: str) -> None:
        for mine, other in _BLOCK.items():
            names.take(f"{ours}.{mine}", f"{theirs}.{other}", optional=mine == "skip")
        if f"{theirs}.qkv.weight" in tensors:
            for mine, other in _ATTENTION.items():
                names.take(f"{ours}.attention.{mine}", f"{theirs}.{other}")
            heads = network.config.heads_of(len(tensors[f"{theirs}.norm2.bias"]))
            canonical_qkv(names.found, f"{ours}.attention.", heads, "head channel kind")

    for i, name in enumerate(name for name in encoder[1:] if "aux" not in name):
        block(f"encoder.{i}", f"model.enc.{name}")
    for i, name in enumerate(name for name in encoder if "aux_residual" in name):
        names.take(f"pyramid.{i}.conv", f"model.enc.{name}")
    block("middle.0", f"model.dec.{decoder[0]}")
    block("middle.1", f"model.dec.{decoder[1]}")
    for i, name in enumerate(name for name in decoder[2:] if "aux" not in name):
        block(f"decoder.{i}", f"model.dec.{name}")
    return _with_class(names.finished(network), tensors, song, classes, label)


def _frequencies(checkpoint: Checkpoint, network: ResidualUNet) -> Tensor:
    if (drawn := checkpoint.tensors.get("model.map_noise.freqs")) is not None:
        return 2 * math.pi * drawn
    if network.config.scale_shift:  # ADM
        return network.frequencies
    half = len(network.frequencies)
    return (1 / 10000) ** (torch.arange(half, dtype=torch.float32) / (half - 1))


def _with_class(
    found: dict[str, Tensor], tensors: dict[str, Tensor], song: bool, classes: int, label: int | None
) -> dict[str, Tensor]:
    """Add the class to the biases, and bring SongUNet's features (sin, cos) into the order (cos, sin)."""
    chosen = torch.zeros(classes)
    if label is not None and label < classes:
        chosen[label] = 1.0
    if song:
        if classes:
            weight, bias = tensors["model.map_label.weight"], tensors["model.map_label.bias"]
            embedding = weight @ (chosen * math.sqrt(classes)) + bias
            found["embed_in.bias"] = found["embed_in.bias"] + found["embed_in.weight"] @ embedding
        found["embed_in.weight"] = torch.cat(found["embed_in.weight"].chunk(2, dim=1)[::-1], dim=1)
    elif classes:
        found["embed_out.bias"] = found["embed_out.bias"] + tensors["model.map_label.weight"] @ chosen
    return found


EDM_LAYOUTS = tuple(
    Layout(f"EDM ({kind})", ("model.map_layer0.weight", "model.map_layer1.weight"), load_edm, kind)
    for kind in ("EDMPrecond", "VPPrecond", "VEPrecond")
)
