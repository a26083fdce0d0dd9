"""Pickles read without executing anything of theirs.

A pickle is a program: it names functions of installed libraries and calls them. EDM's files go further and
carry the source code of their networks, run on loading. Here every name a pickle may ask for is answered by a
harmless stand-in made for this one reading: tensors are rebuilt from their bytes, objects become an
:class:`Instance` (its class's name and its attributes), everything else is refused by name. The source code
within the file is dropped unread.
"""

from __future__ import annotations

__all__ = ["Instance", "read_pickle"]

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NUMPY_SCALARS = {"f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "b1"}
# Where the classes of networks live; what stands in for them does nothing, whatever they are.
_MODELS = ("torch.nn.modules.", "models.", "training.", "k_diffusion.")
_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}


@dataclass
class Instance:
    """An object of a pickle: what it was, not what it could do.

    Attributes:
        kind: name of its class.
        state: its attributes.
    """

    kind: str
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def modules(self) -> dict[str, Instance]:
        """The modules within a module."""
        within = self.state.get("_modules") or {}
        return {name: module for name, module in within.items() if isinstance(module, Instance)}

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments it was constructed with, where they were recorded."""
        return dict(self.state.get("_init_kwargs") or {})

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """Parameters and buffers by their names in a state dictionary."""
        own = {**(self.state.get("_parameters") or {}), **(self.state.get("_buffers") or {})}
        found = {prefix + name: value for name, value in own.items() if isinstance(value, Tensor)}
        for name, module in self.modules.items():
            found |= module.tensors(f"{prefix}{name}.")
        return found


def read_pickle(path: Path) -> Any:
    """What a pickle describes, of numbers, containers, tensors and :class:`Instance` alone.

    Raises:
        pickle.UnpicklingError: it names anything else, or is damaged.
    """
    with path.open("rb") as file:
        try:
            return _plain(_Reader(file).load())
        except (AttributeError, TypeError, ValueError, IndexError, KeyError, RecursionError) as error:
            raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error


class _Reader(pickle.Unpickler):
    """An unpickler that knows stand-ins only; made anew for each file, which may alter what it is given."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._known = _stand_ins()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._known:
            return self._known[module, name]
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if module.startswith(_MODELS):
            return _object_of(name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no set of weights needs")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to data outside of itself")


class _Object:
    """Base of what stands in for a class; becomes an :class:`Instance` at the end."""

    kind = ""
    content: Any = None

    def __setstate__(self, state: Any) -> None:
        self.content = state


def _object_of(name: str) -> type[_Object]:
    return type(name, (_Object,), {"kind": name})


def _stand_ins() -> dict[tuple[str, str], Callable[..., Any]]:
    """What answers to each name a pickle of weights may ask for."""

    def tensor(storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Tensor:
        flat = torch.as_tensor(storage)
        size, stride = tuple(map(int, size)), tuple(map(int, stride))
        reach = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1 if all(size) else 0
        if flat.ndim != 1 or offset < 0 or min(stride, default=0) < 0 or reach > len(flat):
            raise pickle.UnpicklingError("a tensor reaches beyond its data")
        return flat.as_strided(size, stride, offset).clone()

    def parameter(data: Tensor, *_: Any) -> Tensor:
        return data

    def storage(data: bytes) -> Tensor:
        loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        typed = loaded if isinstance(loaded, torch.storage.TypedStorage) else None
        if typed is None:
            raise pickle.UnpicklingError("the data of a tensor is no storage")
        return torch.empty(0, dtype=typed.dtype).set_(typed)

    def persistent(meta: Mapping[str, Any]) -> _Object:
        made = _object_of(str(meta["class_name"]))()
        made.content = meta.get("state")
        return made

    def dtype(code: str, *_: Any) -> _Object:
        made = _object_of("dtype")()
        made.kind = str(code)
        return made

    def scalar(of: _Object, data: bytes) -> Any:
        if of.kind not in _NUMPY_SCALARS:
            raise pickle.UnpicklingError(f"a number of type {of.kind!r}")
        return np.frombuffer(data, dtype=np.dtype(of.kind))[0].item()

    def encode(text: str, encoding: str) -> bytes:
        return text.encode("latin1")

    def new(kind: type[_Object], *_: Any) -> _Object:
        return kind()

    class table(dict[Any, Any]):  # noqa: N801 (stands in for a function's result)
        def __setstate__(self, state: Any) -> None:
            """Attributes of a dictionary are no weights."""

    known: dict[tuple[str, str], Callable[..., Any]] = {
        ("torch._utils", "_rebuild_tensor_v2"): tensor,
        ("torch._utils", "_rebuild_parameter"): parameter,
        ("torch.storage", "_load_from_bytes"): storage,
        ("torch_utils.persistence", "_reconstruct_persistent_obj"): persistent,
        ("numpy", "dtype"): dtype,
        ("_codecs", "encode"): encode,
        ("copyreg", "_reconstructor"): new,
        ("builtins", "object"): _object_of("object"),
        ("builtins", "set"): set,
        ("torch", "Size"): tuple,
        ("collections", "OrderedDict"): table,
        ("dnnlib.util", "EasyDict"): table,
    }
    return known | {(m, "scalar"): scalar for m in ("numpy.core.multiarray", "numpy._core.multiarray")}


def _plain(value: Any) -> Any:
    """The value with every stand-in's object turned into an :class:`Instance`."""
    if isinstance(value, _Object):
        state = _plain(value.content)
        return Instance(value.kind, state if isinstance(state, dict) else {})
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return type(value)(_plain(item) for item in value)
    return value
