"""Saving and loading of few-step models, and the few-step model that belongs to a prior."""

from __future__ import annotations

__all__ = [
    "few_step_folder",
    "few_step_of",
    "load_few_step",
    "load_model",
    "save_few_step",
]

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ..checkpoints.folder import ModelConfig, load_model_prior, read_config, save_model
from ..checkpoints.prior import accelerated_like
from ..priors import Prior
from ..priors.protocol import folder_of
from ..samplers import FewStepModel, Settings, TunedPIR
from ..training.few_step import FewStepTask
from .loading import check_of, load_inference_model
from .model import InferenceModel

_FEW_STEP: WeakKeyDictionary[Prior, FewStepModel] = WeakKeyDictionary()  # by the prior that they belong to


def save_few_step(
    folder: str | Path,
    task: FewStepTask,
    prior: ModelConfig,
    limits: Sequence[float],
    training: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> ModelConfig:
    """Write a trained few-step model as a model folder.

    Args:
        folder: Folder, created if missing.
        task: Training task with the network.
        prior: Configuration of the prior.
        limits: Largest accepted powers of the residual (:meth:`FewStepTask.limits`).
        training: Settings and metrics of the training, for the reader.
        dtype: Precision of the stored weights.
    """
    described = task.describe()
    config = ModelConfig(
        "few-step",
        prior.network,
        prior.schedule,
        prior.image_shape,
        prior.prediction,
        prior.time_input,
        prior.sigma_data,
        operator={name: described[name] for name in ("tasks", "noise") if name in described},
        window={
            "evaluations": described["evaluations"],
            "power_limits": list(limits),
            "schedule": Settings(task.sampler).to_dict(),
        },
        prior_hash=prior.weights_hash,
        training=dict(training or {}),
    )
    return save_model(folder, task.network, config, dtype)


def load_few_step(
    path: str | Path, prior: Prior | None = None, device: str | torch.device = "cpu"
) -> FewStepModel:
    """Return the few-step model in a model folder or at a Hub id.

    The arguments are those of :func:`~lavps.load_inference_model`. With a prior, the model runs in its
    precision, compiled if the prior is.
    """
    denoiser: Prior
    denoiser, config = load_model_prior(path, device, "few-step"), read_config(path)
    window, check = config.window or {}, check_of(config)
    sampler = Settings.from_dict(window["schedule"]).template
    if not isinstance(sampler, TunedPIR):
        raise ValueError(f"{path}: the schedule of a few-step model is one of TunedPIR, not of {sampler}")
    if prior is not None:
        check(prior)
        denoiser = accelerated_like(denoiser, prior)
    if "power_limits" not in window:
        raise ValueError(f"{path} is a few-step model of an earlier version: train it again")
    return FewStepModel(denoiser, tuple(map(float, window["power_limits"])), sampler, check)


def few_step_folder(prior: str | Path | None) -> Path | None:
    """Return the few-step model that belongs to a prior; None if there is none.

    The model is in ``NAME-Ksteps`` beside the prior's folder ``NAME``, and was trained with this prior.

    Args:
        prior: Model folder of the prior; None and other files have no such model.
    """
    if prior is None or not (Path(prior) / "config.json").is_file():
        return None
    folder = Path(prior).absolute()
    own = read_config(folder)
    for file in sorted(folder.parent.glob(f"{glob.escape(folder.name)}-*steps/config.json")):
        found = read_config(file.parent)
        if found.kind == "few-step" and found.prior_hash == own.weights_hash:
            return file.parent
    return None


def few_step_of(prior: Prior) -> FewStepModel:
    """Return the few-step model that belongs to a prior loaded from a folder, itself loaded once."""
    folder = few_step_folder(folder_of(prior))
    if folder is None:
        raise ValueError("these settings need a few-step model of the prior: give --inference-model")
    if prior not in _FEW_STEP:
        network = getattr(prior, "network", None)
        device = next(network.parameters()).device if isinstance(network, torch.nn.Module) else "cpu"
        _FEW_STEP[prior] = load_few_step(folder, prior, device)
    return _FEW_STEP[prior]


def load_model(
    path: str | Path, prior: Prior | None = None, device: str | torch.device = "cpu"
) -> InferenceModel | FewStepModel:
    """Return the inference model or few-step model in a model folder or at a Hub id."""
    load = load_few_step if read_config(path).kind == "few-step" else load_inference_model
    return load(path, prior, device)
