r"""Windows of an image: positions, weights, and how they are cut out and put back.

Along an axis, windows start at even distances and overlap. Their weights are squared sines, 0 at a window's
border, divided by their sum: a partition of unity, :math:`\sum_i \phi_i = 1`. The weights of a grid are
products of those along its axes.
"""

from __future__ import annotations

__all__ = [
    "Window",
    "add",
    "chunks_of",
    "continued",
    "cut",
    "cut_back",
    "reflected",
    "rows_of",
    "seam_ratio",
    "starts_along",
    "weighted",
    "weights_along",
    "windows_of",
]

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product

import torch
from torch import Tensor


@dataclass(frozen=True)
class Window:
    """Position of a window in (C, *spatial), and one weight vector per spatial axis."""

    place: tuple[slice, ...]
    weights: tuple[Tensor, ...]

    @property
    def weight(self) -> Tensor:
        """phi_i on the window, (*spatial), float64."""
        weight = torch.ones((), dtype=torch.float64)
        for along in self.weights:
            weight = weight.unsqueeze(-1) * along
        return weight


def reflected(x: Tensor, axis: int, size: int) -> Tensor:
    """Extend x by reflection on both sides to at least ``size`` pixels along an axis."""
    length = x.shape[axis]
    if length >= size:
        return x
    place = torch.arange(size, device=x.device) - (size - length) // 2
    period = max(2 * (length - 1), 1)
    place = place.remainder(period)
    return x.index_select(axis, torch.minimum(place, period - place) if length > 1 else 0 * place)


def continued(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Extend (B, C, *spatial) by reflection to at least these sizes along the spatial axes."""
    if len(sizes) != x.ndim - 2:
        raise ValueError(f"a window of {tuple(sizes)} pixels does not fit images with {x.ndim - 2} axes")
    for axis, size in enumerate(sizes, start=2):
        x = reflected(x, axis, size)
    return x


def cut_back(x: Tensor, spatial: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Return the centre (B, C, *spatial): the inverse of :func:`continued`."""
    for axis, (length, size) in enumerate(zip(spatial, sizes, strict=True), start=2):
        x = x.narrow(axis, max(size - length, 0) // 2, length)
    return x


def starts_along(length: int, size: int, overlap: int, shift: float) -> list[int]:
    """Return starts of windows that cover an axis and overlap by ``overlap`` pixels or more."""
    last, stride = length - size, size - overlap
    if last == 0:
        return [0]
    if shift == 0.0:  # at even distances
        count = math.ceil(last / stride)
        return [round(last * i / count) for i in range(count + 1)]
    first = -int(shift * stride)
    return sorted({min(max(start, 0), last) for start in range(first, last + stride, stride)})


def weights_along(length: int, size: int, starts: Sequence[int]) -> list[Tensor]:
    """Return the partition of unity along an axis: one weight vector per window, float64."""
    bump = torch.sin(math.pi * (torch.arange(size, dtype=torch.float64) + 0.5) / size).square()
    total = torch.zeros(length, dtype=torch.float64)
    for start in starts:
        total[start : start + size] += bump
    return [bump / total[start : start + size] for start in starts]


def windows_of(
    spatial: Sequence[int], sizes: Sequence[int], overlap: int, shift: Sequence[float]
) -> list[Window]:
    """Return all windows of an image, row by row."""
    axes = []
    for length, size, part in zip(spatial, sizes, shift, strict=True):
        starts = starts_along(length, size, overlap, part)
        slices = [slice(start, start + size) for start in starts]
        axes.append(list(zip(slices, weights_along(length, size, starts), strict=True)))
    return [
        Window((slice(None), *(place for place, _ in parts)), tuple(weight for _, weight in parts))
        for parts in product(*axes)
    ]


def chunks_of(rows: int, windows: list[list[Window]], batch: int) -> Iterator[list[tuple[int, Window]]]:
    """Yield (row, window) pairs, ``batch`` at a time."""
    pairs = ((row, window) for row in range(rows) for window in windows[row % len(windows)])
    while chunk := list(islice(pairs, batch)):
        yield chunk


def cut(x: Tensor, chunk: Sequence[tuple[int, Window]]) -> Tensor:
    """Return the windows of a chunk as a batch."""
    return torch.stack([x[row][window.place] for row, window in chunk])


def rows_of(t: Tensor, chunk: Sequence[tuple[int, Window]]) -> Tensor:
    """Return the times of a chunk's windows, if every row has its own."""
    return t if t.ndim == 0 else t[[row for row, _ in chunk]]


def add(x: Tensor, parts: Tensor, chunk: Sequence[tuple[int, Window]]) -> None:
    """Add the parts to their windows in place: the adjoint of :func:`cut`."""
    for (row, window), part in zip(chunk, parts, strict=True):
        x[row][window.place] += part


def weighted(parts: Tensor, chunk: Sequence[tuple[int, Window]]) -> Tensor:
    """Multiply the windows of a chunk by their weights phi_i."""
    return parts * torch.stack([window.weight for _, window in chunk]).unsqueeze(1).to(parts)


def seam_ratio(x: Tensor, window: int, overlap: int, block: int = 1) -> float:
    """Return the mean difference of neighbours across borders of windows, relative to that elsewhere.

    Args:
        x: Images (..., H, W).
        window: Side of a window.
        overlap: Minimum overlap of neighbouring windows.
        block: Side of the blocks of the measurement: borders of windows are compared with other borders of
            blocks, at which the measurement itself leaves larger differences. Starts of windows must be
            multiples of it.
    """
    across, elsewhere = list[Tensor](), list[Tensor]()
    for axis in (-2, -1):
        starts = starts_along(x.shape[axis], window, overlap, 0.0)
        borders = {border - 1 for start in starts for border in (start, start + window)}
        steps = x.diff(dim=axis).abs().transpose(axis, -1)
        others = set(range(block - 1, steps.shape[-1], block)) - borders
        for indices, found in ((borders, across), (others, elsewhere)):
            at = [index for index in sorted(indices) if 0 <= index < steps.shape[-1]]
            found.append(steps[..., at].flatten())
    return float(torch.cat(across).mean() / torch.cat(elsewhere).mean())
