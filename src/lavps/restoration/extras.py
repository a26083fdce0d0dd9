"""Libraries that are not part of the core: imported when used, and named when missing."""

from __future__ import annotations

__all__ = ["require"]

import importlib
from typing import Any


def require(module: str, extra: str) -> Any:
    """The module, or an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f'{module.partition(".")[0]} is not installed: pip install "lavps[{extra}]"'
        ) from error
