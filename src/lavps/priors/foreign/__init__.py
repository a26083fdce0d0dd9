"""Other people's checkpoints as priors, with no flags: :func:`load_foreign` sees what a file is.

One module per layout. What tensors cannot tell (the number of heads, the chain of variances) is taken from
the library's published models and said in the line that comes with every prior.
"""

from __future__ import annotations

__all__ = [
    "LAYOUTS",
    "Layout",
    "Loaded",
    "Options",
    "UnknownLayoutError",
    "load_foreign",
    "local_copy",
]

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .adm import ADM
from .diffusers import is_diffusers, load_diffusers
from .edm import EDM_LAYOUTS
from .edm2 import EDM2
from .hub import local_copy
from .layout import Layout, Loaded, Options, UnknownLayoutError, matching
from .reading import read_checkpoint

LAYOUTS: tuple[Layout, ...] = (ADM, *EDM_LAYOUTS, EDM2)


def load_foreign(path: Path, options: Options, layouts: Sequence[Layout] = LAYOUTS) -> Loaded:
    """The prior in a file or folder of another library.

    Args:
        path: a checkpoint file, or a folder of diffusers.
        options: the class and the device.
        layouts: the kinds of files that are known.
    """
    if path.is_dir():
        if is_diffusers(path):
            return load_diffusers(path, options)
        files = [
            file for file in sorted(path.iterdir()) if file.suffix in (".safetensors", ".pt", ".pth", ".pkl")
        ]
        if len(files) != 1:
            raise FileNotFoundError(
                f"{path} is neither a model folder (config.json), nor one of diffusers (model_index.json), "
                f"and has {len(files)} checkpoint files: name one of them"
            )
        path = files[0]
    checkpoint = read_checkpoint(path)
    loaded = matching(checkpoint, layouts).load(checkpoint, options)
    return replace(loaded, line=loaded.line + (", averaged weights" if checkpoint.averaged else ""))
