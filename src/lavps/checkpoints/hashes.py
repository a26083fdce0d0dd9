"""Hashes that identify weights and files."""

from __future__ import annotations

__all__ = ["file_hash", "tensors_hash", "weights_hash"]

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of names, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).contiguous()
        digest.update(f"{name}{tuple(values.shape)}".encode())
        digest.update(values.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def weights_hash(module: nn.Module) -> str:
    """Return the sha256 of a module's names, shapes and values; equal for bfloat16 values in float32."""
    return tensors_hash(module.state_dict())


def file_hash(path: Path) -> str:
    """Return the sha256 of a regular file, read in blocks."""
    digest = hashlib.sha256()
    if not path.is_file() and path.exists():  # a pipe or a device may have no end
        raise ValueError(f"{path} is no regular file")
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
