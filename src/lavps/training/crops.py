"""Random crops of photographs of any size, at their native resolution.

A prior of 64 x 64 patches is trained on windows of large photographs, which keep the detail that resizing
would remove. Photographs are decoded once, to one memory-mapped array of bytes; a crop then reads only its
own pixels. Its position is a function of (seed, item), like its augmentation, so neither the number of
processes nor an interruption changes a sample. One epoch is one crop of every photograph.
"""

from __future__ import annotations

__all__ = ["RandomCrops"]

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..random import NoiseStreams, Purpose
from .augmentation import Augmentation
from .image_sources import (
    Bytes,
    ImageSource,
    cache_file,
    decode_all,
    decode_once,
    files_hash,
    find_images,
)

_TOP, _LEFT = 2, 3  # indices of the draws; Augmentation has 0 and 1


class RandomCrops:
    """Crops (C, H, W) of photographs, in [-1, 1], created by :meth:`open`.

    Attributes:
        shape: Shape (C, H, W) of a crop.
        bad: Names of the skipped files.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from lavps.training.crops import RandomCrops
        >>> folder = Path(tempfile.mkdtemp(), "photos")
        >>> folder.mkdir()
        >>> Image.linear_gradient("L").resize((40, 30)).save(folder / "a.png")
        >>> data = RandomCrops.open(folder, 16, flip=True)
        >>> data.draw([0, 0], items=[0, 1]).shape
        torch.Size([2, 3, 16, 16])
        >>> torch.equal(data.draw([0], items=[1])[0], data.draw([0, 0], items=[0, 1])[1])
        True
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        cache: Path,
        sources: Sequence[ImageSource],
        table: Sequence[tuple[int, int, int]],
        augmentation: Augmentation,
        bad: Sequence[str] = (),
    ) -> None:
        augmentation.check(shape)
        self.shape, self.bad = shape, tuple(bad)
        self._cache, self._sources, self._augmentation = cache, tuple(sources), augmentation
        self._table = np.array(table, dtype=np.int64).reshape(-1, 3)  # offset, height, width
        self._pixels: Bytes | None = None
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
    ) -> RandomCrops:
        """Open the photographs of a folder (png, jpg, webp, at any depth; or tar shards) or of tar files.

        Args:
            path: Folder, tar, or several tars.
            size: Side H = W of a crop, or (H, W).
            channels: Number of channels, 1 or 3.
            cache: Folder of the decoded array; True for beside ``path``. Its size is H W C bytes per image.
            flip: Mirroring of half of the training samples.
            quarter_turns: Random quarter turns of the training samples.
            seed: Seed of crops and augmentation.
            skip_bad: Omission of files that cannot be decoded or are smaller than a crop (:attr:`bad`), which
                otherwise raise.

        Raises:
            ValueError: A file cannot be decoded or is smaller than a crop, or ``cache`` is False.
        """
        if channels not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, got {channels}")
        if cache is False:
            raise ValueError("random crops need the cache: decoding a photograph costs more than a crop")
        shape = (channels, *((size, size) if isinstance(size, int) else size))
        sources, paths = find_images(path)
        file = cache_file(cache, paths, sources, "native", channels, skip_bad)
        about = decode_once(file, partial(_write, sources=sources, channels=channels, skip_bad=skip_bad))
        decoded = [source for source in sources if source.name not in set(about["bad"])]
        kept, table, small = [], [], []
        for source, row in zip(decoded, about["images"], strict=True):
            if row[1] >= shape[1] and row[2] >= shape[2]:
                kept.append(source)
                table.append(tuple(row))
            elif skip_bad:
                small.append(source.name)
            else:
                raise ValueError(
                    f"{source.name} has {row[2]} x {row[1]} pixels, fewer than a crop of {shape[2]} x "
                    f"{shape[1]}: choose smaller crops, or skip such files (skip_bad)"
                )
        augmentation = Augmentation(flip, quarter_turns, seed)
        return cls(shape, file, kept, table, augmentation, [*about["bad"], *small])

    def __len__(self) -> int:
        return len(self._table)

    @property
    def names(self) -> tuple[str, ...]:
        """File names of the photographs."""
        return tuple(Path(source.name.rpartition(":")[2]).name for source in self._sources)

    def __getitem__(self, index: int) -> Tensor:
        """Return the central crop of photograph ``index``, shape (C, H, W)."""
        _, height, width = self._table[index].tolist()
        return self._crops([index], [(height - self.shape[1]) // 2], [(width - self.shape[2]) // 2])[0]

    def draw(self, indices: Sequence[int], items: Sequence[int]) -> Tensor:
        """Return crops of these photographs as training samples ``items``, augmented, (B, C, H, W)."""
        return self._augmentation(self._drawn(indices, items, self._augmentation.seed), items)

    def fixed(self, count: int) -> Tensor:
        """Return ``count`` crops (count, C, H, W) that depend on nothing but their number, for validation.

        Crop i is of photograph i modulo their number, at a random position, and is not augmented.
        """
        return self._drawn([item % len(self) for item in range(count)], range(count), 0)

    def _drawn(self, indices: Sequence[int], items: Sequence[int], seed: int) -> Tensor:
        streams = NoiseStreams.from_seed(len(items), seed, items)
        spare = torch.from_numpy(self._table[list(indices), 1:]) - torch.tensor(self.shape[1:]) + 1
        corners = [
            (streams.uniform(Purpose.AUGMENTATION, index=index) * spare[:, axis]).long().tolist()
            for axis, index in enumerate((_TOP, _LEFT))
        ]
        return self._crops(indices, *corners)

    def _crops(self, indices: Sequence[int], tops: Sequence[int], lefts: Sequence[int]) -> Tensor:
        if self._pixels is None:
            self._pixels = np.load(self._cache, mmap_mode="r", allow_pickle=False)
        channels, rows, columns = self.shape
        crops = np.empty((len(indices), rows, columns, channels), np.uint8)
        for crop, index, top, left in zip(crops, indices, tops, lefts, strict=True):
            offset, height, width = self._table[index].tolist()
            image = self._pixels[offset : offset + height * width * channels].reshape(height, width, channels)
            crop[:] = image[top : top + rows, left : left + columns]
        return torch.from_numpy(crops).permute(0, 3, 1, 2).float().contiguous() / 127.5 - 1.0

    def describe(self) -> dict[str, Any]:
        """Return JSON values that must not change between a run and its continuation."""
        about = {"count": len(self), "shape": list(self.shape), "crop": "random"}
        return about | self._augmentation.describe() | {"files": files_hash(self._sources)}

    def __getstate__(self) -> dict[str, Any]:
        # A memory map would be copied to every loader process: each maps the file itself.
        return self.__dict__ | {"_pixels": None}


def _write(file: Path, sources: Sequence[ImageSource], channels: int, skip_bad: bool) -> dict[str, Any]:
    """Decode all photographs into one array; return its table of (offset, H, W) and the bad files."""
    sizes = [(0, 0)] * len(sources)

    def measure(row: int) -> None:
        sizes[row] = sources[row].native_size()

    decode_all(sources, measure, skip_bad, "reading sizes")
    ends = np.cumsum([height * width * channels for height, width in sizes])
    starts = [0, *ends.tolist()]
    pixels = np.lib.format.open_memmap(file, "w+", np.uint8, (max(1, starts[-1]),))

    def decode(row: int) -> None:
        image = sources[row].decode_native(channels)
        if image.shape[:2] != sizes[row]:
            raise ValueError(
                f"{sources[row].name} cannot be read as an image: its header states another size"
            )
        pixels[starts[row] : starts[row + 1]] = image.reshape(-1)

    good = decode_all(sources, decode, skip_bad)
    pixels.flush()
    rows = list(zip(sources, good, starts, sizes, strict=False))
    return {
        "bad": [source.name for source, is_good, _, _ in rows if not is_good],
        "images": [[start, *size] for _, is_good, start, size in rows if is_good],
    }
