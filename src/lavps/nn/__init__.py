"""Networks of denoisers and inference models."""

from __future__ import annotations

__all__ = [
    "MLP",
    "HDiT",
    "HDiTConfig",
    "InvFusion",
    "MLPConfig",
    "UNet",
    "UNetConfig",
    "build_network",
    "build_seeded",
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

from .adm_unet import ResidualUNet, ResidualUNetConfig
from .edm2_unet import MagnitudeUNet, MagnitudeUNetConfig
from .hdit import HDiT, HDiTConfig, hdit_ffhq256, hdit_imagenet256, hdit_tiny
from .invfusion import InvFusion
from .mlp import MLP, MLPConfig
from .unet import UNet, UNetConfig, unet_small

_KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    HDiTConfig.kind: (HDiT, HDiTConfig),
    UNetConfig.kind: (UNet, UNetConfig),
    MLPConfig.kind: (MLP, MLPConfig),
    ResidualUNetConfig.kind: (ResidualUNet, ResidualUNetConfig),
    MagnitudeUNetConfig.kind: (MagnitudeUNet, MagnitudeUNetConfig),
}


def build_network(description: Mapping[str, Any]) -> HDiT | UNet | MLP | ResidualUNet | MagnitudeUNet:
    """Return a network with new weights, built from a description by ``config.to_dict()``.

    Example:
        >>> from lavps.nn import build_network, unet_small
        >>> type(build_network(unet_small().to_dict())).__name__
        'UNet'
    """
    fields = dict(description)
    if (kind := fields.pop("kind", None)) not in _KINDS:
        raise ValueError(f"kind must be one of {tuple(_KINDS)}, got {kind!r}")
    network, config = _KINDS[kind]
    return network(config(**fields))  # type: ignore[no-any-return]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make the initial weights of modules built inside a function of the seed.

    The global random state of torch is restored at the end.
    """
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
        yield


def build_seeded(network: Mapping[str, Any], seed: int) -> nn.Module:
    """Return a new network whose initial weights are a function of the seed."""
    with seeded(seed):
        return build_network(network)
