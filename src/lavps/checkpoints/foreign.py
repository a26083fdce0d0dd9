"""Checkpoints of other libraries as priors: :func:`load_foreign` recognizes the layout of a file.

Each layout has its module. Properties that the tensors do not determine (number of heads, noise schedule)
are those of the library's published models, and are reported in the line that comes with every prior.
"""

from __future__ import annotations

__all__ = ["LAYOUTS", "load_foreign"]

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .adm import ADM
from .diffusers import is_diffusers, load_diffusers
from .edm import EDM_LAYOUTS
from .edm2 import EDM2
from .layout import Layout, Loaded, LoadOptions, matching
from .reading import read_checkpoint

LAYOUTS: tuple[Layout, ...] = (ADM, *EDM_LAYOUTS, EDM2)


def load_foreign(path: Path, options: LoadOptions, layouts: Sequence[Layout] = LAYOUTS) -> Loaded:
    """Return the prior in a file or folder of another library.

    Args:
        path: Checkpoint file or diffusers folder.
        options: Class label and device.
        layouts: Supported layouts.
    """
    if path.is_dir():
        if is_diffusers(path):
            return load_diffusers(path, options)
        suffixes = (".safetensors", ".pt", ".pth", ".pkl")
        files = [file for file in sorted(path.iterdir()) if file.suffix in suffixes]
        if len(files) != 1:
            raise FileNotFoundError(
                f"{path} is neither a model folder (config.json) nor a diffusers folder (model_index.json), "
                f"and has {len(files)} checkpoint files: pass the path of one of them"
            )
        path = files[0]
    checkpoint = read_checkpoint(path)
    loaded = matching(checkpoint, layouts).load(checkpoint, options)
    return replace(loaded, line=loaded.line + (", averaged weights" if checkpoint.averaged else ""))
