"""Checkpoints: model folders of this library, and checkpoints of other libraries as priors."""

from .folder import ModelConfig, read_config, save_model
from .hub import local_copy
from .layout import Layout, Loaded, LoadOptions, UnknownLayoutError
from .prior import load_prior, save_prior
from .zoo import zoo_model, zoo_names

__all__ = [
    "Layout",
    "LoadOptions",
    "Loaded",
    "ModelConfig",
    "UnknownLayoutError",
    "load_prior",
    "local_copy",
    "read_config",
    "save_model",
    "save_prior",
    "zoo_model",
    "zoo_names",
]
