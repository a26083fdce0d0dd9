"""Checkpoint files as tensors and plain values.

Safetensors, torch files (``weights_only=True``) and pickles (:mod:`lavps.checkpoints.safe_pickle`) are read
without executing code. Of several sets of weights the exponential moving average is used, as for the
published samples of every library.
"""

from __future__ import annotations

__all__ = ["Checkpoint", "read_checkpoint", "require_safe_unpickler"]

import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..io.regular import require_file
from .safe_pickle import Instance, read_pickle
from .sizes import require_expanded

# Torch files from before version 1.6 begin with a pickle of this number.
_TORCH_LEGACY = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")
_AVERAGED = ("model_ema", "ema", "ema_state_dict", "state_dict_ema", "params_ema", "ema_model")
_PLAIN = ("state_dict", "model_state_dict", "model", "params", "net", "network", "weights")
_PREFIXES = ("module.", "_orig_mod.")
_DAMAGES = (
    SafetensorError, RuntimeError, EOFError, OSError, LookupError, TypeError, AttributeError, ArithmeticError,
    MemoryError, zipfile.BadZipFile,
)  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """Content of a checkpoint file.

    Attributes:
        path: Path of the file.
        tensors: Weights by name, floating-point ones in float32.
        config: Configuration of the model in the file, empty if there is none.
        instance: Pickled network, if the file is a pickle of one.
        averaged: Whether the weights were stored under a name for averaged weights.
    """

    path: Path
    tensors: dict[str, Tensor]
    config: dict[str, Any] = field(default_factory=dict)
    instance: Instance | None = None
    averaged: bool = False


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Return the weights in a file of any of the three formats; raise ValueError for other files."""
    path = require_file(Path(path))
    with path.open("rb") as file:
        head = file.read(64)
    try:
        if path.suffix == ".safetensors":
            return _from_safetensors(path)
        if head[:2] == b"PK" or head[:1] == b"\x80":
            require_safe_unpickler(path)
        if head[:2] == b"PK" or _TORCH_LEGACY in head:
            _require_stored(path)
            return _from_values(path, torch.load(path, map_location="cpu", weights_only=True))
        if head[:1] == b"\x80":
            return _from_values(path, read_pickle(path))
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is refused: beside tensors it holds objects whose loading would run code, or it is "
            f"damaged. Nothing of it was executed. ({str(error).splitlines()[0]})"
        ) from error
    except _DAMAGES as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"{path} cannot be read; is it damaged, or its download incomplete "
            f"({path.stat().st_size} bytes)? ({reason})"
        ) from error
    raise ValueError(
        f"{path} is neither safetensors, nor a torch file, nor a pickle: it begins with {head[:8]!r}"
    )


def require_safe_unpickler(path: Path) -> None:
    """Raise ValueError if the installed torch cannot read a pickled checkpoint safely.

    Before 2.6 (CVE-2025-32434) and before 2.10 (CVE-2026-24747), ``weights_only=True`` does not prevent the
    execution of code.
    """
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 10):
        raise ValueError(
            f"{path} is a pickled checkpoint, which torch {torch.__version__} cannot read safely: install "
            "torch 2.10 or later, or convert the file to safetensors"
        )


def _require_stored(path: Path) -> None:
    """Raise an error if the archive of a torch file holds more than the file: torch stores, uncompressed."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
                raise RuntimeError("its archive is compressed, or its members overlap")


def _from_safetensors(path: Path) -> Checkpoint:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        metadata = file.metadata() or {}
    config = {name: _parsed(value) for name, value in metadata.items()}
    return Checkpoint(path, _cleaned(tensors, path), config)


def _parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _from_values(path: Path, values: Any) -> Checkpoint:
    """Return the weights in the content of a torch file or pickle, however nested."""
    config: dict[str, Any] = {}
    averaged = False
    for _ in range(4):  # depth of {"checkpoint": {"ema": {"state_dict": ...}}}
        if isinstance(values, Instance):
            return Checkpoint(path, _cleaned(values.tensors(), path), config, values, averaged)
        if not isinstance(values, Mapping):
            break
        if isinstance(stored := values.get("config"), Mapping):
            config = dict(stored)
        inner = next((name for name in (*_AVERAGED, *_PLAIN) if _holds_weights(values.get(name))), None)
        if inner is None:
            break
        averaged = averaged or inner in _AVERAGED
        values = values[inner]
    items = values.items() if isinstance(values, Mapping) else ()
    found = {str(name): value for name, value in items if isinstance(value, Tensor)}
    if not found:
        raise ValueError(f"{path} holds no weights by name, but {_summary(values)}")
    return Checkpoint(path, _cleaned(found, path), config, averaged=averaged)


def _holds_weights(value: Any) -> bool:
    return isinstance(value, Instance) or (
        isinstance(value, Mapping) and any(isinstance(v, (Tensor, Mapping)) for v in value.values())
    )


def _summary(values: Any) -> str:
    if not isinstance(values, Mapping):
        return f"a {type(values).__name__}"
    return "a dictionary of " + ", ".join(f"{k!r}: {type(v).__name__}" for k, v in list(values.items())[:8])


def _cleaned(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Remove wrappers' common prefixes from the names, and convert floating-point tensors to float32."""
    try:
        require_expanded(tensors, path.stat().st_size)
    except ValueError as error:
        raise ValueError(f"{path} is refused: {error}") from error
    names = list(tensors)
    for prefix in _PREFIXES * 2:
        if names and all(name.startswith(prefix) for name in names):
            names = [name.removeprefix(prefix) for name in names]
    return {
        name: value.detach().float() if value.is_floating_point() else value.detach()
        for name, value in zip(names, tensors.values(), strict=True)
    }
