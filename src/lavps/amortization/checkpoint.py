"""What training leaves on disk: model folders, and the state of a run.

A model folder holds ``model.safetensors`` (the weights), ``config.json`` (everything needed to use them:
:class:`ModelConfig`) and ``README.md`` (a model card). The state of a run is a folder per checkpoint with all
tensors of the optimisation, written beside and renamed, so that a run killed at any moment finds its last
complete state. Only safetensors and JSON: nothing read here can execute.
"""

from __future__ import annotations

__all__ = [
    "ModelConfig",
    "check_fits",
    "load_model_prior",
    "load_weights",
    "read_config",
    "save_model",
]

import json
import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..networks import build_network
from ..priors import EDMPrior, NetworkPrior
from ..priors.networks import Prediction, TimeInput
from ..schedule import VE, Cosine, DiscreteVP, Flow, Schedule, VPLinear
from .atomic import atomically
from .hashes import file_hash, tensors_hash

Kind = Literal["prior", "inference", "conditional"]
_WEIGHTS, _CONFIG, _CARD, _FORMAT = "model.safetensors", "config.json", "README.md", 1
_SCHEDULES: dict[str, type[Schedule]] = {c.__name__: c for c in (VPLinear, Cosine, Flow, VE, DiscreteVP)}


def schedule_to_dict(schedule: Schedule) -> dict[str, Any]:
    """A schedule as ``{"name": ..., "args": {...}}``, its numbers exact."""
    args: dict[str, Any] = {}
    if isinstance(schedule, VPLinear):
        low, high = schedule._range
        args = {"beta_min": low, "beta_max": high, "num_train_steps": schedule.num_train_steps}
    elif isinstance(schedule, DiscreteVP):
        args = {"betas": schedule._betas.tolist()}
    elif isinstance(schedule, Cosine):
        args = {"offset": schedule._offset}
    elif isinstance(schedule, VE):
        args = dict(zip(("sigma_min", "sigma_max", "rho"), schedule._numbers, strict=True))
    elif not isinstance(schedule, Flow):
        raise TypeError(f"{schedule!r} cannot be written to a file: only {', '.join(_SCHEDULES)} can")
    return {"name": type(schedule).__name__, "args": args}


def schedule_from_dict(description: Mapping[str, Any]) -> Schedule:
    """The inverse of :func:`schedule_to_dict`."""
    name = description.get("name")
    if name not in _SCHEDULES:
        raise ValueError(f"unknown schedule {name!r}: known are {', '.join(_SCHEDULES)}")
    return _SCHEDULES[name](**description.get("args", {}))


@dataclass(frozen=True)
class ModelConfig:
    """All that ``config.json`` says of a model.

    Attributes:
        kind: "prior", "inference" (a warm start) or "conditional" (a supervised denoiser).
        network: what :func:`~lavps.networks.build_network` builds it from.
        schedule: the schedule it was trained with.
        image_shape: (C, *spatial) of the training images.
        prediction: what a denoiser predicts.
        time_input: what a denoiser is told of the time.
        sigma_data: of EDM's preconditioning, for a denoiser that has it in place of the two above.
        conditioning: how the network learns of the measurement.
        operator: the family of operators it was trained on; ``window`` the part of time.
        prior_hash: :func:`weights_hash` of the prior an inference model was trained with.
        training: settings and numbers of the training, for the reader.
        range: of the pixels, always [-1, 1].
        dtype: of the stored weights. Like all that follows, filled in by :func:`save_model`.
        sha256: of the file of weights.
        weights_hash: :func:`weights_hash` of the weights as stored.
        versions: of what wrote it.
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
        if tuple(self.range) != (-1.0, 1.0):
            raise ValueError(f"the one pixel range is [-1, 1], got {self.range}: retrain, or use Ranged")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"format": _FORMAT} | asdict(self) | {"schedule": schedule_to_dict(self.schedule)}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> ModelConfig:
        """The inverse of :meth:`to_dict`."""
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
    """Write a model folder; a model card that is there already is kept.

    Args:
        folder: made if missing.
        network: the weights, as they should be used (EMA).
        config: what they are.
        dtype: float32, bfloat16 or float16, for the floating-point weights.

    Returns:
        The configuration as written, with hashes, dtype and versions.
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
        card = _MODEL_CARD.format(name=folder.name, config=config)
        atomically(folder / _CARD, lambda path: path.write_text(card, encoding="utf-8"))
    return read_config(folder)


def model_folder(path: str | Path) -> Path:
    """The local folder of a model: a folder as it is, a Hub id ("owner/name") downloaded."""
    if Path(path).is_dir():
        return Path(path)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(path)):
        raise FileNotFoundError(f"{path} is neither a model folder nor a Hub id (owner/name)")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError(f'{path} is no folder here; to fetch it: pip install "lavps[hub]"') from error
    return Path(snapshot_download(str(path), allow_patterns=[_WEIGHTS, _CONFIG, _CARD]))


def read_config(path: str | Path) -> ModelConfig:
    """What a model folder (or Hub id) says of itself, without loading its weights."""
    file = model_folder(path) / _CONFIG
    try:
        return ModelConfig.from_dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file}: {error}") from error


def load_weights(path: str | Path, network: nn.Module, config: ModelConfig) -> None:
    """Load a model folder's weights into ``network``, once their sha256 is found to be ``config``'s."""
    file = model_folder(path) / _WEIGHTS
    if (found := file_hash(file)) != config.sha256:
        raise ValueError(f"{file} is damaged or not the file described: sha256 {found}, not {config.sha256}")
    network.load_state_dict(load_file(file))


def load_model_prior(path: str | Path, device: str | torch.device = "cpu") -> NetworkPrior | EDMPrior:
    """The prior in a model folder or at a Hub id, frozen, in float32, built as its config.json says."""
    folder = model_folder(path)
    config = read_config(folder)
    if config.kind != "prior":
        raise ValueError(f"{path} holds a model of kind {config.kind!r}, not a prior")
    if config.sigma_data is None and (config.prediction is None or config.time_input is None):
        raise ValueError(f"{folder / _CONFIG} does not say what the network predicts, or from what time")
    network = build_network(config.network)
    load_weights(folder, network, config)
    network.requires_grad_(False).to(device)
    prior: NetworkPrior | EDMPrior
    if config.prediction is not None and config.time_input is not None:
        prior = NetworkPrior(network, config.schedule, config.prediction, config.time_input)
    elif isinstance(config.schedule, VE) and config.sigma_data is not None:
        prior = EDMPrior(network, config.schedule, config.sigma_data)
    else:
        raise ValueError(f"{folder / _CONFIG}: EDM's preconditioning needs a VE schedule")
    prior.weights_hash, prior.image_shape = config.weights_hash, config.image_shape
    return prior


def check_fits(config: ModelConfig, prior_hash: str, schedule: Schedule) -> None:
    """Raise, with the reason, unless an inference model fits the prior it is to serve."""
    if config.kind != "inference":
        raise ValueError(f"a model of kind {config.kind!r} is not an inference model")
    if config.prior_hash != prior_hash:
        raise ValueError(f"this model was trained with prior {config.prior_hash}, not with {prior_hash}")
    if config.schedule != schedule:
        raise ValueError(f"this model was trained under {config.schedule!r}, not under {schedule!r}")


@dataclass(frozen=True)
class RunState:
    """A run as it was after ``step`` steps: its tensors by name, its settings, its counters (both JSON)."""

    step: int
    tensors: dict[str, Tensor]
    setup: dict[str, Any]
    counters: list[Any]


def save_run(folder: Path, state: RunState) -> None:
    """Write the state to ``folder/step-...``, all or nothing, and drop all but the last two."""
    target = folder / f"step-{state.step:09d}"
    partial = folder / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    # Cloned, because tied weights share memory, which safetensors refuses.
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in state.tensors.items()}
    atomically(partial / "state.safetensors", lambda path: save_file(tensors, path))
    write_json(partial / "state.json", {k: v for k, v in vars(state).items() if k != "tensors"})
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    for old in sorted(folder.glob("step-*"))[:-2]:
        shutil.rmtree(old)


def load_run(
    folder: Path,
    setup: Mapping[str, Any],
    may_end_elsewhere: Callable[[Mapping[str, Any], Mapping[str, Any], int], bool],
) -> RunState | None:
    """The last complete state in ``folder``, if any; refused if its settings are not ``setup``.

    Args:
        folder: of the states.
        setup: settings, plain JSON values.
        may_end_elsewhere: of the old settings, the new ones and the step: whether their number of steps may
            differ.
    """
    if not (steps := sorted(folder.glob("step-*"))):
        return None
    try:
        record = json.loads((steps[-1] / "state.json").read_text(encoding="utf-8"))
        tensors = load_file(steps[-1] / "state.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"{steps[-1]} cannot be read; delete it to resume from the one before") from error
    differing = _differences(record["setup"], json.loads(json.dumps(setup)))
    if may_end_elsewhere(record["setup"], setup, record["step"]):
        differing = [difference for difference in differing if not difference.startswith("trainer.steps ")]
    if differing:
        raise ValueError(f"{folder} holds a run with other settings: {'; '.join(differing)}")
    return RunState(tensors=tensors, **record)


def _differences(old: Any, new: Any, name: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        return [d for k in keys for d in _differences(old.get(k), new.get(k), f"{name}.{k}".strip("."))]
    return [] if old == new else [f"{name} was {old!r}, is {new!r}"]


def write_json(path: Path, values: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write a JSON file, all or nothing."""
    text = json.dumps(values, indent=2, default=str) + "\n"
    atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"))


_MODEL_CARD = """---
library_name: lavps
tags: [diffusion, inverse-problems, {config.kind}]
---
# {name}

A {config.kind} model for images of shape {config.image_shape} in [-1, 1], trained under {config.schedule!r}.

- Weights: sha256 `{config.sha256}`, {config.dtype}
- Data: (which images, their licence, how many, how they were cropped)
- Training: `config.json`, field `training`
- Numbers: (what was measured, on which images, by which command)
- Limits: (what it has not seen; a sample shows what is plausible under these data, not what is true)
"""
