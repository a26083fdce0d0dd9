"""A tiny prior with random weights, for measurements of everything around the network."""

from __future__ import annotations

from pathlib import Path

import lavps
from lavps.checkpoints.folder import ModelConfig, save_model
from lavps.nn import build_seeded

NETWORK = {"kind": "unet", "widths": [16], "depth": 1, "attention": [], "head_dim": 16, "condition_width": 16}


def write_tiny_prior(folder: Path, size: int) -> Path:
    """Write a prior of colour images of this size; return its folder."""
    description = NETWORK | {"in_channels": 3, "out_channels": 3}
    config = ModelConfig("prior", description, lavps.Flow(), (3, size, size), "velocity", "time")
    save_model(folder, build_seeded(description, 0), config)
    return folder
