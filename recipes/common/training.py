"""Calls of ``lavps train`` from Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lavps.cli import main


def arguments(kind: str, options: Mapping[str, Any], cpu: bool = True) -> list[str]:
    """Return the arguments of ``lavps train KIND``."""
    words = [word for name, value in options.items() for word in (f"--{name}", *str(value).split())]
    return ["train", kind, *words, *(["--cpu"] if cpu else [])]


def train(kind: str, options: Mapping[str, Any]) -> None:
    """Train a model, or resume its training, on the CPU."""
    main(arguments(kind, options))
