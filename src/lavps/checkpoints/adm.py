"""Checkpoints of guided-diffusion (ADM), its predecessor improved-diffusion, and models trained with them.

A file holds only tensors; their names and shapes determine most of the architecture. Three properties leave
no trace and are those of the published models: 64 channels per head (4 heads where 64 does not divide the
width, in the 128 x 128 model, and in networks that resample by convolutions), rows of queries, keys and
values ordered by head first, and DDPM's linear chain. The 64 x 64 ImageNet model, recognized by its shape,
differs in the last two. To override them: ``load_adm(path, assumed=Assumed(head_channels=32, ...))``.
"""

from __future__ import annotations

__all__ = ["ADM", "Assumed", "load_adm"]

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from ..nn.adm_unet import ResidualUNet, ResidualUNetConfig
from ..priors.adapters import NetworkPrior, Prediction
from ..schedule import DiscreteVP, VPLinear
from .labels import chosen_label
from .layout import Layout, Loaded, LoadOptions
from .reading import Checkpoint, read_checkpoint
from .renaming import Renamer, canonical_qkv
from .schedules import cosine_chain
from .sizes import require_checkpoint

_BLOCK = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "embed": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "skip": "skip_connection",
}
# From guided-diffusion: multipliers of the channels per level, and the image size.
_SIZES: dict[tuple[float, ...], int] = {
    (1, 2, 3, 4): 64,
    (1, 1, 2, 3, 4): 128,
    (1, 1, 2, 2, 4, 4): 256,
    (0.5, 1, 1, 2, 2, 4, 4): 512,
}
_ATTENTION = {"norm": "norm", "qkv": "qkv", "out": "proj_out"}


@dataclass(frozen=True)
class Assumed:
    """Properties that the tensors of a file do not determine.

    Attributes:
        heads: Number of attention heads; None for heads of ``head_channels``.
        head_channels: Channels per attention head.
        new_order: Rows of queries, keys, values ordered (q k v, head, channel), not (head, q k v, channel).
        schedule: Discrete chain of the training.
        prediction: Quantity that the network predicts.
    """

    heads: int | None = None
    head_channels: int = 64
    new_order: bool = False
    schedule: DiscreteVP = field(default_factory=VPLinear)
    prediction: Prediction = "eps"

    @classmethod
    def for_network(cls, config: ResidualUNetConfig) -> Assumed:
        """Return the properties of the published model of this shape, or of most models."""
        mult = tuple(channels / config.features for channels in config.channels)
        if (config.features, mult, set(config.blocks)) == (192, (1, 2, 3, 4), {3}):
            return cls(new_order=True, schedule=cosine_chain())
        attending = [c for c, attends in zip(config.channels, config.attention, strict=True) if attends]
        divides = all(channels % 64 == 0 for channels in [*attending, config.channels[-1]])
        four = (config.features, mult) == (256, (1, 1, 2, 3, 4)) or config.resampling == "conv"
        return cls(heads=4) if four or not divides else cls()

    def __str__(self) -> str:
        heads = f"{self.head_channels} channels per head" if self.heads is None else f"{self.heads} heads"
        order = "(qkv, head)" if self.new_order else "(head, qkv)"
        chain = "linear" if isinstance(self.schedule, VPLinear) else "non-linear"
        steps = self.schedule.num_train_steps
        return f"{heads}, rows by {order}, {chain} chain of {steps} steps, predicts {self.prediction}"


def load_adm(
    source: Checkpoint | str | Path, options: LoadOptions | None = None, assumed: Assumed | None = None
) -> Loaded:
    """Return the prior in a guided-diffusion file.

    Args:
        source: Checkpoint or path of the file.
        options: Class label and device.
        assumed: Properties that the file does not determine; default those of the published models.
    """
    checkpoint = source if isinstance(source, Checkpoint) else read_checkpoint(source)
    options = LoadOptions() if options is None else options
    config = _shape_of(checkpoint)
    assumed = Assumed.for_network(config) if assumed is None else assumed
    config = replace(config, heads=assumed.heads, head_channels=assumed.head_channels)
    classes = checkpoint.tensors.get("label_emb.weight")
    label, about = chosen_label(
        options.label, 0 if classes is None else len(classes), None, f"{checkpoint.path} (guided-diffusion)"
    )
    require_checkpoint(config.to_dict(), checkpoint.tensors, checkpoint.path)
    network = ResidualUNet(config)
    tensors = _renamed(checkpoint, network, assumed)
    if classes is not None:
        tensors["embed_out.bias"] = tensors["embed_out.bias"] + classes[label]
    network.load_state_dict(tensors)
    network.requires_grad_(False).to(options.device)
    widths = ", ".join(map(str, config.channels))
    variance = ", learned variance cut off" if config.out_channels > config.in_channels else ""
    line = (
        f"guided-diffusion U-Net, {config.in_channels}-channel images, levels of {widths} channels with "
        f"{', '.join(map(str, config.blocks))} blocks, attention at levels "
        f"{[level for level, attends in enumerate(config.attention) if attends]}, {about}{variance}; "
        f"assumed: {assumed}"
    )
    shape = _image_shape(config)
    line += "" if shape is None else f", images of {shape[1]} x {shape[2]}"
    prior = NetworkPrior(network, assumed.schedule, assumed.prediction, "index")
    return Loaded(prior, line, shape)


def _image_shape(config: ResidualUNetConfig) -> tuple[int, ...] | None:
    """Return the image shape of the published networks with these levels, if any."""
    size = _SIZES.get(tuple(channels / config.features for channels in config.channels))
    return None if size is None else (config.in_channels, size, size)


def _shape_of(checkpoint: Checkpoint) -> ResidualUNetConfig:
    tensors = checkpoint.tensors
    embedding, features = tensors["time_embed.0.weight"].shape
    stem, in_channels = tensors["input_blocks.0.0.weight"].shape[:2]
    out_channels = len(tensors["out.2.bias"])
    if out_channels not in (in_channels, 2 * in_channels) or (in_channels, out_channels) == (6, 6):
        raise ValueError(
            f"{checkpoint.path} maps {in_channels} channels to {out_channels}: a network with a second input "
            "image (super-resolution, Palette) is no prior"
        )
    levels = _decoder_levels(tensors)
    widths = [len(tensors[f"output_blocks.{level[-1]}.0.out_layers.3.bias"]) for level in levels]
    blocks = {int(name.split(".")[1]) for name in tensors if name.startswith("input_blocks.")}
    if len(blocks) != 1 + max(blocks):
        raise ValueError(
            f"{checkpoint.path} resamples without weights: build the network and use lavps.NetworkPrior"
        )
    convolves = any(re.fullmatch(r"output_blocks\.\d+\.\d\.conv\.weight", name) for name in tensors)
    return ResidualUNetConfig(
        in_channels,
        out_channels,
        stem,
        tuple(reversed(widths)),
        tuple(len(level) - 1 for level in reversed(levels)),
        tuple(f"output_blocks.{level[0]}.1.qkv.weight" in tensors for level in reversed(levels)),
        features,
        embedding,
        scale_shift=len(tensors["middle_block.0.emb_layers.1.bias"]) == 2 * widths[0],
        resampling="conv" if convolves else "block",
    )


def _count(tensors: Mapping[str, Tensor], name: str) -> int:
    return 1 + max(int(key.split(".")[1]) for key in tensors if key.startswith(f"{name}."))


def _upsampling(tensors: Mapping[str, Tensor], i: int) -> str | None:
    """Return the name of the upsampling layer in output block i, if any."""
    for name in (f"output_blocks.{i}.1", f"output_blocks.{i}.2"):
        if {f"{name}.conv.weight", f"{name}.in_layers.0.weight"} & tensors.keys():
            return name
    return None


def _decoder_levels(tensors: Mapping[str, Tensor]) -> list[list[int]]:
    """Return the output blocks of each level, coarsest first."""
    levels: list[list[int]] = [[]]
    for i in range(_count(tensors, "output_blocks")):
        levels[-1].append(i)
        if _upsampling(tensors, i) is not None:
            levels.append([])
    return levels


def _renamed(checkpoint: Checkpoint, network: ResidualUNet, assumed: Assumed) -> dict[str, Tensor]:
    """Return the tensors under the names, and in the order, of :class:`ResidualUNet`."""
    tensors, config = checkpoint.tensors, network.config
    names = Renamer(checkpoint, {"frequencies": network.frequencies})
    layers = {"embed_in": "time_embed.0", "embed_out": "time_embed.2", "stem": "input_blocks.0.0"}
    for ours, theirs in (layers | {"norm": "out.0", "out": "out.2"}).items():
        names.take(ours, theirs)
    names.ignore(["label_emb.weight"])

    def block(ours: str, theirs: str, attention: str) -> None:
        for convolution in ("op", "conv"):
            if f"{theirs}.{convolution}.weight" in tensors:
                names.take(f"{ours}.conv", f"{theirs}.{convolution}")
                return
        for mine, other in _BLOCK.items():
            names.take(f"{ours}.{mine}", f"{theirs}.{other}", optional=mine == "skip")
        if f"{attention}.qkv.weight" in tensors:
            for mine, other in _ATTENTION.items():
                names.take(f"{ours}.attention.{mine}", f"{attention}.{other}")
            heads = config.heads_of(len(tensors[f"{attention}.norm.bias"]))
            order = "kind head channel" if assumed.new_order else "head kind channel"
            canonical_qkv(names.found, f"{ours}.attention.", heads, order)

    for i in range(len(network.encoder)):
        block(f"encoder.{i}", f"input_blocks.{i + 1}.0", f"input_blocks.{i + 1}.1")
    block("middle.0", "middle_block.0", "middle_block.1")
    block("middle.1", "middle_block.2", "")
    position = 0
    for i in range(_count(tensors, "output_blocks")):
        block(f"decoder.{position}", f"output_blocks.{i}.0", f"output_blocks.{i}.1")
        position += 1
        if (up := _upsampling(tensors, i)) is not None:
            block(f"decoder.{position}", up, "")
            position += 1
    return names.finished(network)


ADM = Layout(
    "guided-diffusion",
    (
        "time_embed.0.weight",
        "time_embed.2.weight",
        "input_blocks.0.0.weight",
        "input_blocks.1.0.in_layers.0.weight",
        "middle_block.0.in_layers.0.weight",
        "middle_block.1.qkv.weight",
        "middle_block.2.out_layers.3.weight",
        "output_blocks.0.0.in_layers.0.weight",
        "out.0.weight",
        "out.2.weight",
        "out.2.bias",
    ),
    load_adm,
)
