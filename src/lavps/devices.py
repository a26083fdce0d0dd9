"""Choice of the compute device, and the memory of a CPU."""

from __future__ import annotations

__all__ = [
    "ProcessMemory",
    "free_memory",
    "is_out_of_memory",
    "keep_freed_memory",
    "process_memory",
    "resolve_device",
]

import ctypes
import gc
import sys
from pathlib import Path
from typing import NamedTuple

import torch

_STATUS = Path("/proc/self/status")
_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "could not create a primitive",  # oneDNN, which gives no reason
    "could not create a memory",
    "could not execute a primitive",
)
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of glibc's mallopt


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


def keep_freed_memory() -> None:
    """Let the process reuse the memory of large tensors that it freed.

    By default glibc returns it to the system and requests it again, which costs page faults at every step of
    a training on a CPU. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)


class ProcessMemory(NamedTuple):
    """Memory of this process in bytes.

    Attributes:
        used: Memory in use.
        peak: Largest memory in use until now.
    """

    used: int
    peak: int


def process_memory() -> ProcessMemory | None:
    """Return the memory of this process; None where it is unknown, other than on Linux."""
    if not _STATUS.exists():
        return None
    status = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return ProcessMemory(*(1024 * int(status[name].split()[0]) for name in ("VmRSS", "VmHWM")))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on the CPU or an accelerator."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS)


def free_memory() -> None:
    """Free unused memory: garbage, the cache of torch, and that of the C library."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
