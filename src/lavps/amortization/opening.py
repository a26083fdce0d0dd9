"""The one way to a prior: ours, or anybody's."""

from __future__ import annotations

__all__ = ["load_prior"]

import sys
from pathlib import Path

import torch

from ..priors import Prior
from ..priors.foreign import LAYOUTS, Options, load_foreign, local_copy
from ..priors.foreign.diffusers import is_diffusers
from .checkpoint import load_model_prior


def load_prior(path: str | Path, device: str | torch.device = "cpu", label: int | None = None) -> Prior:
    """The prior at a path or Hub id, frozen, in float32, with no word about its architecture.

    A model folder of this library is built as its config.json says. A folder of diffusers, and checkpoint
    files of other libraries (:mod:`lavps.priors.foreign`), are recognised; one line on stderr then says what
    was found and what had to be assumed.

    Args:
        path: model folder, folder of diffusers, checkpoint file, or Hub id ("owner/name").
        device: where to put it.
        label: the class, for a class-conditional model of another library; None for no class.

    Raises:
        ValueError: the file is damaged, is refused, or has no known layout; the message then says which
            layouts are nearest and which keys differ.
    """
    found = local_copy(path)
    if found.is_dir() and (found / "config.json").is_file() and not is_diffusers(found):
        if label is not None:
            raise ValueError("label= is for models of other libraries: priors trained here have no classes")
        return load_model_prior(found, device)
    loaded = load_foreign(found, Options(label, device), LAYOUTS)
    print(f"{path}: {loaded.line}", file=sys.stderr)
    return loaded.prior
