"""Writes pickles as EDM's library does: objects that carry their source code, rebuilt by a function of it."""

from __future__ import annotations

import io
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SOURCE = "raise RuntimeError('the source code within a pickle was executed')"


def _reconstruct_persistent_obj(meta: dict[str, Any]) -> Any:
    raise RuntimeError("the pickle was loaded by python's own unpickler")


def library() -> types.ModuleType:
    """A module under the library's name, so that pickles written here name it."""
    module = types.ModuleType("torch_utils.persistence")
    _reconstruct_persistent_obj.__module__ = "torch_utils.persistence"
    module._reconstruct_persistent_obj = _reconstruct_persistent_obj  # type: ignore[attr-defined]
    return module


class Persistent(nn.Module):
    """A module that pickles as a persistent object of class ``kind``."""

    def __init__(self, kind: str, kwargs: dict[str, Any], **attributes: Any) -> None:
        super().__init__()
        self._kind = kind
        self._init_args, self._init_kwargs = (), kwargs
        self.skip_scale = np.sqrt(0.5)  # numpy's numbers are in every published file
        self.__dict__.update(attributes)

    def __reduce__(self) -> Any:
        meta = {"type": "class", "version": 6, "module_src": SOURCE, "class_name": self._kind}
        return _reconstruct_persistent_obj, ({**meta, "state": dict(self.__dict__)},)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()


def tree(kind: str, kwargs: dict[str, Any], tensors: dict[str, Tensor]) -> Persistent:
    """A persistent module whose state dictionary is ``tensors``; containers are torch's own."""
    root = Persistent(kind, kwargs)
    for name, value in tensors.items():
        *path, leaf = name.split(".")
        module: nn.Module = root
        for depth, part in enumerate(path):
            if part not in module._modules:
                made = nn.ModuleDict() if depth == 0 and part in ("enc", "dec") else Persistent("Layer", {})
                module.add_module(part, made)
            module = module._modules[part]  # type: ignore[assignment]
        if leaf in ("freqs", "resample_filter", "phases"):
            module.register_buffer(leaf, value)
        else:
            module.register_parameter(leaf, nn.Parameter(value))
    return root


def write(path: Path, content: Any) -> None:
    """Pickle ``content`` while the library's name is there to be found."""
    names = {"torch_utils": types.ModuleType("torch_utils"), "torch_utils.persistence": library()}
    sys.modules.update(names)
    try:
        buffer = io.BytesIO()
        pickle.dump(content, buffer)
        path.write_bytes(buffer.getvalue())
    finally:
        for name in names:
            del sys.modules[name]


def precondition(kind: str, model: Persistent, classes: int, **numbers: Any) -> Persistent:
    outer = Persistent(kind, {"img_resolution": 16, "img_channels": 3}, label_dim=classes, **numbers)
    outer.add_module("model", model)
    return outer


def sigma_times(prior: Any, sigmas: list[float]) -> Tensor:
    """The times at which a prior's noise levels are these."""
    return prior.schedule.time(torch.tensor(sigmas, dtype=torch.float64))
