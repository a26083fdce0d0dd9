"""Overlapping windows: priors and inference models of one size for images of any size."""

from .tiled import TiledPrior, tiled_model

__all__ = ["TiledPrior", "tiled_model"]
