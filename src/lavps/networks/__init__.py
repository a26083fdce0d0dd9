"""Networks for denoisers and inference models, and how they learn of a measurement."""

from __future__ import annotations

__all__ = [
    "MLP",
    "Conditioning",
    "HDiT",
    "HDiTConfig",
    "InvFusion",
    "LikelihoodGradient",
    "MLPConfig",
    "Palette",
    "UNet",
    "UNetConfig",
    "build_network",
    "build_seeded",
    "conditioning_channels",
    "hdit_ffhq256",
    "hdit_imagenet256",
    "hdit_tiny",
    "seeded",
    "unet_small",
]

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..priors.magnitude_unet import MagnitudeUNet, MagnitudeUNetConfig
from ..priors.residual_unet import ResidualUNet, ResidualUNetConfig
from .conditioning import Conditioning, InvFusion, LikelihoodGradient, Palette, conditioning_channels
from .hdit import HDiT, HDiTConfig, hdit_ffhq256, hdit_imagenet256, hdit_tiny
from .mlp import MLP, MLPConfig
from .unet import UNet, UNetConfig, unet_small


def build_network(description: Mapping[str, Any]) -> HDiT | UNet | MLP | ResidualUNet | MagnitudeUNet:
    """The network, its weights drawn anew, that ``config.to_dict()`` described."""
    fields = dict(description)
    kind = fields.pop("kind", None)
    if kind == HDiTConfig.kind:
        return HDiT(HDiTConfig(**fields))
    if kind == UNetConfig.kind:
        return UNet(UNetConfig(**fields))
    if kind == MLPConfig.kind:
        return MLP(MLPConfig(**fields))
    if kind == ResidualUNetConfig.kind:
        return ResidualUNet(ResidualUNetConfig(**fields))
    if kind == MagnitudeUNetConfig.kind:
        return MagnitudeUNet(MagnitudeUNetConfig(**fields))
    configs = (HDiTConfig, UNetConfig, MLPConfig, ResidualUNetConfig, MagnitudeUNetConfig)
    kinds = tuple(config.kind for config in configs)
    raise ValueError(f"kind must be one of {kinds}, got {kind!r}")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Modules built inside have first weights that are a function of the seed.

    torch's own generator, from which torch draws them, comes back as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
        yield


def build_seeded(network: Mapping[str, Any], seed: int) -> nn.Module:
    """A new network whose first weights are a function of the seed."""
    with seeded(seed):
        return build_network(network)
