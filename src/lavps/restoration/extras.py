"""Libraries that are not part of the core: imported when used, and named when missing."""

from __future__ import annotations

__all__ = ["require", "require_ray"]

import importlib
import os
from typing import Any


def require(module: str, extra: str) -> Any:
    """The module, or an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f'{module.partition(".")[0]} is not installed: pip install "lavps[{extra}]"'
        ) from error


def require_ray(extra: str) -> Any:
    """Ray, which then says little and reports to nobody, unless the environment says otherwise."""
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return require("ray", extra)
