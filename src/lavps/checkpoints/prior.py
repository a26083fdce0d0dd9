"""Loading of priors of this and other libraries."""

from __future__ import annotations

__all__ = ["accelerated_like", "is_model_folder", "load_prior", "open_foreign", "save_prior"]

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from ..priors import EDMPrior, LatentPrior, NetworkPrior, Prior, RescaledPrior
from ..priors.precision import PRECISIONS, Autocast, Precision, with_autocast
from .diffusers import is_diffusers
from .folder import ModelConfig, load_model_prior, save_model
from .foreign import LAYOUTS, load_foreign
from .hashes import weights_hash
from .hub import local_copy
from .k_diffusion import HDIT_LAYOUTS
from .layout import Loaded, LoadOptions


def load_prior(
    path: str | Path,
    device: str | torch.device = "cpu",
    label: int | None = None,
    precision: Precision = "fp32",
    compiled: bool = False,
) -> Prior:
    """Return the prior of a path, a name in the installed zoo, or a Hub id, frozen.

    ``load_prior("synthfaces64")`` looks for a folder of that name, then for a model of the installed package
    ``lavps-zoo``; ``load_prior("owner/name")`` then for a repository of the Hub.
    A model folder is built from its config.json. Folders of diffusers and checkpoint files of other libraries
    (:mod:`lavps.checkpoints`) are recognized; one line on stderr reports what was found and assumed.

    Args:
        path: Model folder, diffusers folder, checkpoint file, name in the zoo, or Hub id ("owner/name").
        device: Device of the network.
        label: Class label for a class-conditional model of another library; None for no class.
        precision: Precision of the network, "fp32", "bf16" or "fp16"; images and noise stay in float32.
        compiled: Whether the network is compiled by ``torch.compile``, at its first evaluation.

    Raises:
        FileNotFoundError: There is no such file or folder, installed model or repository of the Hub.
        ValueError: The file is damaged or refused, or matches no supported layout; the message then lists
            the closest layouts and the keys that differ.
    """
    found = local_copy(path)
    if is_model_folder(found):
        if label is not None:
            raise ValueError("label= is for models of other libraries: priors trained here have no classes")
        return _located(_accelerated(load_model_prior(found, device), precision, compiled), found)
    loaded = open_foreign(found, label, device)
    print(f"{path}: {loaded.line}", file=sys.stderr)
    return _located(_accelerated(loaded.prior, precision, compiled), found)


def _located(prior: Prior, folder: Path) -> Prior:
    """Return the prior with the path of its files, which may have a front beside them."""
    inner = prior
    while isinstance(inner, RescaledPrior | LatentPrior):
        inner = inner.prior
    if isinstance(inner, NetworkPrior | EDMPrior):
        inner.folder = folder
    return prior


def _accelerated(prior: Prior, precision: Precision, compiled: bool) -> Prior:
    """Return the prior with its network in another precision, or compiled; the hash stays that of float32."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if precision == "fp32" and not compiled:
        return prior
    if isinstance(prior, RescaledPrior | LatentPrior):
        return replace(prior, prior=_accelerated(prior.prior, precision, compiled))
    if not isinstance(prior, NetworkPrior | EDMPrior) or not isinstance(prior.network, nn.Module):
        raise TypeError(f"{type(prior).__name__} has no torch network to compile or to run in {precision}")
    fast = copy.copy(prior) if precision == "fp32" else with_autocast(prior, PRECISIONS[precision])
    fast.weights_hash = prior.weights_hash or weights_hash(prior.network)
    if compiled:
        fast.network = torch.compile(fast.network)
    return fast


def accelerated_like(prior: Prior, other: Prior) -> Prior:
    """Return a prior with its network in the precision of another one's, compiled if that one is."""
    network = getattr(other, "network", None)
    inner = getattr(network, "_orig_mod", network)  # that of a compiled network
    dtype = inner.dtype if isinstance(inner, Autocast) else torch.float32
    precision: Precision = next(name for name in get_args(Precision) if PRECISIONS[name] == dtype)
    return _accelerated(prior, precision, inner is not network)


def is_model_folder(path: Path) -> bool:
    """Return whether a path is a model folder of this library."""
    return path.is_dir() and (path / "config.json").is_file() and not is_diffusers(path)


def open_foreign(path: Path, label: int | None = None, device: str | torch.device = "cpu") -> Loaded:
    """Return the prior in another library's file or folder, with a line on what was found and assumed."""
    loaded = load_foreign(path, LoadOptions(label, device), (*LAYOUTS, *HDIT_LAYOUTS))
    prior, shape = loaded.prior, loaded.image_shape
    if isinstance(prior, LatentPrior):
        return replace(loaded, prior=replace(prior, image_shape=shape))
    inner = prior.prior if isinstance(prior, RescaledPrior) else prior
    if isinstance(inner, NetworkPrior | EDMPrior):
        inner.image_shape = shape
    return loaded


def save_prior(
    folder: str | Path, prior: Prior, image_shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> ModelConfig:
    """Write a prior as a model folder: safetensors and JSON instead of another library's pickle.

    Args:
        folder: Folder, created if missing.
        prior: Prior with a network of this library, as :func:`load_prior` returns for files of
            guided-diffusion and EDM (with the chosen class).
        image_shape: Shape (C, H, W) of its images.
        dtype: Precision of the stored weights.
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
        raise TypeError(f"a {type(prior).__name__} cannot be stored: only NetworkPrior and EDMPrior can")
    return save_model(folder, network, about, dtype)
