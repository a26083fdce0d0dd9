"""Choice of the compute device."""

from __future__ import annotations

__all__ = ["resolve_device"]

import torch


def resolve_device(name: str = "auto") -> str:
    """Return ``name``, or for "auto" the first available of CUDA, MPS, XPU and the CPU.

    Raises:
        ValueError: The named device is not available.
    """
    backends = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
    available = [kind for kind, backend in backends.items() if backend.is_available()]
    if name == "auto":
        return next(iter(available), "cpu")
    kind = name.partition(":")[0]
    if kind in backends and kind not in available:
        found = ", ".join([*available, "cpu"])
        raise ValueError(f"device {name} is not available: torch {torch.__version__} finds {found}")
    return name
