"""What a practitioner runs: image files in and out, priors on images of any size."""

from .images import ImageError, ImageFile, Metadata, match_channels
from .reading import read_image
from .tiling import TiledPrior
from .writing import encode_image, write_atomically, write_image

__all__ = [
    "ImageError",
    "ImageFile",
    "Metadata",
    "TiledPrior",
    "encode_image",
    "match_channels",
    "read_image",
    "write_atomically",
    "write_image",
]
