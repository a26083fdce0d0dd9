"""Choice of the compute device."""

from __future__ import annotations

__all__ = ["resolve_device"]

import torch


def resolve_device(name: str = "auto") -> str:
    """Return ``name``, or for "auto" the first available of CUDA, MPS, XPU and the CPU."""
    if name != "auto":
        return name
    backends = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
    return next((device for device, backend in backends.items() if backend.is_available()), "cpu")
