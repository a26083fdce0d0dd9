"""Folders of the diffusers library: a denoiser, its scheduler, and an autoencoder where it is latent.

A pipeline's folder has ``model_index.json`` and one folder per component (in old ones some lie beside it); a
model's own folder has ``config.json`` only, and the scheduler is then DDPM's. Of the scheduler only what the
denoiser was trained under counts: the chain's variances and what is predicted. Networks are diffusers' own.
"""

from __future__ import annotations

__all__ = ["is_diffusers", "load_diffusers"]

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...schedule import VE
from ..base import Prior, Ranged
from ..latent import LatentPrior
from ..networks import NetworkPrior, Prediction
from .labels import Labelled, chosen_label
from .layout import Loaded, Options
from .schedules import schedule_of

_PREDICTIONS: dict[str, Prediction] = {"epsilon": "eps", "v_prediction": "v", "sample": "x0"}
_DENOISERS = ("UNet2DModel", "DiTTransformer2DModel", "Transformer2DModel")
_AUTOENCODERS = ("AutoencoderKL", "VQModel")


def is_diffusers(folder: Path) -> bool:
    """Whether a folder is a pipeline or a model of diffusers."""
    if (folder / "model_index.json").is_file():
        return True
    try:
        return "_class_name" in _json(folder / "config.json")
    except (OSError, ValueError):
        return False


def load_diffusers(folder: Path, options: Options) -> Loaded:
    """The prior in a folder of diffusers."""
    parts = _components(folder)
    denoiser = next((p for p in ("unet", "transformer", "") if p in parts), None)
    if denoiser is None or parts[denoiser] not in _DENOISERS:
        raise ValueError(
            f"{folder} is a pipeline of {_listed(parts)}; a prior needs one of {', '.join(_DENOISERS)} as "
            "its unet or transformer. A network conditioned on text or images is no prior by itself: wrap it "
            "with its condition fixed in lavps.NetworkPrior."
        )
    network = _model(parts[denoiser], _place(folder, denoiser))
    scheduler = _scheduler(folder)
    prior, line = _as_prior(network, scheduler, options)
    line = f"diffusers {parts[denoiser]}, {line}"
    shape = _image_shape(network.config)  # type: ignore[arg-type]
    found = next((p for p in ("vae", "vqvae") if p in parts), None)
    if found is not None:
        prior = _latent(prior, parts[found], _place(folder, found), options)
        line += (
            f", latent through {parts[found]} scaled by {prior.scale:g}, images {prior.factor} times larger"
        )
        colours = int(_json(_place(folder, found) / "config.json").get("out_channels", 3))
        shape = None if shape is None else (colours, *(prior.factor * side for side in shape[1:]))
    return Loaded(prior, line, shape)


def _image_shape(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """(C, H, W) that a network was made for, where it says so."""
    size = config.get("sample_size")
    if size is None:
        return None
    sides = size if isinstance(size, list | tuple) else (size, size)
    return (int(config["in_channels"]), *map(int, sides))


def _components(folder: Path) -> dict[str, str]:
    """Class names by component; a model's own folder has one, named ""."""
    index = folder / "model_index.json"
    if not index.is_file():
        return {"": _json(folder / "config.json")["_class_name"]}
    return {
        name: value[1]
        for name, value in _json(index).items()
        if isinstance(value, list) and len(value) == 2 and value[1] is not None
    }


def _listed(parts: Mapping[str, str]) -> str:
    return ", ".join(f"{name or 'model'}: {kind}" for name, kind in parts.items()) or "nothing"


def _json(file: Path) -> dict[str, Any]:
    values = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"{file} holds no object")
    return values


def _place(folder: Path, component: str) -> Path:
    return folder / component if (folder / component).is_dir() else folder


def _scheduler(folder: Path) -> dict[str, Any]:
    for file in (folder / "scheduler" / "scheduler_config.json", folder / "scheduler_config.json"):
        if file.is_file():
            return _json(file)
    return {"_class_name": "no scheduler in the folder, so DDPMScheduler"}


def _model(kind: str, folder: Path) -> nn.Module:
    """A network of diffusers with its weights, all of them."""
    try:
        import diffusers
    except ImportError as error:
        raise ImportError(f'{folder} needs diffusers: pip install "lavps[hub]"') from error
    safe = sorted(folder.glob("*.safetensors"))
    if not safe and not list(folder.glob("*.bin")):
        raise FileNotFoundError(f"{folder} has a configuration but no weights (*.safetensors or *.bin)")
    variant = {"variant": "fp16"} if safe and all(".fp16." in file.name for file in safe) else {}
    network, report = getattr(diffusers, kind).from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=bool(safe),
        low_cpu_mem_usage=False,
        output_loading_info=True,
        torch_dtype=torch.float32,
        **variant,
    )
    # The library draws what is missing at random and only warns.
    if wrong := {k: sorted(report[k])[:4] for k in ("missing_keys", "unexpected_keys") if report.get(k)}:
        raise ValueError(f"the weights in {folder} do not fit its config.json: {wrong}")
    assert isinstance(network, nn.Module)
    return network


def _as_prior(network: nn.Module, scheduler: Mapping[str, Any], options: Options) -> tuple[Prior, str]:
    config: Mapping[str, Any] = network.config  # type: ignore[assignment]
    name = str(scheduler.get("_class_name"))
    # Transformers are told the classes by their norm; one more embedding than classes is "no class".
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
        return Ranged(prior, 0.0, 1.0), f"{about}, {name}, predicts the score of pixels in [0, 1]"
    if "Flow" in name or "EDM" in name or "Karras" in name or "Sde" in name:
        raise ValueError(
            f"{name} is not a chain of variances; wrap the network in lavps.NetworkPrior yourself"
        )
    predicted = str(scheduler.get("prediction_type", "epsilon"))
    if predicted not in _PREDICTIONS:
        raise ValueError(f"prediction_type {predicted!r} is not known: known are {', '.join(_PREDICTIONS)}")
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


def _latent(prior: Prior, kind: str, folder: Path, options: Options) -> LatentPrior:
    if kind not in _AUTOENCODERS:
        raise ValueError(f"{folder} holds a {kind}; known autoencoders are {', '.join(_AUTOENCODERS)}")
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
