"""Initialization of a training with the weights of a prior.

A prior of similar images is close to the wanted prior, and a conditional denoiser that ignores its
measurement is the prior: both train in minutes instead of hours.
"""

from __future__ import annotations

__all__ = ["add_change", "closest_prior", "init_from"]

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from ..checkpoints.folder import build_described, load_model_prior, load_weights, read_config
from ..random import NoiseStreams, Purpose
from ..schedule import Schedule, as_time

_WIDER = {"in_channels", "image_channels", "joint"}  # may differ: wider input, layers of InvFusion
_LEVEL = 0.5  # noise level at which priors are compared


@torch.no_grad()
def closest_prior(
    images: Tensor, folders: Iterable[Path], schedule: Schedule, prediction: str
) -> Path | None:
    """Return the prior that denoises images with the smallest error, a candidate for :func:`init_from`.

    Args:
        images: Images of the training (N, C, H, W).
        folders: Model folders; those of other kinds, sizes, schedules or predictions are left out.
        schedule: Schedule of the training.
        prediction: Predicted quantity of the training.
    """
    errors: dict[Path, float] = {}
    t = schedule.time(as_time(_LEVEL))
    alpha, sigma = (value.to(images) for value in schedule.coefficients(t))
    noise = NoiseStreams.from_seed(len(images), 0).normal(Purpose.PROBE, images.shape[1:], images, 0)
    for folder in folders:
        about = read_config(folder)
        wanted = ("prior", tuple(images.shape[1:]), schedule, prediction)
        if (about.kind, tuple(about.image_shape), about.schedule, about.prediction) == wanted:
            estimate = load_model_prior(folder).denoise(alpha * images + sigma * noise, t)
            errors[folder] = float((estimate - images).square().mean())
    return min(errors, key=lambda folder: errors[folder], default=None)


def init_from(
    network: nn.Module, path: str | Path, schedule: Schedule, prediction: str, kind: str = "prior"
) -> str:
    """Copy the weights of a prior into a network, with zero weights for additional input channels.

    Args:
        network: U-Net or HDiT of the prior's architecture with at least as many input channels.
        path: Model folder or Hub id of the prior.
        schedule: Schedule of the training, equal to the prior's.
        prediction: Predicted quantity of the training, equal to the prior's.
        kind: Kind of the model in the folder, "few-step" for a few-step model in place of the prior.

    Returns:
        Hash of the prior's weights.

    Raises:
        ValueError: The folder holds no prior, or one of another network, schedule or prediction.
    """
    about = read_config(path)
    if about.kind != kind:
        wanted = kind if kind == "prior" else f"{kind} model"
        raise ValueError(f"{path} holds a model of kind {about.kind!r}, not a {wanted}")
    if (about.schedule, about.prediction) != (schedule, prediction):
        raise ValueError(
            f"{path} was trained to predict {about.prediction!r} on {about.schedule!r}, not {prediction!r} "
            f"on {schedule!r}: train with its --schedule and --prediction"
        )
    prior = build_described(path, about)
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


def add_change(network: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Add the difference of two networks' weights to those of a third one of the same architecture.

    A model that was trained from an old prior, plus the change from the old prior to a new one, is nearly a
    model trained from the new prior.

    Reference: Ilharco et al., Editing Models with Task Arithmetic, 2023.
    """
    before, after = dict(old.named_parameters()), dict(new.named_parameters())
    with torch.no_grad():
        for name, weights in network.named_parameters():
            weights.add_(after[name] - before[name])


def _widened(old: Tensor, new: Tensor, channels: int, wider: int) -> Tensor:
    """Pad weights (E, C p^2, k, k), or (E, p^2 C) for tokens, with zeros for the new input channels."""
    if old.shape == new.shape:
        return old
    at, split = (1, (channels, -1)) if old.ndim == 4 else (2, (-1, channels))
    parts = old.reshape(len(old), *split, *old.shape[2:])
    shape = list(parts.shape)
    shape[at] = wider - channels
    return torch.cat([parts, parts.new_zeros(shape)], at).reshape(new.shape)
