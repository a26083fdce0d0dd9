r"""Trials of a function on random images: is :math:`A(a x + b u) = a A x + b A u`?"""

from __future__ import annotations

__all__ = ["distance", "linearity_error", "measures_linearly"]

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..devices import resolve_device
from ..random import NoiseStreams, Purpose

_TOLERANCE = 1e-4


def distance(a: Tensor, b: Tensor) -> float:
    """Return the largest difference relative to the largest entry; infinite for different shapes."""
    if a.shape != b.shape:
        return float("inf")
    largest = torch.maximum(a.abs().max(), b.abs().max()).clamp(min=1e-30)
    return float((a - b).abs().max() / largest)


def linearity_error(
    function: Callable[[Tensor], Tensor], x: Tensor, u: Tensor, a: float = 0.7, b: float = -1.3
) -> float:
    """Return the distance of A(a x + b u) from a A x + b A u."""
    return distance(function(a * x + b * u), a * function(x) + b * function(u))


def measures_linearly(function: Callable[[Tensor], Tensor], in_shape: Sequence[int]) -> bool:
    """Return whether a function of images (B, C, *spatial) is linear, from three evaluations of one image.

    Raises:
        ValueError: The function fails on random images of this shape in both precisions.
    """
    streams, trials = NoiseStreams.from_seed(1), []
    for device in dict.fromkeys(("cpu", resolve_device())):
        for dtype in (torch.float32, torch.float64):
            like = torch.zeros((), dtype=dtype, device=device)
            x, u = (streams.normal(Purpose.PROBE, in_shape, like, index=index) for index in range(2))
            try:
                with torch.no_grad():
                    # The combination exceeds [-1, 1], so that clipping is found.
                    return linearity_error(function, x, u, 3.0, -4.0) <= _TOLERANCE
            except Exception as error:
                trials.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    raise ValueError(
        f"the function fails on a random image of in_shape {tuple(in_shape)} ({trials[0]}), so that its "
        "linearity cannot be tested: correct in_shape or the function, or pass linear=True or linear=False"
    )
