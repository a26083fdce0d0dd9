"""What tells one set of weights from another."""

from __future__ import annotations

__all__ = ["file_hash", "tensors_hash", "weights_hash"]

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """sha256 of names, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).contiguous()
        digest.update(f"{name}{tuple(values.shape)}".encode())
        digest.update(values.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def weights_hash(module: nn.Module) -> str:
    """sha256 of a module's names, shapes and values; the same for bfloat16 values held as float32."""
    return tensors_hash(module.state_dict())


def file_hash(path: Path) -> str:
    """sha256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
