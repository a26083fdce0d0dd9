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

The network of an inference model is tiled likewise (:func:`tiled_model`): what it is told are channels beside
the image, cut into the same windows; its residuals are fused with the same weights.
"""

from __future__ import annotations

__all__ = ["TiledNetwork", "TiledPrior", "tiled_model"]

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..amortization import InferenceModel
from ..networks import InvFusion
from ..priors import Prior
from ..problem import InverseProblem
from ..schedule import Schedule
from .windows import Window, add, chunks_of, continued, cut, cut_back, rows_of, weighted, windows_of

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
        x_t = continued(x_t, sizes)
        windows = [
            windows_of(x_t.shape[2:], sizes, self._shared, shift) for shift in self._shifts(t, len(sizes))
        ]
        fused: Tensor = _Fusion.apply(x_t, t, self.prior, windows, self.batch)  # type: ignore[no-untyped-call]
        return cut_back(fused, spatial, sizes)

    def _shifts(self, t: Tensor, axes: int) -> list[tuple[float, ...]]:
        """Offset of the grid along each axis, as a part of its stride; one tuple for all rows or per row."""
        if not self.shifted:
            return [(0.0,) * axes]
        times = t.reshape(-1).double().tolist()
        return [tuple(time * _SCRAMBLE * (axis + 1) % 1.0 for axis in range(axes)) for time in times]


class _Fusion(torch.autograd.Function):
    """Cut, denoise, weigh and add, chunk by chunk, in both directions."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, t: Tensor, prior: Prior, windows: list[list[Window]], batch: int
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.t, ctx.prior, ctx.windows, ctx.batch = t, prior, windows, batch
        fused = torch.zeros_like(x)
        for chunk in chunks_of(len(x), windows, batch):
            add(fused, weighted(prior.denoise(cut(x, chunk), rows_of(t, chunk)), chunk), chunk)
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
        return gradient, None, None, None, None


class TiledNetwork(nn.Module):
    """The network of an inference model, on windows of images of any size, fused as :class:`TiledPrior` does.

    Args:
        network: called as network(channels, t, s, problem=...) on windows; what looks at the problem itself
            (InvFusion) sees the whole image, never a window, and is refused.
        window: the size it wants along each spatial axis.
        batch: windows at a time.
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
        """The windows' outputs, fused: (B, outputs, *spatial)."""
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
    """An inference model for windows as one for images of any size; its weights are shared, not copied."""
    tiled = InferenceModel(
        TiledNetwork(model.network, window, batch),
        model.conditioning,
        False,
        model.data_variance,
        model.solver_steps,
    )
    tiled.gate = model.gate
    if (check := model.check_prior) is not None:
        tiled.check_prior = lambda prior: check(prior.prior if isinstance(prior, TiledPrior) else prior)
    return tiled.eval()
