"""Encoded images in folders and tar shards, and their decoding to bytes, once.

Only listed formats are read; decompression bombs and tar members outside the archive raise an error.
"""

from __future__ import annotations

__all__ = ["Bytes", "ImageSource", "cache_file", "decode_all", "decode_once", "files_hash", "find_images"]

import hashlib
import io
import json
import math
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps
from tqdm import tqdm

from ..image_formats import SUFFIXES, is_image
from ..io.atomic import claim, write_json

Bytes = npt.NDArray[np.uint8]
_FORMATS = ("PNG", "JPEG", "WEBP")
_SUFFIXES = {suffix for suffix, format in SUFFIXES.items() if format in _FORMATS}
_MOST_PIXELS = 100_000_000
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)  # EXIF tag, and its values that exchange height and width


@dataclass(frozen=True)
class ImageSource:
    """An encoded image: ``size`` bytes of a file, or of a tar from ``offset``."""

    name: str
    file: Path
    offset: int
    size: int

    def decode(self, shape: tuple[int, ...]) -> Bytes:
        """Return the image, centre-cropped and resized, as bytes (C, H, W); errors name the file."""
        channels, height, width = shape
        with self._opened() as image:
            flat = _flatten(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB")
            fitted = ImageOps.fit(flat, (width, height), Image.Resampling.LANCZOS)
        return np.asarray(fitted).reshape(height, width, channels).transpose(2, 0, 1)

    def decode_native(self, channels: int) -> Bytes:
        """Return the image at its native resolution as bytes (H, W, C); errors name the file."""
        with self._opened() as image:
            flat = _flatten(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB")
        return np.asarray(flat).reshape(flat.height, flat.width, channels)

    def native_size(self) -> tuple[int, int]:
        """Return (H, W) at native resolution from the header; errors name the file."""
        with self._opened() as image:
            turned = image.getexif().get(_ORIENTATION) in _TURNED
            return (image.width, image.height) if turned else (image.height, image.width)

    @contextmanager
    def _opened(self) -> Iterator[Image.Image]:
        """Open the image; errors in the block become a ValueError that names the file."""
        try:
            with self.file.open("rb") as file:
                file.seek(self.offset)
                encoded = io.BytesIO(file.read(self.size))
            with Image.open(encoded, formats=_FORMATS) as image:
                if math.prod(image.size) > _MOST_PIXELS:
                    raise ValueError(f"{image.size[0]} x {image.size[1]} pixels are too many")
                yield image
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{self.name} cannot be read as an image: {error}") from error


def _flatten(image: Image.Image, mode: str) -> Image.Image:
    """Convert to 8-bit grey or colour: 16 bits lose the lower ones, transparency becomes white."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        front = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", front.size, "white"), front)
    return image.convert(mode)


def find_images(path: str | Path | Sequence[str | Path]) -> tuple[list[ImageSource], list[Path]]:
    """Return the images of a folder (png, jpg, webp, at any depth; or tar shards) or of tars, and the paths.

    Raises:
        ValueError: There are no images, or a tar is unreadable or unsafe.
    """
    paths = [Path(p) for p in ([path] if isinstance(path, str | Path) else path)]
    sources = [source for p in paths for source in _sources(p)]
    if not sources:
        raise ValueError(f"no {', '.join(sorted(_SUFFIXES))} images in {', '.join(map(str, paths))}")
    return sources, paths


def _sources(path: Path) -> list[ImageSource]:
    if path.is_dir():
        if shards := [source for shard in sorted(path.glob("*.tar")) for source in _tar_sources(shard)]:
            return shards
        files = sorted(file for file in path.rglob("*") if is_image(file.name, _SUFFIXES) and file.is_file())
        return [ImageSource(str(file), file, 0, file.stat().st_size) for file in files]
    if path.is_file():
        return _tar_sources(path)
    raise FileNotFoundError(f"{path} is neither a folder nor a tar of images")


def _tar_sources(shard: Path) -> list[ImageSource]:
    """Return the images of an uncompressed tar by name; raise for links and unsafe paths."""
    sources = []
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts or not (member.isfile() or member.isdir()):
                    raise ValueError(f"{shard}: member {member.name!r} is a link, a device or leaves the tar")
                if member.isfile() and is_image(member.name, _SUFFIXES):
                    source = ImageSource(f"{shard}:{member.name}", shard, member.offset_data, member.size)
                    sources.append(source)
    except tarfile.TarError as error:
        raise ValueError(f"{shard} is not a readable, uncompressed tar: {error}") from error
    return sorted(sources, key=lambda source: source.name)


def files_hash(sources: Sequence[ImageSource]) -> str:
    """Return a hash of the names and sizes of the files."""
    text = "\n".join(f"{Path(source.name).name} {source.size}" for source in sources)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cache_file(
    cache: str | Path | Literal[True], paths: Sequence[Path], sources: Sequence[ImageSource], *key: object
) -> Path:
    """Return the file of decoded images, whose name changes with the sources and ``key``.

    Args:
        cache: Folder of the file; True for beside the first path.
        paths: Paths of the images.
        sources: Images.
        key: Further values that the decoded images depend on.
    """
    folder = paths[0].resolve().with_name(f"{paths[0].name}-cache") if cache is True else Path(cache)
    stamps = [(s.name, s.offset, s.size, s.file.stat().st_mtime_ns) for s in sources]
    return folder / f"images-{hashlib.sha256(repr((stamps, *key)).encode()).hexdigest()[:16]}.npy"


def decode_once(file: Path, write: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Write the cache unless it exists, and return the JSON values that ``write`` returned."""
    report = file.with_suffix(".json")
    file.parent.mkdir(parents=True, exist_ok=True)
    with claim(file.with_suffix(".lock")):
        try:
            about = dict(json.loads(report.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # not there yet, or damaged
            partial = file.with_suffix(".partial")
            about = write(partial)
            partial.replace(file)
            write_json(report, about)
    return about


def decode_all(
    sources: Sequence[ImageSource], decode: Callable[[int], None], skip_bad: bool, label: str = "decoding"
) -> list[bool]:
    """Call ``decode`` for every row in parallel, and return which rows are good.

    Args:
        sources: Images.
        decode: Function of the row that raises ValueError for a bad file.
        skip_bad: Omission of bad files, which otherwise raise.
        label: Label of the progress bar.
    """

    def attempt(row: int) -> bool:
        try:
            decode(row)
        except ValueError:
            if not skip_bad:
                raise
            return False
        return True

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        rows = pool.map(attempt, range(len(sources)))
        return list(tqdm(rows, label, len(sources), disable=None, unit="image"))
