"""Training images from a folder, tar shards or a tensor, in an order determined by the seed.

Files are decoded once, centre-cropped and resized, to a memory-mapped array of bytes (or at every access
without a cache). A training sample has a global number, its item: ``step * batch + position``. Its image
(:func:`image_of`) and whether it is mirrored (:meth:`ImageData.draw`) are functions of (seed, item), so
neither the number of processes nor an interruption changes the order.

:class:`~lavps.training.crops.RandomCrops` has the same interface, for photographs at native resolution.
"""

from __future__ import annotations

__all__ = ["ImageData", "Images", "image_of", "load_samples", "shards"]

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .augmentation import Augmentation
from .image_sources import ImageSource, cache_file, decode_all, decode_once, files_hash, find_images


class ImageData:
    """Images (C, H, W) in [-1, 1], created by :meth:`open` or :meth:`from_tensor`.

    Attributes:
        shape: Image shape (C, H, W).
        bad: Names of the skipped files.

    Example:
        >>> import torch
        >>> from lavps.training.data import ImageData
        >>> ImageData.from_tensor(torch.zeros(5, 3, 8, 8))[0].shape
        torch.Size([3, 8, 8])
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        pixels: Tensor | None = None,
        sources: Sequence[ImageSource] = (),
        cache: Path | None = None,
        augmentation: Augmentation = Augmentation(),
        bad: Sequence[str] = (),
    ) -> None:
        self.shape, self.bad = shape, tuple(bad)
        self._pixels, self._sources, self._cache = pixels, tuple(sources), cache
        augmentation.check(shape)
        self._augmentation = augmentation
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
        quarter_turns: bool = False,
        seed: int = 0,
        skip_bad: bool = False,
    ) -> ImageData:
        """Open a folder (png, jpg, webp, at any depth; or tar shards) or tar files.

        Args:
            path: Folder, tar, or several tars.
            size: Side H = W, or (H, W); images are centre-cropped to this aspect ratio, then resized.
            channels: Number of channels, 1 or 3.
            cache: Folder of the decoded array; True for beside ``path``, False to decode at every access.
            flip: Mirroring of half of the training samples.
            quarter_turns: Random quarter turns of the training samples, for square images.
            seed: Seed of mirroring and turns.
            skip_bad: Omission of files that cannot be decoded (:attr:`bad`), which otherwise raise.
        """
        if channels not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, got {channels}")
        shape = (channels, *((size, size) if isinstance(size, int) else size))
        sources, paths = find_images(path)
        augmentation = Augmentation(flip, quarter_turns, seed)
        if cache is False:
            if skip_bad:
                raise ValueError("skip_bad needs the cache: a bad file is known only once all are decoded")
            return cls(shape, sources=sources, augmentation=augmentation)
        file = cache_file(cache, paths, sources, shape, skip_bad)
        about = decode_once(file, partial(_write, sources=sources, shape=shape, skip_bad=skip_bad))
        return cls(shape, sources=sources, cache=file, augmentation=augmentation, bad=about["bad"])

    @classmethod
    def from_tensor(
        cls, images: Tensor, *, flip: bool = False, quarter_turns: bool = False, seed: int = 0
    ) -> ImageData:
        """Return the images (N, C, *spatial) of a tensor of bytes, or of floats in [-1, 1]."""
        if images.dtype != torch.uint8 and not bool((images.abs() <= 1.0).all()):
            raise ValueError("floating-point images must lie in [-1, 1] (bytes may be given as torch.uint8)")
        return cls(
            tuple(images.shape[1:]), pixels=images, augmentation=Augmentation(flip, quarter_turns, seed)
        )

    def __len__(self) -> int:
        return len(self._sources) - len(self.bad) if self._pixels is None else len(self._pixels)

    @property
    def names(self) -> tuple[str, ...]:
        """File names of the images; empty for a tensor."""
        return tuple(Path(s.name.rpartition(":")[2]).name for s in self._sources if s.name not in self.bad)

    def __getitem__(self, index: int) -> Tensor:
        """Return image ``index`` without mirroring, shape (C, H, W)."""
        if self._pixels is None and self._cache is not None:
            # Copy-on-write: torch needs writable memory, and the file must not change.
            self._pixels = torch.from_numpy(np.load(self._cache, mmap_mode="c", allow_pickle=False))
        if self._pixels is None:
            pixels = torch.from_numpy(self._sources[index].decode(self.shape).copy())
        else:
            pixels = self._pixels[index]
        return pixels.float() / 127.5 - 1.0 if pixels.dtype == torch.uint8 else pixels.float()

    def draw(self, indices: Sequence[int], items: Sequence[int]) -> Tensor:
        """Return images as training samples ``items``, augmented."""
        return self._augmentation(torch.stack([self[index] for index in indices]), items)

    def describe(self) -> dict[str, Any]:
        """Return JSON values that must not change between a run and its continuation."""
        about = {"count": len(self), "shape": list(self.shape)} | self._augmentation.describe()
        return about | {"files": files_hash(self._sources)}

    def __getstate__(self) -> dict[str, Any]:
        # A memory map would be copied to every loader process: each maps the file itself.
        return self.__dict__ | ({"_pixels": None} if self._cache is not None else {})


def _write(
    file: Path, sources: Sequence[ImageSource], shape: tuple[int, ...], skip_bad: bool
) -> dict[str, Any]:
    """Decode all images into an array (N, C, H, W), good ones first and in order; return the bad files."""
    pixels = np.lib.format.open_memmap(file, "w+", np.uint8, (len(sources), *shape))

    def decode(row: int) -> None:
        pixels[row] = sources[row].decode(shape)

    good = decode_all(sources, decode, skip_bad)
    for row, source_row in enumerate([row for row, is_good in enumerate(good) if is_good]):
        if row != source_row:
            pixels[row] = pixels[source_row]
    pixels.flush()
    return {"bad": [source.name for source, is_good in zip(sources, good, strict=True) if not is_good]}


class Images(Protocol):
    """Images (C, *spatial) in [-1, 1]; ``draw`` and ``describe`` of :class:`ImageData` are optional."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tensor: ...


@lru_cache(maxsize=4)
def _epoch_order(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)


def image_of(item: int, count: int, seed: int) -> int:
    """Return which of ``count`` images sample ``item`` shows; every epoch has its own permutation."""
    epoch, position = divmod(item, count)
    return int(_epoch_order(count, seed, epoch)[position])


def shards(steps: range, batch: int, rank: int, world: int, accumulate: int) -> Iterator[list[int]]:
    """Yield the items of process ``rank`` of ``world``: its part of every batch in ``accumulate`` pieces."""
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
    """Return the training samples of these items, (B, C, *spatial), and the items."""
    indices = [image_of(item, len(data), seed) for item in items]
    if hasattr(data, "draw"):
        return data.draw(indices, items), items
    return torch.stack([data[index] for index in indices]), items
