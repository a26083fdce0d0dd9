"""Images to train on: a folder, tar shards or a tensor, in an order that is a function of the seed.

Files are decoded once, centre-cropped and resized, to a memory-mapped array of bytes (or at every access,
without a cache). A training sample has a global number, its item: ``step * batch + position``. Which image it
is (:func:`image_of`) and whether it is mirrored (:meth:`ImageData.draw`) are functions of (seed, item)
alone, so neither the number of processes nor an interruption changes what is seen when.

Formats are allow-listed, image bombs and members of a tar that point elsewhere are refused.
"""

from __future__ import annotations

__all__ = ["ImageData", "Images", "image_of", "load_samples", "shards"]

import hashlib
import io
import json
import math
import os
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor
from tqdm import tqdm

from ..random import NoiseStreams, Purpose

Bytes = npt.NDArray[np.uint8]
_FORMATS = ("PNG", "JPEG", "WEBP")
_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp"}
_MOST_PIXELS = 100_000_000


@dataclass(frozen=True)
class _Source:
    """Where one encoded image lies: a file, or ``size`` bytes of a tar from ``offset`` on."""

    name: str
    file: Path
    offset: int
    size: int

    def decode(self, shape: tuple[int, ...]) -> Bytes:
        """The image as bytes (C, H, W); an error names the file."""
        channels, height, width = shape
        try:
            with self.file.open("rb") as file:
                file.seek(self.offset)
                encoded = io.BytesIO(file.read(self.size))
            with Image.open(encoded, formats=_FORMATS) as image:
                if math.prod(image.size) > _MOST_PIXELS:
                    raise ValueError(f"{image.size[0]} x {image.size[1]} pixels are too many")
                flat = _flatten(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB")
            fitted = ImageOps.fit(flat, (width, height), Image.Resampling.LANCZOS)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{self.name} cannot be read as an image: {error}") from error
        return np.asarray(fitted).reshape(height, width, channels).transpose(2, 0, 1)


def _flatten(image: Image.Image, mode: str) -> Image.Image:
    """Grey or colour at 8 bits: 16 bits lose the lower ones, transparency lies on white."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        front = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", front.size, "white"), front)
    return image.convert(mode)


def _is_image(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix.lower() in _SUFFIXES and not path.name.startswith(".")


def _folder_sources(folder: Path) -> list[_Source]:
    files = sorted(path for path in folder.rglob("*") if _is_image(path.name) and path.is_file())
    return [_Source(str(path), path, 0, path.stat().st_size) for path in files]


def _tar_sources(shard: Path) -> list[_Source]:
    """The images of an uncompressed tar, by name. Nothing is extracted; strange members are refused."""
    sources = []
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts or not (member.isfile() or member.isdir()):
                    raise ValueError(f"{shard}: member {member.name!r} is a link, a device or leaves the tar")
                if member.isfile() and _is_image(member.name):
                    place = f"{shard}:{member.name}"
                    sources.append(_Source(place, shard, member.offset_data, member.size))
    except tarfile.TarError as error:
        raise ValueError(f"{shard} is not a readable, uncompressed tar: {error}") from error
    return sorted(sources, key=lambda source: source.name)


class ImageData:
    """Images (C, H, W) in [-1, 1]; make one with :meth:`open` or :meth:`from_tensor`.

    Attributes:
        shape: (C, H, W).
        bad: names of the files that were skipped.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        pixels: Tensor | None = None,
        sources: Sequence[_Source] = (),
        cache: Path | None = None,
        flip: bool = False,
        seed: int = 0,
        bad: Sequence[str] = (),
    ) -> None:
        self.shape, self.bad = shape, tuple(bad)
        self._pixels, self._sources, self._cache = pixels, tuple(sources), cache
        self._flip, self._seed = flip, seed
        if len(self) == 0:
            raise ValueError("there are no images to train on")

    @classmethod
    def open(
        cls,
        path: str | Path | Sequence[str | Path],
        size: int | tuple[int, int],
        channels: int = 3,
        *,
        cache: str | Path | bool = True,
        flip: bool = False,
        seed: int = 0,
        skip_bad: bool = False,
    ) -> ImageData:
        """The images of a folder (png, jpg, webp, at any depth; or tar shards), or of given tar files.

        Args:
            path: a folder, a tar, or several tars.
            size: H = W, or (H, W): centre-cropped to this aspect, then resized.
            channels: 1 or 3.
            cache: folder of the decoded array; True: beside ``path``; False: decode at every access.
            flip: mirror half of the training samples.
            seed: decides which.
            skip_bad: leave out files that cannot be decoded (:attr:`bad`) instead of raising.
        """
        if channels not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, got {channels}")
        shape = (channels, *((size, size) if isinstance(size, int) else size))
        paths = [Path(p) for p in ([path] if isinstance(path, str | Path) else path)]
        sources = [source for p in paths for source in _sources(p)]
        if not sources:
            raise ValueError(f"no {', '.join(sorted(_SUFFIXES))} images in {', '.join(map(str, paths))}")
        if cache is False:
            if skip_bad:
                raise ValueError("skip_bad needs the cache: a bad file is known only once all are decoded")
            return cls(shape, sources=sources, flip=flip, seed=seed)
        folder = paths[0].resolve().with_name(f"{paths[0].name}-cache") if cache is True else Path(cache)
        file = folder / f"images-{_key(sources, shape, skip_bad)}.npy"
        bad = _decode_once(file, sources, shape, skip_bad)
        return cls(shape, sources=sources, cache=file, flip=flip, seed=seed, bad=bad)

    @classmethod
    def from_tensor(cls, images: Tensor, *, flip: bool = False, seed: int = 0) -> ImageData:
        """Images (N, C, *spatial): bytes, or floats in [-1, 1]."""
        if images.dtype != torch.uint8 and not bool((images.abs() <= 1.0).all()):
            raise ValueError("floating-point images must lie in [-1, 1] (bytes may be given as torch.uint8)")
        return cls(tuple(images.shape[1:]), pixels=images, flip=flip, seed=seed)

    def __len__(self) -> int:
        return len(self._sources) - len(self.bad) if self._pixels is None else len(self._pixels)

    @property
    def names(self) -> tuple[str, ...]:
        """File name of every image; none where they came as a tensor."""
        return tuple(Path(s.name.rpartition(":")[2]).name for s in self._sources if s.name not in self.bad)

    def __getitem__(self, index: int) -> Tensor:
        """Image number ``index``, as it is, (C, H, W)."""
        if self._pixels is None and self._cache is not None:
            self._pixels = _map(self._cache)
        if self._pixels is None:
            pixels = torch.from_numpy(self._sources[index].decode(self.shape).copy())
        else:
            pixels = self._pixels[index]
        return pixels.float() / 127.5 - 1.0 if pixels.dtype == torch.uint8 else pixels.float()

    def draw(self, indices: Sequence[int], items: Sequence[int]) -> Tensor:
        """Images of these numbers as training samples ``items``: mirrored, if this is wanted, or not."""
        images = torch.stack([self[index] for index in indices])
        if not self._flip:
            return images
        mirrored = NoiseStreams.of(len(items), self._seed, items).uniform(Purpose.AUGMENTATION) < 0.5
        return torch.where(mirrored.reshape(-1, 1, 1, 1), images.flip(-1), images)

    def describe(self) -> dict[str, Any]:
        """What must not change between the beginning of a run and its continuation."""
        files = hashlib.sha256("\n".join(f"{Path(s.name).name} {s.size}" for s in self._sources).encode())
        about = {"count": len(self), "shape": list(self.shape), "flip": self._flip}
        return about | {"files": files.hexdigest()[:16]}

    def __getstate__(self) -> dict[str, Any]:
        # A memory map would be copied whole to every loader process: each maps the file for itself.
        return self.__dict__ | ({"_pixels": None} if self._cache is not None else {})


def _sources(path: Path) -> list[_Source]:
    if path.is_dir():
        shards = sorted(path.glob("*.tar"))
        return [source for shard in shards for source in _tar_sources(shard)] or _folder_sources(path)
    if path.is_file():
        return _tar_sources(path)
    raise FileNotFoundError(f"{path} is neither a folder nor a tar of images")


def _key(sources: Sequence[_Source], shape: tuple[int, ...], skip_bad: bool) -> str:
    stamps = [(s.name, s.offset, s.size, s.file.stat().st_mtime_ns) for s in sources]
    return hashlib.sha256(repr((stamps, shape, skip_bad)).encode()).hexdigest()[:16]


def _map(file: Path) -> Tensor:
    # Copy-on-write: torch wants writable memory, and nothing written would reach the file.
    return torch.from_numpy(np.load(file, mmap_mode="c", allow_pickle=False))


def _decode_once(file: Path, sources: Sequence[_Source], shape: tuple[int, ...], skip_bad: bool) -> list[str]:
    """Fill the cache unless it is there, and return the names of the bad files."""
    report = file.with_suffix(".json")
    file.parent.mkdir(parents=True, exist_ok=True)
    with _alone(file.with_suffix(".lock")):
        if not report.exists():
            partial = file.with_suffix(".partial")
            pixels = np.lib.format.open_memmap(partial, "w+", np.uint8, (len(sources), *shape))
            bad = _fill(pixels, sources, shape, skip_bad)
            pixels.flush()
            partial.replace(file)
            report.write_text(json.dumps({"bad": bad}), encoding="utf-8")
        return list(json.loads(report.read_text(encoding="utf-8"))["bad"])


def _fill(pixels: Bytes, sources: Sequence[_Source], shape: tuple[int, ...], skip_bad: bool) -> list[str]:
    """Decode into ``pixels``, several files at a time; good images come first and in order."""

    def decode(row: int) -> bool:
        try:
            pixels[row] = sources[row].decode(shape)
        except ValueError:
            if not skip_bad:
                raise
            return False
        return True

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        rows = pool.map(decode, range(len(sources)))
        good = list(tqdm(rows, "decoding", len(sources), disable=None, unit="image"))
    kept = [row for row, is_good in enumerate(good) if is_good]
    for row, source_row in enumerate(kept):
        if row != source_row:
            pixels[row] = pixels[source_row]
    return [source.name for source, is_good in zip(sources, good, strict=True) if not is_good]


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process of a machine at a time; the system releases the lock of a process that died."""
    try:
        import fcntl
    except ImportError:  # Windows: at worst two processes decode the same files
        yield
        return
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Images(Protocol):
    """Images (C, *spatial) in [-1, 1]; ``draw`` and ``describe`` of :class:`ImageData` are optional."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tensor: ...


@lru_cache(maxsize=4)
def _epoch_order(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)


def image_of(item: int, count: int, seed: int) -> int:
    """Which of ``count`` images training sample ``item`` shows: every epoch is a permutation of its own."""
    epoch, position = divmod(item, count)
    return int(_epoch_order(count, seed, epoch)[position])


def shards(steps: range, batch: int, rank: int, world: int, accumulate: int) -> Iterator[list[int]]:
    """The items of process ``rank`` of ``world``: its part of every batch, cut in ``accumulate`` pieces."""
    piece, rest = divmod(batch, world * accumulate)
    if rest or piece == 0:
        raise ValueError(
            f"batch_size {batch} must be a multiple of {world} processes x {accumulate} accumulated pieces"
        )
    for step in steps:
        start = step * batch + rank * (batch // world)
        for part in range(accumulate):
            yield list(range(start + part * piece, start + (part + 1) * piece))


def load_samples(data: Images, seed: int, items: list[int]) -> tuple[Tensor, list[int]]:
    """The training samples of these items, (B, C, *spatial), and the items."""
    indices = [image_of(item, len(data), seed) for item in items]
    if hasattr(data, "draw"):
        return data.draw(indices, items), items
    return torch.stack([data[index] for index in indices]), items
