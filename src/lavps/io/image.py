r"""Image files: pixels for samplers, and all else that a file holds.

A sampler needs pixels (C, H, W) in [-1, 1]. A file also has transparency, a bit depth, a palette, an ICC
profile and EXIF. :func:`~lavps.io.read_image` returns all of it as an :class:`ImageFile`, and
:func:`~lavps.io.write_image` writes restored pixels with it:

.. code-block:: python

    image = read_image("photo.png")
    restored = ...  # (C, H, W) in [-1, 1], of the same or of another size
    write_image("restored.png", restored, like=image)

Level k of n + 1 levels is :math:`2 k / n - 1`, exact enough in float32 for 16 bits: levels that are read and
written stay the same. :attr:`ImageFile.notes` lists everything that cannot be preserved.
"""

from __future__ import annotations

__all__ = ["Format", "ImageError", "ImageFile", "JPEGCoding", "Metadata", "match_channels"]

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ..image_formats import Format

_BITS = {"bool": 1, "uint8": 8, "uint16": 16, "float16": 16, "float32": 32, "float64": 64}


class ImageError(ValueError):
    """Error of reading or writing an image, with its reason and a remedy."""


@dataclass(frozen=True)
class Metadata:
    """Metadata of an image file.

    Attributes:
        icc: ICC colour profile.
        exif: EXIF, without the orientation, since pixels are read upright.
        xmp: XMP, without the orientation.
        dpi: Dots per inch along width and height; unchanged when the image is resized.
        text: Text entries of PNG, or comment of JPEG, as (name, value).
    """

    icc: bytes | None = None
    exif: bytes | None = None
    xmp: bytes | None = None
    dpi: tuple[float, float] | None = None
    text: tuple[tuple[str, str], ...] = ()


class JPEGCoding(NamedTuple):
    """How a JPEG file was compressed.

    Attributes:
        tables: Quantization tables of luminance and, for colour, of chrominance: 64 numbers each, by rows.
        subsampling: Factors of the chroma subsampling, vertical and horizontal, each 1 or 2.
    """

    tables: tuple[tuple[int, ...], ...]
    subsampling: tuple[int, int]


@dataclass(frozen=True)
class ImageFile:
    """Decoded image file.

    Attributes:
        pixels: Upright pixels in [-1, 1], float32 (C, H, W), C = 1 (grey) or 3. Arrays of floats may exceed
            the range (noisy measurements do) and are not clipped.
        alpha: Opacity in [0, 1], float32 (1, H, W); None if all is opaque. It is not restored.
        format: Format of the content.
        mode: Layout of the pixels: Pillow's name ("1", "L", "LA", "RGB", "RGBA", "P"), or "HW" or "CHW" of
            arrays.
        dtype: Type of one channel in the file: bool, uint8, uint16, or a float for arrays.
        metadata: Metadata of the file.
        palette: RGBA bytes of the palette's entries, if there is one.
        notes: Conversions and losses in reading or writing, for the user.
        coding: Compression of a JPEG file; None for other files, and for turned, CMYK or unusual ones.
    """

    pixels: Tensor
    alpha: Tensor | None
    format: Format
    mode: str
    dtype: str
    metadata: Metadata = Metadata()
    palette: bytes | None = None
    notes: tuple[str, ...] = ()
    coding: JPEGCoding | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.pixels.shape[1], self.pixels.shape[2]

    @property
    def channels(self) -> int:
        """Number of channels without transparency, 1 or 3."""
        return self.pixels.shape[0]

    @property
    def depth(self) -> int:
        """Bits per channel in the file."""
        return _BITS[self.dtype]


def match_channels(pixels: Tensor, channels: int) -> Tensor:
    r"""Return pixels (C, H, W) with as many channels as a prior has.

    A grey image is replicated for a colour prior, and the restored channels are averaged when written. The
    three copies share one noise: to count the measurement once, use :math:`\sqrt 3 \sigma` for noise of
    standard deviation :math:`\sigma`. Then
    :math:`\sum_c (x_c - y)^2 / (2 \cdot 3 \sigma^2) = (\bar x - y)^2 / (2 \sigma^2) + \ldots`, where the rest
    penalizes colours far from grey.

    Raises:
        ImageError: The image is in colour and the prior is grey.

    Example:
        >>> import torch
        >>> match_channels(torch.zeros(1, 8, 8), 3).shape
        torch.Size([3, 8, 8])
    """
    if pixels.shape[0] == channels:
        return pixels
    if pixels.shape[0] == 1:
        return pixels.expand(channels, -1, -1)
    raise ImageError(
        f"the image has {pixels.shape[0]} channels and the prior {channels}: use a colour prior, convert the "
        "image to grey, or restore its channels as three grey images (pixels[:, None] is a batch of them)"
    )
