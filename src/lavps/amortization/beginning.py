"""Training that begins with a trained denoiser instead of random weights.

A prior for one's own images is near a prior of similar ones; a conditional denoiser, told nothing yet, *is*
the prior. Both reach in minutes what they would otherwise take hours for.
"""

from __future__ import annotations

__all__ = ["begin_with"]

from pathlib import Path

import torch
from torch import Tensor, nn

from ..networks import build_network
from ..schedule import Schedule
from .checkpoint import load_weights, read_config

_WIDER = {"in_channels", "image_channels", "joint"}  # may differ: a wider input, and InvFusion's layers


def begin_with(network: nn.Module, path: str | Path, schedule: Schedule, prediction: str) -> str:
    """Give a network the weights of a prior; inputs beyond the prior's count for nothing yet.

    Args:
        network: a U-Net or an HDiT as the prior's, with as many input channels or more.
        path: model folder or Hub id of the prior.
        schedule: of the training that begins; it must be the prior's.
        prediction: likewise.

    Returns:
        The hash of the prior's weights.

    Raises:
        ValueError: the folder holds no prior, or one of another network, schedule or prediction.
    """
    about = read_config(path)
    if about.kind != "prior":
        raise ValueError(f"{path} holds a model of kind {about.kind!r}: begin with a prior")
    if (about.schedule, about.prediction) != (schedule, prediction):
        raise ValueError(
            f"{path} was trained to predict {about.prediction!r} on {about.schedule!r}, not {prediction!r} "
            f"on {schedule!r}: train with its --schedule and --prediction"
        )
    prior = build_network(about.network)
    load_weights(path, prior, about)
    has, gets = (module.config.to_dict() for module in (prior, network))  # type: ignore[union-attr,operator]
    differing = {name for name in has.keys() | gets.keys() if has.get(name) != gets.get(name)}
    fewer = {"in_channels"} if gets.get("in_channels", 0) < has.get("in_channels", 0) else set()
    if other := sorted(differing - _WIDER | fewer):
        values = ", ".join(f"{name} {has.get(name)}, here {gets.get(name)}" for name in other)
        raise ValueError(f"{path} has another network ({values}): give its description as --network")
    weights = network.state_dict()
    for name, value in prior.state_dict().items():
        weights[name] = _widened(value, weights[name], has["in_channels"], gets["in_channels"])
    network.load_state_dict(weights)
    return about.weights_hash


def _widened(old: Tensor, new: Tensor, channels: int, wider: int) -> Tensor:
    """Weights for more input channels, zero for the new ones: (E, C p^2, k, k), or (E, p^2 C) of tokens."""
    if old.shape == new.shape:
        return old
    at, split = (1, (channels, -1)) if old.ndim == 4 else (2, (-1, channels))
    parts = old.reshape(len(old), *split, *old.shape[2:])
    shape = list(parts.shape)
    shape[at] = wider - channels
    return torch.cat([parts, parts.new_zeros(shape)], at).reshape(new.shape)
