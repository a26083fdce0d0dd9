"""Reading of pickles without executing their code.

A pickle is a program that calls functions of installed libraries, and EDM's files also carry the source code
of their networks. Here every global that a pickle refers to is replaced by a harmless substitute: tensors are
rebuilt from their bytes, objects become an :class:`Instance` (class name and attributes), and any other
global raises an error. The source code in the file is ignored.
"""

from __future__ import annotations

__all__ = ["Instance", "read_pickle"]

import io
import math
import pickle
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

_NUMPY_SCALARS = {"f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "b1"}
# Modules of network classes, all replaced by the same substitute.
_MODELS = ("torch.nn.modules.", "models.", "training.", "k_diffusion.")
_MAX_MODULES, _MAX_NAME = 100_000, 1000
_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}


@dataclass
class Instance:
    """A pickled object without its behaviour.

    Attributes:
        kind: Name of its class.
        state: Attributes by name.
    """

    kind: str
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def modules(self) -> dict[str, Instance]:
        """Submodules by name."""
        within = self.state.get("_modules") or {}
        return {name: module for name, module in within.items() if isinstance(module, Instance)}

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the constructor, if recorded."""
        return dict(self.state.get("_init_kwargs") or {})

    def tensors(self) -> dict[str, Tensor]:
        """Return parameters and buffers by their names in a state dictionary."""
        found: dict[str, Tensor] = {}
        waiting, visited = [("", self)], 0
        while waiting:
            prefix, module = waiting.pop()
            visited += 1
            if visited > _MAX_MODULES or len(prefix) > _MAX_NAME:  # a module may hold itself, or one twice
                raise pickle.UnpicklingError(f"it has more than {_MAX_MODULES} modules")
            own = {**(module.state.get("_parameters") or {}), **(module.state.get("_buffers") or {})}
            found |= {f"{prefix}{name}": value for name, value in own.items() if isinstance(value, Tensor)}
            waiting += [(f"{prefix}{name}.", inner) for name, inner in reversed(module.modules.items())]
        return found


def read_pickle(path: Path) -> Any:
    """Return the content of a pickle as numbers, containers, tensors and :class:`Instance` objects.

    Raises:
        pickle.UnpicklingError: The pickle refers to anything else, or is damaged.
    """
    with path.open("rb") as file:
        try:
            _require_bounded(file, path.stat().st_size)
            return _plain(_PickleReader(file).load(), {})
        except (
            AttributeError, TypeError, ValueError, LookupError, RecursionError, MemoryError, OverflowError,
        ) as error:  # fmt: skip
            raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error


def _require_bounded(file: BinaryIO, size: int) -> None:
    """Raise an error if a pickle refers to more objects than it has bytes: the reader allocates for them."""
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name in ("PUT", "LONG_BINPUT") and not 0 <= int(argument or 0) <= size:
            raise pickle.UnpicklingError(f"it refers to an object of number {argument}")
    file.seek(0)


class _PickleReader(pickle.Unpickler):
    """An unpickler restricted to substitutes, created per file since a pickle may alter them."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._known = _substitutes()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._known:
            return self._known[module, name]
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if module.startswith(_MODELS):
            return _object_of(name)
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which weights do not need")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to data outside of itself")


class _Object:
    """Base of the substitutes of classes, converted to :class:`Instance` at the end."""

    kind = ""
    content: Any = None

    def __setstate__(self, state: Any) -> None:
        self.content = state


def _object_of(name: str) -> type[_Object]:
    return type(name, (_Object,), {"kind": name})


def _substitutes() -> dict[tuple[str, str], Callable[..., Any]]:
    """Return the substitutes of all globals that a pickle of weights may refer to."""

    def tensor(storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Tensor:
        flat = torch.as_tensor(storage)
        size, stride = tuple(map(int, size)), tuple(map(int, stride))
        end = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1 if all(size) else 0
        if flat.ndim != 1 or offset < 0 or min(stride, default=0) < 0 or end > len(flat):
            raise pickle.UnpicklingError("a tensor reaches beyond its data")
        if math.prod(size) > len(flat):
            raise pickle.UnpicklingError(f"a tensor {size} is larger than its data")
        return flat.as_strided(size, stride, offset).clone()

    def storage(data: bytes) -> Tensor:
        loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if not isinstance(loaded, torch.storage.TypedStorage):
            raise pickle.UnpicklingError("the data of a tensor is no storage")
        return torch.empty(0, dtype=loaded.dtype).set_(loaded)

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

    class table(dict[Any, Any]):  # noqa: N801 (stands in for dictionary types)
        def __setstate__(self, state: Any) -> None:
            """Ignore attributes of a dictionary."""

    known: dict[tuple[str, str], Callable[..., Any]] = {
        ("torch._utils", "_rebuild_tensor_v2"): tensor,
        ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
        ("torch.storage", "_load_from_bytes"): storage,
        ("torch_utils.persistence", "_reconstruct_persistent_obj"): persistent,
        ("numpy", "dtype"): dtype,
        ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
        ("copyreg", "_reconstructor"): lambda kind, *_: kind(),
        ("builtins", "object"): _object_of("object"),
        ("builtins", "set"): set,
        ("torch", "Size"): tuple,
        ("collections", "OrderedDict"): table,
        ("dnnlib.util", "EasyDict"): table,
    }
    return known | {(m, "scalar"): scalar for m in ("numpy.core.multiarray", "numpy._core.multiarray")}


def _plain(value: Any, known: dict[int, Any]) -> Any:
    """Convert the substitutes' objects within a value to :class:`Instance`.

    Args:
        value: Content of a pickle.
        known: Converted values by the identity of the original, so that shared ones are converted once.
    """
    if id(value) in known:
        return known[id(value)]
    converted = value
    if isinstance(value, _Object):
        state = _plain(value.content, known)
        converted = Instance(value.kind, state if isinstance(state, dict) else {})
    elif isinstance(value, dict):
        converted = {key: _plain(item, known) for key, item in value.items()}
    elif isinstance(value, (list, tuple, set)):
        converted = type(value)(_plain(item, known) for item in value)
    known[id(value)] = converted
    return converted
