"""Saving and loading of inference models and conditional denoisers."""

from __future__ import annotations

__all__ = [
    "check_fits",
    "check_of",
    "load_conditional",
    "load_inference_model",
    "prior_hash",
    "save_conditional",
    "save_inference_model",
]

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.folder import (
    ModelConfig,
    build_described,
    load_weights,
    model_folder,
    read_config,
    save_model,
)
from ..checkpoints.hashes import tensors_hash, weights_hash
from ..priors import EDMPrior, GaussianMixturePrior, NetworkPrior, Prior
from ..schedule import Schedule
from .conditional import ConditionalDenoiser, ConditionalTask
from .conditioning import Conditioning, LikelihoodGradient, Palette
from .inference import InferenceTask
from .model import InferenceModel

_WINDOW = ("sampler", "num_steps", "step_counts", "window", "midpoint", "rollout")
_CONDITIONINGS: dict[str, type[Palette | LikelihoodGradient]] = {
    c.__name__: c for c in (Palette, LikelihoodGradient)
}


def prior_hash(prior: Prior) -> str | None:
    """Return a hash of a prior's weights, or of a mixture's parameters; None for other priors."""
    if isinstance(prior, GaussianMixturePrior):
        return tensors_hash({name: getattr(prior, name) for name in ("weights", "means", "covariances")})
    if isinstance(prior, (NetworkPrior, EDMPrior)) and isinstance(prior.network, torch.nn.Module):
        return prior.weights_hash or weights_hash(prior.network)
    return None


def _describe(part: Conditioning) -> dict[str, Any]:
    name = type(part).__name__
    if name not in _CONDITIONINGS:
        raise TypeError(f"{part!r} cannot be stored: only {sorted(_CONDITIONINGS)} can")
    return {"name": name, "args": asdict(part)}  # type: ignore[call-overload]


def _built(parts: Sequence[Mapping[str, Any]]) -> list[Conditioning]:
    """Return the conditionings that :func:`_describe` described."""
    if unknown := sorted({part["name"] for part in parts} - _CONDITIONINGS.keys()):
        raise ValueError(f"unknown conditioning {', '.join(unknown)}: known are {', '.join(_CONDITIONINGS)}")
    return [_CONDITIONINGS[part["name"]](**part["args"]) for part in parts]


def _measurement(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurements of a task's description, with the name of the task if it has one."""
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
        folder: Folder, created if missing.
        task: Training task with the model, its contexts and its prior.
        network: Description of the model's network for :func:`~lavps.nn.build_network`.
        image_shape: Shape (C, *spatial) of the images.
        training: Settings and metrics of the training, for the reader.
        dtype: Precision of the stored weights.
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
    """Return the inference model in a model folder or at a Hub id, frozen and in float32.

    Args:
        path: Model folder or Hub id.
        prior: Prior that the model must have been trained with; otherwise :class:`~lavps.LAVPS` checks it.
        device: Device of the model.
    """
    folder = model_folder(path)
    config = read_config(folder)
    if config.kind != "inference" or config.conditioning is None:
        raise ValueError(f"{path} holds a model of kind {config.kind!r}, not an inference model")
    about = config.conditioning
    model = InferenceModel(
        build_described(folder, config),
        _built(about["channels"]),
        about["likelihood_step"],
        about["data_variance"],
        about.get("solver_steps", 0),
    )
    load_weights(folder, model, config)
    model.eval().requires_grad_(False).to(device)
    model.check_prior = check_of(config)
    if prior is not None:
        model.check_prior(prior)
    return model


def check_of(config: ModelConfig) -> Callable[[Prior], None]:
    """Return a function that raises ValueError for priors other than that of a model's training."""

    def check(candidate: Prior) -> None:
        found = prior_hash(candidate)
        # A prior without a hash (rescheduled, for example) is checked by its schedule only.
        found = config.prior_hash or "" if found is None else found
        check_fits(config, found, candidate.schedule, getattr(candidate, "name", None))

    return check


def save_conditional(
    folder: str | Path,
    task: ConditionalTask,
    network: Mapping[str, Any],
    training: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> ModelConfig:
    """Write a trained conditional denoiser; the arguments are those of :func:`save_inference_model`."""
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
        training=task.denoising.describe_times() | {"seed": task.denoising.seed} | dict(training or {}),
    )
    return save_model(folder, model, config, dtype)


def load_conditional(path: str | Path, device: str | torch.device = "cpu") -> ConditionalDenoiser:
    """Return the conditional denoiser in a model folder or at a Hub id, frozen and in float32.

    Sample with :class:`~lavps.Supervised`. Results are valid only for the measurements of the training,
    ``read_config(path).operator``.
    """
    folder = model_folder(path)
    config = read_config(folder)
    if config.kind != "conditional" or config.conditioning is None or config.prediction is None:
        raise ValueError(f"{path} holds a model of kind {config.kind!r}, not a conditional denoiser")
    parts = _built(config.conditioning["channels"])
    network = build_described(folder, config)
    needed = ConditionalDenoiser.in_channels(config.image_shape[0], parts)
    if network.config.in_channels != needed:
        raise ValueError(
            f"{folder}: the network takes {network.config.in_channels} channels, "
            f"images and conditioning have {needed}"
        )
    model = ConditionalDenoiser(
        network, parts, config.schedule, config.prediction, config.conditioning["data_variance"]
    )
    load_weights(folder, model, config)
    return model.eval().requires_grad_(False).to(device)


def check_fits(
    config: ModelConfig, prior_hash: str, schedule: Schedule, prior_name: str | None = None
) -> None:
    """Raise ValueError unless a model fits its prior, of this hash, schedule and name."""
    if config.kind not in ("inference", "few-step"):
        raise ValueError(f"a model of kind {config.kind!r} is not an inference model or few-step model")
    if config.prior_hash != prior_hash:
        own, other = (
            f"{name} ({str(value)[:12]})" if name else str(value)
            for name, value in ((config.training.get("prior"), config.prior_hash), (prior_name, prior_hash))
        )
        raise ValueError(f"this model was trained with prior {own}, not with {other}")
    if config.schedule != schedule:
        raise ValueError(f"this model was trained under {config.schedule!r}, not under {schedule!r}")
