"""Folders of the diffusers library: a denoiser, its scheduler, and the autoencoder of a latent model.

A pipeline folder has ``model_index.json`` and one folder per component (some are missing in old ones); a
model folder has only ``config.json``, and the scheduler is then DDPM's. Only the scheduler's variances and
prediction type are used. The networks are built by diffusers.
"""

from __future__ import annotations

__all__ = ["is_diffusers", "load_diffusers"]

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..extras import require
from ..io.regular import require_file
from ..priors.adapters import NetworkPrior, Prediction
from ..priors.latent import LatentPrior
from ..priors.protocol import Prior, RescaledPrior
from ..schedule import VE
from .labels import Labelled, chosen_label
from .layout import Loaded, LoadOptions
from .reading import require_safe_unpickler
from .schedules import schedule_of
from .sizes import read_text, require_network

_PREDICTIONS: dict[str, Prediction] = {"epsilon": "eps", "v_prediction": "v", "sample": "x0"}
_DENOISERS = ("UNet2DModel", "DiTTransformer2DModel", "Transformer2DModel")
_AUTOENCODERS = ("AutoencoderKL", "VQModel")


def is_diffusers(folder: Path) -> bool:
    """Return whether a folder is a pipeline or a model of diffusers."""
    if (folder / "model_index.json").is_file():
        return True
    try:
        return "_class_name" in _json(folder / "config.json")
    except (OSError, ValueError):
        return False


def load_diffusers(folder: Path, options: LoadOptions) -> Loaded:
    """Return the prior in a diffusers folder."""
    parts = _components(folder)
    denoiser = next((p for p in ("unet", "transformer", "") if p in parts), None)
    if denoiser is None or parts[denoiser] not in _DENOISERS:
        listed = ", ".join(f"{name or 'model'}: {kind}" for name, kind in parts.items()) or "nothing"
        raise ValueError(
            f"{folder} is a pipeline of {listed}; a prior needs one of {', '.join(_DENOISERS)} as "
            "its unet or transformer. A network conditioned on text or images is no prior by itself: fix its "
            "condition and wrap it in lavps.NetworkPrior."
        )
    network = _model(parts[denoiser], _place(folder, denoiser))
    prior, line = _as_prior(network, _scheduler(folder), options)
    line = f"diffusers {parts[denoiser]}, {line}"
    shape = _image_shape(network.config)  # type: ignore[arg-type]
    found = next((p for p in ("vae", "vqvae") if p in parts), None)
    if found is not None:
        place = _place(folder, found)
        prior = _latent(prior, parts[found], place, options)
        line += f", latent ({parts[found]}, scale {prior.scale:g}), images {prior.factor} times larger"
        colours = int(_json(place / "config.json").get("out_channels", 3))
        shape = None if shape is None else (colours, *(prior.factor * side for side in shape[1:]))
    return Loaded(prior, line, shape)


def _image_shape(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the image shape (C, H, W) that a network was trained for, if its configuration has it."""
    size = config.get("sample_size")
    if size is None:
        return None
    sides = size if isinstance(size, list | tuple) else (size, size)
    return (int(config["in_channels"]), *map(int, sides))


def _components(folder: Path) -> dict[str, str]:
    """Return class names by component; a model folder has one component, named ""."""
    index = folder / "model_index.json"
    if not index.is_file():
        return {"": _json(folder / "config.json")["_class_name"]}
    return {
        name: value[1]
        for name, value in _json(index).items()
        if isinstance(value, list) and len(value) == 2 and value[1] is not None
    }


def _json(file: Path) -> dict[str, Any]:
    values = json.loads(read_text(file))
    if not isinstance(values, dict):
        raise ValueError(f"{file} is not a JSON object")
    return values


def _place(folder: Path, component: str) -> Path:
    return folder / component if (folder / component).is_dir() else folder


def _scheduler(folder: Path) -> dict[str, Any]:
    for file in (folder / "scheduler" / "scheduler_config.json", folder / "scheduler_config.json"):
        if file.is_file():
            return _json(file)
    return {"_class_name": "no scheduler in the folder, so DDPMScheduler"}


def _model(kind: str, folder: Path) -> nn.Module:
    """Return a diffusers network with all its weights."""
    diffusers = require("diffusers", "hub", f"{folder} needs diffusers")
    safe = sorted(folder.glob("*.safetensors"))
    if not safe and not list(folder.glob("*.bin")):
        raise FileNotFoundError(f"{folder} has a configuration but no weights (*.safetensors or *.bin)")
    if not safe:
        require_safe_unpickler(folder)
    described = {name: value for name, value in _json(folder / "config.json").items() if name[0] != "_"}
    files = [require_file(file) for file in safe or sorted(folder.glob("*.bin"))]
    size = sum(file.stat().st_size for file in files)  # at least two bytes per value
    factory = getattr(diffusers, kind)
    require_network(described, size, size // 2, folder / "config.json", factory.from_config)
    variant = {"variant": "fp16"} if safe and all(".fp16." in file.name for file in safe) else {}
    network, report = factory.from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=bool(safe),
        low_cpu_mem_usage=False,
        output_loading_info=True,
        torch_dtype=torch.float32,
        **variant,
    )
    # diffusers initializes missing weights at random and only warns.
    if wrong := {k: sorted(report[k])[:4] for k in ("missing_keys", "unexpected_keys") if report.get(k)}:
        raise ValueError(f"the weights in {folder} do not fit its config.json: {wrong}")
    assert isinstance(network, nn.Module)
    return network


def _as_prior(network: nn.Module, scheduler: Mapping[str, Any], options: LoadOptions) -> tuple[Prior, str]:
    config: Mapping[str, Any] = network.config  # type: ignore[assignment]
    name = str(scheduler.get("_class_name"))
    # The norms of transformers embed the class; one more embedding than classes stands for "no class".
    classes = int(config.get("num_class_embeds") or config.get("num_embeds_ada_norm") or 0)
    null = classes if config.get("num_embeds_ada_norm") else None
    label, about = chosen_label(options.label, classes, null, type(network).__name__)
    call = _call_indexed if config.get("time_embedding_type") == "learned" else _call
    wrapped = Labelled(network, call, label).requires_grad_(False).to(options.device)
    if config.get("time_embedding_type") == "fourier":
        if name != "ScoreSdeVeScheduler":
            raise ValueError(f"a UNet2DModel of noise levels needs ScoreSdeVeScheduler, found {name}")
        low, high = float(scheduler.get("sigma_min", 0.01)), float(scheduler.get("sigma_max", 1348.0))
        prior = NetworkPrior(wrapped, VE(low, high), "score", "noise_level")
        return RescaledPrior(prior, 0.0, 1.0), f"{about}, {name}, predicts the score of pixels in [0, 1]"
    if "Flow" in name or "EDM" in name or "Karras" in name or "Sde" in name:
        raise ValueError(f"{name} has no discrete chain of variances: use lavps.NetworkPrior instead")
    predicted = str(scheduler.get("prediction_type", "epsilon"))
    if predicted not in _PREDICTIONS:
        raise ValueError(f"unsupported prediction_type {predicted!r}: known are {', '.join(_PREDICTIONS)}")
    schedule = schedule_of(scheduler)
    chain = "trained_betas" if scheduler.get("trained_betas") else scheduler.get("beta_schedule", "linear")
    zero = ", rescaled to zero SNR" if scheduler.get("rescale_betas_zero_snr") else ""
    line = f"{about}, {name} ({chain}, {schedule.num_train_steps} steps{zero}), predicts {predicted}"
    return NetworkPrior(wrapped, schedule, _PREDICTIONS[predicted], "index"), line


def _call(network: nn.Module, x: Tensor, c: Tensor, labels: Tensor | None) -> Tensor:
    arguments = {} if labels is None else {"class_labels": labels}
    output: Tensor = network(x, timestep=c, return_dict=False, **arguments)[0]
    return output


def _call_indexed(network: nn.Module, x: Tensor, c: Tensor, labels: Tensor | None) -> Tensor:
    return _call(network, x, c.round().long(), labels)


def _latent(prior: Prior, kind: str, folder: Path, options: LoadOptions) -> LatentPrior:
    if kind not in _AUTOENCODERS:
        raise ValueError(f"{folder} holds a {kind}; supported are {', '.join(_AUTOENCODERS)}")
    autoencoder = _model(kind, folder).eval().requires_grad_(False).to(options.device)
    config: Mapping[str, Any] = autoencoder.config  # type: ignore[assignment]

    def decode(z: Tensor) -> Tensor:
        image: Tensor = autoencoder.decode(z, return_dict=False)[0]  # type: ignore[operator]
        return image

    def encode(x: Tensor) -> Tensor:
        code = autoencoder.encode(x, return_dict=False)[0]  # type: ignore[operator]
        mean: Tensor = code.mode() if hasattr(code, "mode") and not isinstance(code, Tensor) else code
        return mean

    return LatentPrior(
        prior,
        decode,
        encode,
        int(config["latent_channels"]),
        2 ** (len(config["block_out_channels"]) - 1),
        float(config.get("scaling_factor") or 1.0),
        float(config.get("shift_factor") or 0.0),
    )
