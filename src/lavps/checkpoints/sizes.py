"""Bounds of what a model file may claim, checked before anything of that size is built or read.

A configuration of a few bytes can describe a network of any size. It is compared with the weights that are
present: a network is first built on the ``meta`` device, which allocates nothing.
"""

from __future__ import annotations

__all__ = [
    "SMALL_FILE",
    "read_text",
    "require_checkpoint",
    "require_expanded",
    "require_network",
    "weights_in",
]

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ..io.regular import require_file
from ..nn import build_network

SMALL_FILE = 1 << 24  # maximum size of a configuration in bytes
_LARGEST = 1 << 16  # maximum width, number of classes, ...
_LONGEST = 64  # maximum number of levels; a schedule is not part of a network's description
# Numbers of modules, each of which has at least one tensor.
_COUNTS = ("depth", "depths", "mapping_depth", "blocks", "layers_per_block", "num_layers")
_SLACK = 1 << 16  # values that a network may have beyond those of a checkpoint of another library


def read_text(path: Path) -> str:
    """Return the text of a configuration file of bounded size."""
    return require_file(path, SMALL_FILE).read_text(encoding="utf-8")


def weights_in(file: Path) -> tuple[int, int]:
    """Return the numbers of tensors and of values in a safetensors file, from its header."""
    try:
        with safe_open(require_file(file), framework="pt") as opened:
            shapes = [opened.get_slice(name).get_shape() for name in opened.keys()]  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    return len(shapes), sum(torch.Size(shape).numel() for shape in shapes)


def require_network(
    description: Mapping[str, Any],
    tensors: int,
    values: int,
    source: Path,
    build: Callable[[Mapping[str, Any]], nn.Module] = build_network,
) -> None:
    """Raise ValueError if a network is larger than the weights that are present.

    Args:
        description: Description of the network.
        tensors: Number of tensors that are present.
        values: Number of values in these tensors.
        source: File of the description, for the message.
        build: Function that builds the network.
    """
    for name, value in description.items():
        _require_bounded(name, value, tensors if name in _COUNTS else _LARGEST, source)
    try:
        with torch.device("meta"):
            network = build(description)
    except (TypeError, ValueError, RuntimeError, ArithmeticError, LookupError, AttributeError) as error:
        raise ValueError(f"{source} describes no network: {error}") from error
    needed = sum(value.numel() for value in network.state_dict().values())
    if needed > values:
        raise ValueError(f"{source} describes a network of {needed} values, its weights have {values}")


def require_checkpoint(description: Mapping[str, Any], tensors: Mapping[str, Tensor], source: Path) -> None:
    """Raise ValueError if the network of another library's checkpoint is much larger than its tensors."""
    values = 2 * sum(value.numel() for value in tensors.values()) + _SLACK
    require_network(description, len(tensors), values, source)


def _require_bounded(name: str, value: Any, most: int, source: Path) -> None:
    if isinstance(value, list | tuple):
        if len(value) > _LONGEST:
            raise ValueError(f"{source}: {name} has {len(value)} entries, more than {_LONGEST}")
        for part in value:
            _require_bounded(name, part, most, source)
    elif isinstance(value, int | float) and value != float("inf") and not abs(value) <= most:
        raise ValueError(f"{source}: {name} is {value}, more than {most}")


def require_expanded(tensors: Mapping[str, Tensor], size: int) -> None:
    """Raise ValueError if tensors claim more values than their data, or much more than their file.

    Args:
        tensors: Tensors of a file by name.
        size: Size of the file in bytes.
    """
    total = 0
    for name, tensor in tensors.items():
        needed = tensor.numel() * tensor.element_size()
        total += needed
        if needed > tensor.untyped_storage().nbytes() or total > 4 * size + _SLACK:
            raise ValueError(f"the tensor {name} {tuple(tensor.shape)} is larger than its data")
