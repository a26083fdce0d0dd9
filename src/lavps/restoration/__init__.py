"""What a practitioner runs: image files in and out, priors on images of any size."""

from .tiling import TiledPrior

__all__ = ["TiledPrior"]
