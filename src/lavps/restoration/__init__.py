"""What a practitioner runs: files restored, in and out, by priors on images of any size."""

from .images import ImageError, ImageFile, Metadata, match_channels
from .job import Job, Workshop
from .manifest import Manifest
from .measuring import Measured, Measuring
from .presets import Settings
from .reading import read_image
from .restorer import Restorer, restore
from .tiling import TiledPrior, tiled_model
from .writing import encode_image, write_atomically, write_image

__all__ = [
    "ImageError",
    "ImageFile",
    "Job",
    "Manifest",
    "Measured",
    "Measuring",
    "Metadata",
    "Restorer",
    "Settings",
    "TiledPrior",
    "Workshop",
    "encode_image",
    "match_channels",
    "read_image",
    "restore",
    "tiled_model",
    "write_atomically",
    "write_image",
]
