"""The one way to a prior: ours, or anybody's."""

from __future__ import annotations

__all__ = ["is_model_folder", "load_prior", "open_foreign", "save_prior"]

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..networks.crowson import HDIT_LAYOUTS
from ..priors import EDMPrior, LatentPrior, NetworkPrior, Prior, Ranged
from ..priors.foreign import LAYOUTS, Loaded, Options, load_foreign, local_copy
from ..priors.foreign.diffusers import is_diffusers
from .checkpoint import ModelConfig, load_model_prior, save_model


def load_prior(path: str | Path, device: str | torch.device = "cpu", label: int | None = None) -> Prior:
    """The prior at a path or Hub id, frozen, in float32, with no word about its architecture.

    A model folder of this library is built as its config.json says. A folder of diffusers, and checkpoint
    files of other libraries (:mod:`lavps.priors.foreign`), are recognised; one line on stderr then says what
    was found and what had to be assumed.

    Args:
        path: model folder, folder of diffusers, checkpoint file, or Hub id ("owner/name").
        device: where to put it.
        label: the class, for a class-conditional model of another library; None for no class.

    Raises:
        ValueError: the file is damaged, is refused, or has no known layout; the message then says which
            layouts are nearest and which keys differ.
    """
    found = local_copy(path)
    if is_model_folder(found):
        if label is not None:
            raise ValueError("label= is for models of other libraries: priors trained here have no classes")
        return load_model_prior(found, device)
    loaded = open_foreign(found, label, device)
    print(f"{path}: {loaded.line}", file=sys.stderr)
    return loaded.prior


def is_model_folder(path: Path) -> bool:
    """Whether a path is a model folder of this library, not a checkpoint of another."""
    return path.is_dir() and (path / "config.json").is_file() and not is_diffusers(path)


def open_foreign(path: Path, label: int | None = None, device: str | torch.device = "cpu") -> Loaded:
    """The prior in another library's file or folder, and in a line what was found and what was assumed."""
    loaded = load_foreign(path, Options(label, device), (*LAYOUTS, *HDIT_LAYOUTS))
    return replace(loaded, prior=_sized(loaded.prior, loaded.image_shape))


def _sized(prior: Prior, shape: tuple[int, ...] | None) -> Prior:
    """The prior, which now says for which images it was made."""
    if isinstance(prior, LatentPrior):
        return replace(prior, image_shape=shape)
    inner = prior.prior if isinstance(prior, Ranged) else prior
    if isinstance(inner, NetworkPrior | EDMPrior):
        inner.image_shape = shape
    return prior


def save_prior(
    folder: str | Path, prior: Prior, image_shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> ModelConfig:
    """Write a prior as a model folder: safetensors and JSON in place of another library's pickle.

    Args:
        folder: made if missing.
        prior: a network of this library's architectures, as :func:`load_prior` gives for files of
            guided-diffusion and EDM (a chosen class included).
        image_shape: (C, H, W) of its images.
        dtype: of the stored weights.
    """
    network = getattr(prior, "network", None)
    config: Any = getattr(network, "config", None)
    if not isinstance(network, nn.Module) or not hasattr(config, "to_dict"):
        raise TypeError(f"{prior!r} has no network of an architecture that config.json can describe")
    described = config.to_dict()
    if isinstance(prior, EDMPrior):
        about = ModelConfig("prior", described, prior.schedule, image_shape, sigma_data=prior.sigma_data)
    elif isinstance(prior, NetworkPrior):
        about = ModelConfig(
            "prior", described, prior.schedule, image_shape, prior.prediction, prior.time_input
        )
    else:
        raise TypeError(f"a {type(prior).__name__} cannot be written: only NetworkPrior and EDMPrior can")
    return save_model(folder, network, about, dtype)
