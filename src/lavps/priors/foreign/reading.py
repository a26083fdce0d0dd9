"""Checkpoint files as plain tensors and plain values.

A checkpoint comes as safetensors, as a torch file, or as a pickle. None of the three executes anything here:
torch files are read with ``weights_only=True``, pickles through :mod:`lavps.priors.foreign.pickles`. Training
leaves more than weights in a file; of several sets of weights the exponential moving average is taken, since
that is what the published samples of every library were made with.
"""

from __future__ import annotations

__all__ = ["Checkpoint", "read_checkpoint"]

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .pickles import Instance, read_pickle

# A torch file from before 1.6 is a row of pickles, of which the first is this number.
_TORCH_LEGACY = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")
_AVERAGED = ("model_ema", "ema", "ema_state_dict", "state_dict_ema", "params_ema", "ema_model")
_PLAIN = ("state_dict", "model_state_dict", "model", "params", "net", "network", "weights")
_PREFIXES = ("module.", "_orig_mod.")


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds.

    Attributes:
        path: the file.
        tensors: the weights by name, floating-point ones in float32.
        config: what else the file says of the model; empty where it says nothing.
        instance: the pickled network, where the file is a pickle of one.
        averaged: whether the weights were found under a name for averaged ones.
    """

    path: Path
    tensors: dict[str, Tensor]
    config: dict[str, Any] = field(default_factory=dict)
    instance: Instance | None = None
    averaged: bool = False


def read_checkpoint(path: str | Path) -> Checkpoint:
    """The weights in a file of any of the three formats; a ValueError says what is wrong with it."""
    path = Path(path)
    with path.open("rb") as file:
        head = file.read(64)
    try:
        if path.suffix == ".safetensors":
            return _from_safetensors(path)
        if head[:2] == b"PK" or _TORCH_LEGACY in head:
            return _from_values(path, torch.load(path, map_location="cpu", weights_only=True))
        if head[:1] == b"\x80":
            return _from_values(path, read_pickle(path))
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is refused: beside tensors it holds objects whose loading would run code, or it is "
            f"damaged. Nothing of it was executed. ({str(error).splitlines()[0]})"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError, IndexError, KeyError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"{path} cannot be read; is it damaged, or its download incomplete "
            f"({path.stat().st_size} bytes)? ({reason})"
        ) from error
    raise ValueError(
        f"{path} is neither safetensors, nor a torch file, nor a pickle: it begins with {head[:8]!r}"
    )


def _from_safetensors(path: Path) -> Checkpoint:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        metadata = file.metadata() or {}
    config = {name: _parsed(value) for name, value in metadata.items()}
    return Checkpoint(path, _cleaned(tensors), config)


def _parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _from_values(path: Path, values: Any) -> Checkpoint:
    """The weights among what a torch file or pickle held, however they are wrapped."""
    config: dict[str, Any] = {}
    averaged = False
    for _ in range(4):  # {"checkpoint": {"ema": {"state_dict": ...}}} is as deep as they come
        if isinstance(values, Instance):
            return Checkpoint(path, _cleaned(values.tensors()), config, values, averaged)
        if not isinstance(values, Mapping):
            break
        if isinstance(said := values.get("config"), Mapping):
            config = dict(said)
        inner = next((name for name in (*_AVERAGED, *_PLAIN) if _holds_weights(values.get(name))), None)
        if inner is None:
            break
        averaged = averaged or inner in _AVERAGED
        values = values[inner]
    found = (
        {str(k): v for k, v in values.items() if isinstance(v, Tensor)} if isinstance(values, Mapping) else {}
    )
    if not found:
        raise ValueError(f"{path} holds no weights by name, but {_summary(values)}")
    return Checkpoint(path, _cleaned(found), config, averaged=averaged)


def _holds_weights(value: Any) -> bool:
    return isinstance(value, Instance) or (
        isinstance(value, Mapping) and any(isinstance(v, (Tensor, Mapping)) for v in value.values())
    )


def _summary(values: Any) -> str:
    if isinstance(values, Mapping):
        return "a dictionary of " + ", ".join(
            f"{k!r}: {type(v).__name__}" for k, v in list(values.items())[:8]
        )
    return f"a {type(values).__name__}"


def _cleaned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names without what wrappers put before all of them; float32 in place of other precisions."""
    names = list(tensors)
    for prefix in _PREFIXES * 2:
        if names and all(name.startswith(prefix) for name in names):
            names = [name.removeprefix(prefix) for name in names]
    return {
        name: value.detach().float() if value.is_floating_point() else value.detach()
        for name, value in zip(names, tensors.values(), strict=True)
    }
