r"""Files in = files out: what an image file holds, kept apart from what a sampler sees.

A sampler wants pixels (C, H, W) in [-1, 1]. A file has more: transparency, a bit depth, a palette, an ICC
profile, EXIF. :func:`~lavps.restoration.read_image` takes a file apart into an :class:`ImageFile`, whose
pixels are restored, and :func:`~lavps.restoration.write_image` puts the result in their place:

.. code-block:: python

    image = read_image("photo.png")
    restored = ...  # (C, H, W) in [-1, 1], of the same or of another size
    write_image("restored.png", restored, like=image)

Level k of n + 1 levels is :math:`2 k / n - 1`, exact enough in float32 for 16 bits: writing what was read
gives the same levels again. What a file cannot be given back as is said in :attr:`ImageFile.notes`, never
passed over in silence.
"""

from __future__ import annotations

__all__ = ["Format", "ImageError", "ImageFile", "Metadata", "match_channels"]

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Format = Literal["PNG", "JPEG", "TIFF", "WEBP", "NPY"]
_BITS = {"bool": 1, "uint8": 8, "uint16": 16, "float16": 16, "float32": 32, "float64": 64}


class ImageError(ValueError):
    """A file that is not read, or an image that is not written; says why and what would help."""


@dataclass(frozen=True)
class Metadata:
    """What a file says beside its pixels.

    Attributes:
        icc: the ICC colour profile.
        exif: EXIF, without the orientation: pixels are read upright.
        xmp: XMP, without the orientation.
        dpi: dots per inch along width and height, as the file has them: another size does not change them.
        text: PNG's text entries, or JPEG's comment, as (name, value).
    """

    icc: bytes | None = None
    exif: bytes | None = None
    xmp: bytes | None = None
    dpi: tuple[float, float] | None = None
    text: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ImageFile:
    """An image file, decoded.

    Attributes:
        pixels: float32 (C, H, W) in [-1, 1], C = 1 (grey) or 3, upright. Arrays of floats may leave the
            range (a noisy measurement does) and are not clipped.
        alpha: float32 (1, H, W) in [0, 1], 0 where transparent; None where all is opaque. It is not restored.
        format: what the file is, by its content.
        mode: how its pixels are laid out: Pillow's names ("1", "L", "LA", "RGB", "RGBA", "P"), or "HW" and
            "CHW" for arrays.
        dtype: of one channel in the file: bool, uint8, uint16, or a float for arrays.
        metadata: what else it says.
        palette: RGBA bytes of its entries, where it has a palette.
        notes: what was converted or left out in reading, or may be in writing, in plain words.
    """

    pixels: Tensor
    alpha: Tensor | None
    format: Format
    mode: str
    dtype: str
    metadata: Metadata = Metadata()
    palette: bytes | None = None
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        """(H, W)."""
        return self.pixels.shape[1], self.pixels.shape[2]

    @property
    def channels(self) -> int:
        """1 or 3, without transparency."""
        return self.pixels.shape[0]

    @property
    def depth(self) -> int:
        """Bits a channel in the file."""
        return _BITS[self.dtype]


def match_channels(pixels: Tensor, channels: int) -> Tensor:
    r"""Pixels (C, H, W) with as many channels as a prior has.

    A grey image under a colour prior is replicated; what is restored is averaged again when it is written.
    The three copies share one noise: to count the measurement once and not three times, state
    :math:`\sqrt 3 \sigma` for a file with noise of standard deviation :math:`\sigma`. Then
    :math:`\sum_c (x_c - y)^2 / (2 \cdot 3 \sigma^2) = (\bar x - y)^2 / (2 \sigma^2) + \ldots`, where the rest
    holds the colours near grey.

    Raises:
        ImageError: the image has colours and the prior knows none.
    """
    if pixels.shape[0] == channels:
        return pixels
    if pixels.shape[0] == 1:
        return pixels.expand(channels, -1, -1)
    raise ImageError(
        f"the image has {pixels.shape[0]} channels and the prior {channels}: use a colour prior, convert the "
        "image to grey, or restore its channels as three grey images (pixels[:, None] is a batch of them)"
    )
