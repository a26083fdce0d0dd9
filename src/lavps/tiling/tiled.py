r"""Priors of one size for images of any size: overlapping windows, fused inside every denoiser call.

A network trained on windows of :math:`w \times w` pixels denoises an image window by window:

.. math::
    D(x_t, t) = \sum_i \phi_i \odot E_i D_w(R_i x_t, t), \qquad \sum_i \phi_i = 1,

where :math:`R_i` cuts window i out, :math:`E_i` puts it back, and the smooth weights :math:`\phi_i` are a
partition of unity: squared sines, normalized, 0 at a window's border, where its denoiser has least context.
The result is one function of the whole image, and the likelihood acts on the fused image. Windows therefore
agree with each other and with the measurement at every step, not only at the end.

Limitation: the fused denoiser is exact for priors with correlations shorter than the overlap, and models no
structure larger than a window.

Memory is that of one chunk of windows, for any image size: the graph of a chunk is built in the backward
pass, used and freed. This costs one extra forward per backward.

The network of an inference model is tiled likewise (:func:`tiled_model`): its conditioning channels are cut
into the same windows, and its residuals are fused with the same weights.
"""

from __future__ import annotations

__all__ = ["TiledNetwork", "TiledPrior", "tiled_model"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..amortization import InferenceModel
from ..nn import InvFusion
from ..priors import Prior
from ..priors.protocol import WrappedPrior
from ..problem import InverseProblem
from .partial import PartialEvaluation
from .windows import (
    Window,
    add,
    chunks_of,
    continued,
    cut,
    cut_back,
    rows_of,
    starts_along,
    weighted,
    windows_of,
)

# Factor of a time whose product has a fractional part that looks random.
_SCRAMBLE = 1e4 * (math.sqrt(5.0) - 1.0)


@dataclass(frozen=True)
class TiledPrior(WrappedPrior):
    """Prior over windows as a prior over images of any size (any number of spatial axes).

    Gradients flow to the image, not to the network's weights. Images smaller than a window along an axis are
    extended by reflection and cropped again.

    Args:
        prior: Denoiser of windows.
        window: Size of a window, one for all spatial axes or one for each.
        overlap: Minimum overlap of neighbouring windows, in pixels; default half of the window's shorter
            side, where the weights are smoothest. A quarter needs less than half as many windows.
        batch: Windows per denoiser call. Memory grows with it; the result does not depend on it.
        shifted: Whether the grid is shifted by an offset that depends on the time alone, so that borders move
            between steps. This adds one window along each axis.
        progress: Function called with the number of windows after every denoiser call on windows, in forward
            and backward passes. Backward passes on an accelerator call it from another thread.
        partial: Storage of an evaluation that is interrupted, which the same evaluation continues.

    Example:
        >>> from lavps.priors import GaussianPrior
        >>> prior = GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> TiledPrior(prior, window=4).denoise(torch.zeros(1, 1, 8, 6), torch.tensor(0.5)).shape
        torch.Size([1, 1, 8, 6])
    """

    prior: Prior
    window: int | tuple[int, ...] = 64
    overlap: int | None = None
    batch: int = 16
    shifted: bool = False
    progress: Callable[[int], None] | None = field(default=None, compare=False, repr=False)
    partial: PartialEvaluation | None = field(default=None, compare=False, repr=False)

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

    def _sizes(self, axes: int) -> tuple[int, ...]:
        return (self.window,) * axes if isinstance(self.window, int) else self.window

    def count(self, spatial: Sequence[int]) -> int:
        """Return the number of windows of an image of this size, for a grid that is not shifted."""
        sizes = self._sizes(len(spatial))
        return math.prod(
            len(starts_along(max(length, size), size, self._shared, 0.0))
            for length, size in zip(spatial, sizes, strict=True)
        )

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Return the fused estimates of the windows (B, C, *spatial), once differentiable in x_t."""
        spatial = x_t.shape[2:]
        sizes = self._sizes(len(spatial))
        x_t = continued(x_t, sizes)
        windows = [
            windows_of(x_t.shape[2:], sizes, self._shared, shift) for shift in self._shifts(t, len(sizes))
        ]
        given = (x_t, t, self.prior, windows, self.batch, self.progress or _ignore, self.partial)
        fused: Tensor = _Fusion.apply(*given)  # type: ignore[no-untyped-call]
        return cut_back(fused, spatial, sizes)

    def _shifts(self, t: Tensor, axes: int) -> list[tuple[float, ...]]:
        """Return the offset of the grid along each axis, as a part of its stride, for all rows or per row."""
        if not self.shifted:
            return [(0.0,) * axes]
        times = t.reshape(-1).double().tolist()
        return [tuple(time * _SCRAMBLE * (axis + 1) % 1.0 for axis in range(axes)) for time in times]


def _ignore(windows: int) -> None:
    """Report nothing."""


class _Fusion(torch.autograd.Function):
    """Cut, denoise, weigh and add, chunk by chunk, in both directions."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        t: Tensor,
        prior: Prior,
        windows: list[list[Window]],
        batch: int,
        progress: Callable[[int], None],
        partial: PartialEvaluation | None,
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.t, ctx.prior, ctx.windows, ctx.batch, ctx.progress = t, prior, windows, batch, progress
        fused, inputs, done, count = torch.zeros_like(x), dict[str, Tensor](), 0, 0
        for number, chunk in enumerate(chunks_of(len(x), windows, batch)):
            if number < done:
                continue
            estimates = prior.denoise(cut(x, chunk), rows_of(t, chunk))
            if number == 0 and partial is not None:
                inputs = {"x": x, "t": t, "estimates": estimates}
                if (found := partial.load(inputs)) is not None:
                    fused, done, count = found
                    continue
            add(fused, weighted(estimates, chunk), chunk)
            progress(len(chunk))
            count += len(chunk)
            if partial is not None:
                partial.save(inputs, fused, number + 1, count)
        return fused

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        gradient = torch.zeros_like(x)
        for chunk in chunks_of(len(x), ctx.windows, ctx.batch):
            part = cut(x, chunk)
            with torch.enable_grad():
                estimates = ctx.prior.denoise(part.requires_grad_(), rows_of(ctx.t, chunk))
            (back,) = torch.autograd.grad(estimates, part, weighted(cut(slope, chunk), chunk))
            add(gradient, back, chunk)
            ctx.progress(len(chunk))
        return gradient, None, None, None, None, None, None


class TiledNetwork(nn.Module):
    """Network of an inference model on windows of images of any size, fused as in :class:`TiledPrior`.

    Args:
        network: Network, called as network(channels, t, s) on windows. InvFusion, which applies the operator
            to whole images, raises an error.
        window: Size of a window along each spatial axis.
        batch: Windows per call.
    """

    def __init__(self, network: nn.Module, window: tuple[int, ...], batch: int = 16) -> None:
        super().__init__()
        if any(isinstance(part, InvFusion) for part in network.modules()):
            raise ValueError(
                "an inference model with InvFusion applies the operator inside its network, to whole images: "
                f"it serves images of {' x '.join(map(str, window))} pixels only. Use a model with "
                "--conditioning palette or gradient for other sizes, or none"
            )
        self.network, self.window, self.batch = network, window, batch

    def forward(
        self, channels: Tensor, t: Tensor, s: Tensor, problem: InverseProblem | None = None
    ) -> Tensor:
        """Return the fused outputs of the windows (B, outputs, *spatial)."""
        spatial, x = channels.shape[2:], continued(channels, self.window)
        t, s = t.expand(len(x)), s.expand(len(x))
        windows = [windows_of(x.shape[2:], self.window, min(self.window) // 2, (0.0,) * len(spatial))]
        fused = None
        for chunk in chunks_of(len(x), windows, self.batch):
            parts = self.network(cut(x, chunk), rows_of(t, chunk), rows_of(s, chunk))
            if fused is None:
                fused = parts.new_zeros(len(x), parts.shape[1], *x.shape[2:])
            add(fused, weighted(parts, chunk), chunk)
        assert fused is not None
        return cut_back(fused, spatial, self.window)


def tiled_model(model: InferenceModel, window: tuple[int, ...], batch: int = 16) -> InferenceModel:
    """Return an inference model for images of any size, from one for windows; weights are shared."""
    network = TiledNetwork(model.network, window, batch)
    tiled = InferenceModel(network, model.conditioning, False, model.data_variance, model.solver_steps)
    tiled.gate = model.gate
    if (check := model.check_prior) is not None:
        tiled.check_prior = lambda prior: check(prior.prior if isinstance(prior, TiledPrior) else prior)
    return tiled.eval()
