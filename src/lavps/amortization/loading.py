"""Inference models on disk: written with all they depend on, refused where it does not fit."""

from __future__ import annotations

__all__ = ["load_inference_model", "prior_hash", "save_inference_model"]

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..networks import Conditioning, LikelihoodGradient, Palette, build_network
from ..priors import GaussianMixturePrior, NetworkPrior, Prior
from .checkpoint import (
    ModelConfig,
    check_fits,
    load_weights,
    model_folder,
    read_config,
    save_model,
)
from .hashes import tensors_hash, weights_hash
from .inference import InferenceTask
from .model import InferenceModel

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
    if isinstance(prior, NetworkPrior) and isinstance(prior.network, torch.nn.Module):
        return prior.weights_hash or weights_hash(prior.network)
    return None


def _describe(part: Conditioning) -> dict[str, Any]:
    name = type(part).__name__
    if name not in _CONDITIONINGS:
        raise TypeError(f"{part!r} cannot be written to a checkpoint: only {sorted(_CONDITIONINGS)} can")
    return {"name": name, "args": asdict(part)}  # type: ignore[call-overload]


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
        },
        operator={"family": described["family"], "noise": described["noise"]},
        window={name: described[name] for name in ("sampler", "num_steps", "window", "midpoint", "rollout")},
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
    parts = [_CONDITIONINGS[part["name"]](**part["args"]) for part in about["channels"]]
    model = InferenceModel(
        build_network(config.network), parts, about["likelihood_step"], about["data_variance"]
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
