"""Settings of the tests against other libraries.

deepinv and azula's plugins import torchvision. Where its compiled operators do not belong to the installed
torch, the import stops at two names that nothing here calls: declaring them is enough.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

_DECLARED: list[torch.library.Library] = []  # a declaration lives as long as its library


def _has(name: str) -> bool:
    try:
        torch._C._dispatch_find_schema_or_throw(f"torchvision::{name}", "")
    except RuntimeError:
        return False
    return True


if find_spec("torchvision") is not None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not _has(name):
            library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    _DECLARED.append(library)
