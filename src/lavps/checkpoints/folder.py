"""Model folders: weights, configuration and model card.

A model folder holds ``model.safetensors`` (the weights), ``config.json`` (:class:`ModelConfig`) and
``README.md`` (a model card). The state of a run is a folder per checkpoint, written under another name and
renamed: if the process is killed at any moment, the last complete state remains. Only safetensors and JSON
are read, neither of which can execute code.
"""

from __future__ import annotations

__all__ = [
    "ModelConfig",
    "build_described",
    "load_model_prior",
    "load_weights",
    "model_name",
    "read_config",
    "save_model",
]

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from ..io.atomic import atomically, write_json
from ..nn import build_network
from ..priors import EDMPrior, NetworkPrior
from ..priors.adapters import Prediction, TimeInput
from ..schedule import VE, Cosine, DiscreteVP, Flow, Schedule, VPLinear
from .hashes import file_hash, tensors_hash
from .hub import download
from .sizes import read_text, require_network, weights_in
from .zoo import zoo_model

Kind = Literal["prior", "inference", "conditional", "few-step"]
_WEIGHTS, _CONFIG, _CARD, _FORMAT = "model.safetensors", "config.json", "README.md", 1
_LARGEST_SIDE = 1 << 16
_SCHEDULES: dict[str, type[Any]] = {c.__name__: c for c in (VPLinear, Cosine, Flow, VE, DiscreteVP)}


def schedule_to_dict(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as ``{"name": ..., "args": {...}}`` with exact numbers."""
    name = type(schedule).__name__
    if _SCHEDULES.get(name) is not type(schedule):
        raise TypeError(f"{schedule!r} cannot be stored: only {', '.join(_SCHEDULES)} can")
    arguments = {f.name: getattr(schedule, f.name) for f in fields(_SCHEDULES[name]) if f.init}
    return {"name": name, "args": arguments}


def schedule_from_dict(description: Mapping[str, Any]) -> Schedule:
    """Return the schedule that :func:`schedule_to_dict` described."""
    name = description.get("name")
    if name not in _SCHEDULES:
        raise ValueError(f"unknown schedule {name!r}: known are {', '.join(_SCHEDULES)}")
    schedule: Schedule = _SCHEDULES[name](**description.get("args", {}))
    return schedule


@dataclass(frozen=True)
class ModelConfig:
    """Content of ``config.json``.

    Attributes:
        kind: "prior", "inference" (an inference model), "conditional" (a supervised denoiser) or "few-step".
        network: Description of the network for :func:`~lavps.nn.build_network`.
        schedule: Schedule of the training.
        image_shape: Shape (C, *spatial) of the training images.
        prediction: Predicted quantity of a denoiser.
        time_input: Time input of a denoiser.
        sigma_data: Parameter of EDM's preconditioning, which replaces the two above.
        conditioning: Conditioning of the network on the measurement.
        operator: Family of operators of the training.
        window: Sampler and range of times of the training; of a few-step model, its limits.
        prior_hash: :func:`weights_hash` of the prior that another model was trained with.
        training: Settings and metrics of the training, for the reader.
        range: Pixel range, always [-1, 1].
        dtype: Precision of the stored weights. This and the following are set by :func:`save_model`.
        sha256: Hash of the file of weights.
        weights_hash: :func:`weights_hash` of the weights as stored.
        versions: Versions of lavps, torch and Python.
    """

    kind: Kind
    network: dict[str, Any]
    schedule: Schedule
    image_shape: tuple[int, ...]
    prediction: Prediction | None = None
    time_input: TimeInput | None = None
    sigma_data: float | None = None
    conditioning: dict[str, Any] | None = None
    operator: dict[str, Any] | None = None
    window: dict[str, Any] | None = None
    prior_hash: str | None = None
    training: dict[str, Any] = field(default_factory=dict)
    range: tuple[float, float] = (-1.0, 1.0)
    dtype: str = ""
    sha256: str = ""
    weights_hash: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {get_args(Kind)}, got {self.kind!r}")
        shape = self.image_shape
        if not 1 <= len(shape) <= 4 or not all(type(n) is int and 0 < n <= _LARGEST_SIDE for n in shape):
            raise ValueError(f"image_shape must be 1 to 4 whole numbers up to {_LARGEST_SIDE}, got {shape}")
        if tuple(self.range) != (-1.0, 1.0):
            raise ValueError(
                f"the pixel range must be [-1, 1], got {self.range}: retrain, or use RescaledPrior"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"format": _FORMAT} | asdict(self) | {"schedule": schedule_to_dict(self.schedule)}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> ModelConfig:
        """Return the configuration that :meth:`to_dict` described."""
        values = dict(description)
        if (written := values.pop("format", None)) != _FORMAT:
            raise ValueError(f"not a lavps model of format {_FORMAT}: format is {written!r}")
        if unknown := set(values) - {f.name for f in fields(cls)}:
            raise ValueError(f"unknown fields {sorted(unknown)}, written by {values.get('versions')}")
        shapes = {name: tuple(values[name]) for name in ("image_shape", "range")}
        return cls(**values | shapes | {"schedule": schedule_from_dict(values["schedule"])})


def save_model(
    folder: str | Path, network: nn.Module, config: ModelConfig, dtype: torch.dtype = torch.float32
) -> ModelConfig:
    """Write a model folder; an existing model card is kept.

    Args:
        folder: Folder, created if missing.
        network: Network with the (averaged) weights to store.
        config: Description of the model.
        dtype: Precision of the floating-point weights: float32, bfloat16 or float16.

    Returns:
        Configuration as written, with hashes, dtype and versions.
    """
    folder = Path(folder)
    tensors = {
        name: (value.to(dtype) if value.is_floating_point() else value).detach().cpu().clone().contiguous()
        for name, value in network.state_dict().items()
    }
    atomically(folder / _WEIGHTS, lambda path: save_file(tensors, path))
    config = replace(
        config,
        dtype=str(dtype).removeprefix("torch."),
        sha256=file_hash(folder / _WEIGHTS),
        weights_hash=tensors_hash(tensors),
        versions={"lavps": version("lavps"), "torch": torch.__version__, "python": platform.python_version()},
    )
    write_json(folder / _CONFIG, config.to_dict())
    if not (folder / _CARD).exists():
        decay = config.training.get("exported_ema_decay")
        averaged = "" if decay is None else f", averaged with decay {decay}"
        card = _MODEL_CARD.format(name=folder.name, config=config, averaged=averaged)
        atomically(folder / _CARD, lambda path: path.write_text(card, encoding="utf-8"))
    return read_config(folder)


def model_folder(path: str | Path) -> Path:
    """Return a model folder, that of a name in the installed zoo, or the download of a Hub id."""
    if Path(path).is_dir():
        return Path(path)
    return zoo_model(path) or download(path, [_WEIGHTS, _CONFIG, _CARD])


def read_config(path: str | Path) -> ModelConfig:
    """Return the configuration of a model folder or Hub id."""
    file = model_folder(path) / _CONFIG
    try:
        return ModelConfig.from_dict(json.loads(read_text(file)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file}: {error}") from error


def build_described(path: str | Path, config: ModelConfig) -> Any:
    """Return the network of a model folder, not yet loaded, if it fits the weights that are present.

    Raises:
        ValueError: The network is larger than the weights, or the description is invalid.
    """
    folder = model_folder(path)
    require_network(config.network, *weights_in(folder / _WEIGHTS), folder / _CONFIG)
    return build_network(config.network)


def load_weights(path: str | Path, network: nn.Module, config: ModelConfig) -> None:
    """Load the weights of a model folder into ``network`` after checking their hashes."""
    file = model_folder(path) / _WEIGHTS
    if (found := file_hash(file)) != config.sha256:
        raise ValueError(f"{file} is damaged or not the file described: sha256 {found}, not {config.sha256}")
    try:
        tensors = load_file(file)
        network.load_state_dict(tensors)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{file} does not fit its {_CONFIG}: {error}") from error
    if (found := tensors_hash(tensors)) != config.weights_hash:
        raise ValueError(f"{file} has the weights_hash {found}, not {config.weights_hash} of its {_CONFIG}")


def load_model_prior(
    path: str | Path, device: str | torch.device = "cpu", kind: Kind = "prior"
) -> NetworkPrior | EDMPrior:
    """Return the prior in a model folder or at a Hub id, frozen and in float32.

    Args:
        path: Model folder or Hub id.
        device: Device of the network.
        kind: Kind of the model: "prior", or "few-step" for the denoiser of a few-step model.
    """
    folder = model_folder(path)
    config = read_config(folder)
    if config.kind != kind:
        raise ValueError(f"{path} holds a model of kind {config.kind!r}, not a {kind}")
    network = build_described(folder, config)
    load_weights(folder, network, config)
    network.requires_grad_(False).to(device)
    prior: NetworkPrior | EDMPrior
    if config.prediction is not None and config.time_input is not None:
        prior = NetworkPrior(network, config.schedule, config.prediction, config.time_input)
    elif isinstance(config.schedule, VE) and config.sigma_data is not None:
        prior = EDMPrior(network, config.schedule, config.sigma_data)
    else:
        raise ValueError(
            f"{folder / _CONFIG} needs prediction and time_input, or sigma_data and a VE schedule (EDM)"
        )
    prior.weights_hash, prior.image_shape = config.weights_hash, config.image_shape
    prior.name = model_name(path)
    return prior


def model_name(path: str | Path) -> str:
    """Return the name of a model: that of its folder, or of the run whose folder ``model`` it is.

    Example:
        >>> model_name("runs/faces64/model"), model_name("zoo/synthfaces64")
        ('faces64', 'synthfaces64')
    """
    folder = Path(path)
    return folder.parent.name if folder.name == "model" and folder.parent.name else folder.name


_MODEL_CARD = """---
library_name: lavps
tags: [diffusion, inverse-problems, {config.kind}]
---
# {name}

A {config.kind} model for images of shape {config.image_shape} in [-1, 1], trained under {config.schedule!r}.

- Weights: sha256 `{config.sha256}`, {config.dtype}{averaged}
- Data: (which images, their licence, how many, how they were cropped)
- Training: `config.json`, field `training`
- Numbers: (what was measured, on which images, by which command)
- Limits: (what it has not seen; a sample shows what is plausible under these data, not what is true)
"""
