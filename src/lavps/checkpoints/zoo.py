"""Trained models of the installed package ``lavps-zoo``, found by name and without network."""

from __future__ import annotations

__all__ = ["zoo_model", "zoo_names"]

from importlib.util import find_spec
from pathlib import Path

_PACKAGE = "lavps_zoo"


def _folders() -> list[Path]:
    """Return the folders of the installed package; empty if it is not installed."""
    spec = find_spec(_PACKAGE)
    return [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]


def zoo_names() -> list[str]:
    """Return the names of the installed models, sorted; empty if ``lavps-zoo`` is not installed.

    Example:
        >>> isinstance(zoo_names(), list)
        True
    """
    return sorted(file.parent.name for folder in _folders() for file in folder.glob("*/config.json"))


def zoo_model(name: str | Path) -> Path | None:
    """Return the model folder of a name such as ``"synthfaces64"`` in the installed zoo, or None.

    Example:
        >>> zoo_model("no-such-model") is None
        True
    """
    if str(name) not in zoo_names():
        return None
    return next(folder / name for folder in _folders() if (folder / name / "config.json").is_file())
