r"""Priors of one size for images of any size: overlapping windows, fused inside every denoiser call.

A network trained on windows of :math:`w \times w` pixels denoises an image by denoising windows of it, and

.. math::
    D(x_t, t) = \sum_i \phi_i \odot E_i D_w(R_i x_t, t), \qquad \sum_i \phi_i = 1,

where :math:`R_i` cuts window i out, :math:`E_i` puts it back, and the smooth weights :math:`\phi_i` are a
partition of unity: squared sines, 0 at a window's border, where its denoiser knows least, and normalised. The
result is one function of the whole image. A sampler sees no window, and the likelihood acts on the fused
image: windows agree with each other and with the measurement at every step, not once at the end.

What is lost is what a window cannot see: the fused denoiser is exact for priors whose correlations are short
beside the overlap, and knows no structure larger than a window.

Memory is that of one chunk of windows, whatever the image's size: the graph of a chunk is built in the
backward pass, used and freed. This costs one more forward a backward.
"""

from __future__ import annotations

__all__ = ["TiledPrior"]

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..priors import Prior
from ..schedule import Schedule

# Multiplied by a time, its fraction is a number in [0, 1) that has forgotten the time's order.
_SCRAMBLE = 1e4 * (math.sqrt(5.0) - 1.0)


@dataclass(frozen=True)
class TiledPrior:
    """A prior over windows as a prior over images of any height and width (any number of spatial axes).

    The gradient flows to the image, not to the network's weights: this is a tool of sampling. Images smaller
    than a window along an axis are continued by reflection and cut back.

    Args:
        prior: the denoiser of windows.
        window: the size it wants, one for all spatial axes or one for each.
        overlap: pixels that neighbouring windows share at least; default a half of the window (the shorter
            side), where the weights are smoothest. A quarter costs less than a half as many windows.
        batch: windows denoised at a time. Memory grows with it, the result does not depend on it.
        shifted: move the grid of windows by an offset that is a function of the time alone, so that borders
            fall elsewhere at every step. One more window along each axis.
    """

    prior: Prior
    window: int | tuple[int, ...] = 64
    overlap: int | None = None
    batch: int = 16
    shifted: bool = False

    def __post_init__(self) -> None:
        if self._shortest < 1 or self.batch < 1:
            raise ValueError(f"window and batch must be at least 1, got {self.window} and {self.batch}")
        if not 0 <= self._shared < self._shortest:
            raise ValueError(
                f"overlap must be at least 0 and below the window's {self._shortest}, got {self.overlap}"
            )

    @property
    def _shortest(self) -> int:
        return self.window if isinstance(self.window, int) else min(self.window)

    @property
    def _shared(self) -> int:
        return self._shortest // 2 if self.overlap is None else self.overlap

    @property
    def schedule(self) -> Schedule:
        """The schedule of the prior within."""
        return self.prior.schedule

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """The windows' estimates, fused: (B, C, *spatial), differentiable in x_t once."""
        spatial = x_t.shape[2:]
        sizes = (self.window,) * len(spatial) if isinstance(self.window, int) else self.window
        if len(sizes) != len(spatial):
            raise ValueError(f"a window of {sizes} pixels does not fit images with {len(spatial)} axes")
        for axis, size in enumerate(sizes, start=2):
            x_t = _reflected(x_t, axis, size)
        windows = [
            _windows(x_t.shape[2:], sizes, self._shared, shift) for shift in self._shifts(t, len(sizes))
        ]
        fused: Tensor = _Fusion.apply(x_t, t, self.prior, windows, self.batch)  # type: ignore[no-untyped-call]
        for axis, (length, size) in enumerate(zip(spatial, sizes, strict=True), start=2):
            fused = fused.narrow(axis, max(size - length, 0) // 2, length)
        return fused

    def _shifts(self, t: Tensor, axes: int) -> list[tuple[float, ...]]:
        """Offset of the grid along each axis, as a part of its stride; one tuple for all rows or per row."""
        if not self.shifted:
            return [(0.0,) * axes]
        times = t.reshape(-1).double().tolist()
        return [tuple(time * _SCRAMBLE * (axis + 1) % 1.0 for axis in range(axes)) for time in times]


@dataclass(frozen=True)
class _Window:
    """Where a window lies in (C, *spatial), and how much it counts: one weight vector per spatial axis."""

    place: tuple[slice, ...]
    weights: tuple[Tensor, ...]

    @property
    def weight(self) -> Tensor:
        """phi_i on the window, (*spatial), float64."""
        weight = torch.ones((), dtype=torch.float64)
        for along in self.weights:
            weight = weight.unsqueeze(-1) * along
        return weight


def _reflected(x: Tensor, axis: int, size: int) -> Tensor:
    """Continued by reflection to ``size`` pixels along an axis, itself in the middle; longer: as it is."""
    length = x.shape[axis]
    if length >= size:
        return x
    place = torch.arange(size, device=x.device) - (size - length) // 2
    period = max(2 * (length - 1), 1)
    place = place.remainder(period)
    return x.index_select(axis, torch.minimum(place, period - place) if length > 1 else 0 * place)


def _starts(length: int, size: int, overlap: int, shift: float) -> list[int]:
    """Where windows begin along an axis: they cover it, and neighbours share ``overlap`` pixels or more."""
    last, stride = length - size, size - overlap
    if last == 0:
        return [0]
    if shift == 0.0:  # spread evenly
        count = math.ceil(last / stride)
        return [round(last * i / count) for i in range(count + 1)]
    first = -int(shift * stride)
    return sorted({min(max(start, 0), last) for start in range(first, last + stride, stride)})


def _weights(length: int, size: int, starts: Sequence[int]) -> list[Tensor]:
    """The partition of unity along an axis: a weight vector per window, float64."""
    bump = torch.sin(math.pi * (torch.arange(size, dtype=torch.float64) + 0.5) / size).square()
    total = torch.zeros(length, dtype=torch.float64)
    for start in starts:
        total[start : start + size] += bump
    return [bump / total[start : start + size] for start in starts]


def _windows(
    spatial: Sequence[int], sizes: Sequence[int], overlap: int, shift: Sequence[float]
) -> list[_Window]:
    """All windows of an image, in rows: the weights of a grid are products of those along its axes."""
    axes = []
    for length, size, part in zip(spatial, sizes, shift, strict=True):
        starts = _starts(length, size, overlap, part)
        places = [slice(start, start + size) for start in starts]
        axes.append(list(zip(places, _weights(length, size, starts), strict=True)))
    return [
        _Window((slice(None), *(place for place, _ in parts)), tuple(weight for _, weight in parts))
        for parts in product(*axes)
    ]


def _chunks(rows: int, windows: list[list[_Window]], batch: int) -> Iterator[list[tuple[int, _Window]]]:
    """(row, window) pairs, ``batch`` at a time."""
    pairs = ((row, window) for row in range(rows) for window in windows[row % len(windows)])
    while chunk := list(islice(pairs, batch)):
        yield chunk


def _cut(x: Tensor, chunk: Sequence[tuple[int, _Window]]) -> Tensor:
    """The windows of a chunk as a batch."""
    return torch.stack([x[row][window.place] for row, window in chunk])


def _times(t: Tensor, chunk: Sequence[tuple[int, _Window]]) -> Tensor:
    """Their times, where every row has its own."""
    return t if t.ndim == 0 else t[[row for row, _ in chunk]]


def _add(x: Tensor, parts: Tensor, chunk: Sequence[tuple[int, _Window]]) -> None:
    """The adjoint of :func:`_cut`, in place."""
    for (row, window), part in zip(chunk, parts, strict=True):
        x[row][window.place] += part


def _weighted(parts: Tensor, chunk: Sequence[tuple[int, _Window]]) -> Tensor:
    return parts * torch.stack([window.weight for _, window in chunk]).unsqueeze(1).to(parts)


class _Fusion(torch.autograd.Function):
    """Cut, denoise, weigh and add, chunk by chunk, in both directions."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, t: Tensor, prior: Prior, windows: list[list[_Window]], batch: int
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.t, ctx.prior, ctx.windows, ctx.batch = t, prior, windows, batch
        fused = torch.zeros_like(x)
        for chunk in _chunks(len(x), windows, batch):
            _add(fused, _weighted(prior.denoise(_cut(x, chunk), _times(t, chunk)), chunk), chunk)
        return fused

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        gradient = torch.zeros_like(x)
        for chunk in _chunks(len(x), ctx.windows, ctx.batch):
            cut = _cut(x, chunk)
            with torch.enable_grad():
                estimates = ctx.prior.denoise(cut.requires_grad_(), _times(ctx.t, chunk))
            (back,) = torch.autograd.grad(estimates, cut, _weighted(_cut(slope, chunk), chunk))
            _add(gradient, back, chunk)
        return gradient, None, None, None, None
