"""Image files: decoding, encoding, metadata, and files written atomically."""

from .atomic import write_atomically, write_json
from .decode import read_image
from .encode import encode_image, write_image
from .image import ImageError, ImageFile, Metadata, match_channels

__all__ = [
    "ImageError",
    "ImageFile",
    "Metadata",
    "encode_image",
    "match_channels",
    "read_image",
    "write_atomically",
    "write_image",
    "write_json",
]
