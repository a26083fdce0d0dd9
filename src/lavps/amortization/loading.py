"""Trained models on disk: written with all they depend on, refused where it does not fit."""

from __future__ import annotations

__all__ = [
    "load_conditional",
    "load_inference_model",
    "prior_hash",
    "save_conditional",
    "save_inference_model",
]

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..networks import Conditioning, LikelihoodGradient, Palette, build_network
from ..priors import EDMPrior, GaussianMixturePrior, NetworkPrior, Prior
from .checkpoint import (
    ModelConfig,
    check_fits,
    load_weights,
    model_folder,
    read_config,
    save_model,
)
from .conditional import ConditionalDenoiser, ConditionalTask
from .hashes import tensors_hash, weights_hash
from .inference import InferenceTask
from .model import InferenceModel

_WINDOW = ("sampler", "num_steps", "step_counts", "window", "midpoint", "rollout")
_CONDITIONINGS: dict[str, type[Palette] | type[LikelihoodGradient]] = {
    "Palette": Palette,
    "LikelihoodGradient": LikelihoodGradient,
}


def prior_hash(prior: Prior) -> str | None:
    """What tells a prior from another: a hash of its weights, or of a mixture's numbers; None if unknown."""
    if isinstance(prior, GaussianMixturePrior):
        return tensors_hash(
            {"weights": prior.weights, "means": prior.means, "covariances": prior.covariances}
        )
    if isinstance(prior, (NetworkPrior, EDMPrior)) and isinstance(prior.network, torch.nn.Module):
        return prior.weights_hash or weights_hash(prior.network)
    return None


def _describe(part: Conditioning) -> dict[str, Any]:
    name = type(part).__name__
    if name not in _CONDITIONINGS:
        raise TypeError(f"{part!r} cannot be written to a checkpoint: only {sorted(_CONDITIONINGS)} can")
    return {"name": name, "args": asdict(part)}  # type: ignore[call-overload]


def _built(parts: Sequence[Mapping[str, Any]]) -> list[Conditioning]:
    """The inverse of :func:`_describe`, for several."""
    if unknown := sorted({part["name"] for part in parts} - _CONDITIONINGS.keys()):
        raise ValueError(f"unknown conditioning {', '.join(unknown)}: known are {', '.join(_CONDITIONINGS)}")
    return [_CONDITIONINGS[part["name"]](**part["args"]) for part in parts]


def _measurement(described: Mapping[str, Any]) -> dict[str, Any]:
    """What a task says of the measurements it was trained on, its name included if it has one."""
    return {name: described[name] for name in ("task", "family", "noise") if name in described}


def save_inference_model(
    folder: str | Path,
    task: InferenceTask,
    network: Mapping[str, Any],
    image_shape: tuple[int, ...],
    training: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> ModelConfig:
    """Write a trained inference model as a model folder.

    Args:
        folder: made if missing.
        task: what was trained: the model, its contexts, its prior.
        network: what :func:`~lavps.networks.build_network` built the model's network from.
        image_shape: (C, *spatial) of the images.
        training: settings and numbers for the reader.
        dtype: of the stored weights.
    """
    model, source = task.network, task.source
    assert isinstance(model, InferenceModel)
    described = task.describe()
    config = ModelConfig(
        "inference",
        dict(network),
        source.prior.schedule,
        image_shape,
        conditioning={
            "channels": [_describe(part) for part in model.conditioning],
            "likelihood_step": model.gate is not None,
            "data_variance": model.data_variance,
            "solver_steps": model.solver_steps,
        },
        operator=_measurement(described),
        window={name: described[name] for name in _WINDOW},
        prior_hash=prior_hash(source.prior),
        training=dict(training or {}),
    )
    return save_model(folder, model, config, dtype)


def load_inference_model(
    path: str | Path, prior: Prior | None = None, device: str | torch.device = "cpu"
) -> InferenceModel:
    """The inference model in a model folder or at a Hub id, frozen, in float32.

    Args:
        path: folder, or Hub id.
        prior: where given, a model that was not trained for it is refused at once; otherwise
            :class:`~lavps.LAVPS` refuses it when the two meet.
        device: where to put it.
    """
    folder = model_folder(path)
    config = read_config(folder)
    if config.kind != "inference" or config.conditioning is None:
        raise ValueError(f"{path} holds a model of kind {config.kind!r}, not an inference model")
    about = config.conditioning
    model = InferenceModel(
        build_network(config.network),
        _built(about["channels"]),
        about["likelihood_step"],
        about["data_variance"],
        about.get("solver_steps", 0),
    )
    load_weights(folder, model, config)
    model.eval().requires_grad_(False).to(device)

    def check(candidate: Prior) -> None:
        found = prior_hash(candidate)
        # A prior that cannot be hashed (re-scheduled, say) is taken at its word, all but its schedule.
        check_fits(config, config.prior_hash or "" if found is None else found, candidate.schedule)

    model.check_prior = check
    if prior is not None:
        check(prior)
    return model


def save_conditional(
    folder: str | Path,
    task: ConditionalTask,
    network: Mapping[str, Any],
    training: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> ModelConfig:
    """Write a trained conditional denoiser as a model folder.

    Args:
        folder: made if missing.
        task: what was trained.
        network: what :func:`~lavps.networks.build_network` built the model's network from.
        training: settings and numbers for the reader.
        dtype: of the stored weights.
    """
    model = task.network
    config = ModelConfig(
        "conditional",
        dict(network),
        model.schedule,
        task.denoising.image_shape,
        model.prediction,
        "time",
        conditioning={
            "channels": [_describe(part) for part in model.conditioning],
            "data_variance": model.data_variance,
        },
        operator=_measurement(task.describe()),
        training={"times": task.denoising.times, "seed": task.denoising.seed} | dict(training or {}),
    )
    return save_model(folder, model, config, dtype)


def load_conditional(path: str | Path, device: str | torch.device = "cpu") -> ConditionalDenoiser:
    """The conditional denoiser in a model folder or at a Hub id, frozen, in float32.

    Sample with :class:`~lavps.Supervised`. Its training is part of the answer: ``read_config(path).operator``
    says which measurements it knows.
    """
    folder = model_folder(path)
    config = read_config(folder)
    if config.kind != "conditional" or config.conditioning is None or config.prediction is None:
        raise ValueError(f"{path} holds a model of kind {config.kind!r}, not a conditional denoiser")
    parts = _built(config.conditioning["channels"])
    network = build_network(config.network)
    if network.config.in_channels != (
        needed := ConditionalDenoiser.in_channels(config.image_shape[0], parts)
    ):
        raise ValueError(
            f"{folder}: the network takes {network.config.in_channels} channels, "
            f"images and conditioning are {needed}"
        )
    model = ConditionalDenoiser(
        network, parts, config.schedule, config.prediction, config.conditioning["data_variance"]
    )
    load_weights(folder, model, config)
    return model.eval().requires_grad_(False).to(device)
