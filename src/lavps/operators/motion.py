r"""Motion-blur kernels: random camera paths during the exposure.

The path is drawn on a canvas of twice the kernel's side n, with diagonal :math:`D = 2 \sqrt 2\, n`, and
depends on the intensity :math:`I \in [0, 1]`:

- Its length is :math:`\tfrac34 D (u + v)`, :math:`u \sim U(0, 1)`, :math:`v \sim U(0, I^2)`.
- Its steps are :math:`\ell_i \sim (1 - I + 0.1)\, D\, \mathrm{Beta}(1, 30)`.
- Its initial heading is uniform and turns by :math:`\pm \kappa\, \ell_i` at every step. The sign flips with a
  probability drawn once per path from :math:`\mathrm{Beta}(2, 20)`, and every arc between two flips has its
  own curvature :math:`\kappa \sim U(0, 8 \pi I^2 / D)`. The path is straight for I = 0 and winding for I = 1.

The path is centred at the kernel's origin, scaled down if it would leave the canvas, traced at constant speed
with bilinear weights, averaged to n x n and normalized.
"""

from __future__ import annotations

__all__ = ["motion_kernel"]

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_STEPS = 1024  # the longest path, at I = 1, has about 470
_TRACE = 8  # points per canvas pixel


def motion_kernel(size: int, intensity: float, generator: np.random.Generator) -> Tensor:
    """Draw a random motion-blur kernel with sum 1, float32, shape (size, size).

    Args:
        size: Side n of the kernel in pixels.
        intensity: Extent and irregularity I of the camera motion, in [0, 1].
        generator: Source of randomness; see :func:`lavps.random.generator`.
    """
    if size < 1 or not 0.0 <= intensity <= 1.0:
        raise ValueError(f"a motion kernel needs size >= 1 and intensity in [0, 1], got {size}, {intensity}")
    canvas = _trace(_path(2.0 * math.sqrt(2.0) * size, intensity, generator), size)
    kernel = canvas.reshape(size, 2, size, 2).mean(axis=(1, 3))
    return torch.from_numpy(kernel / kernel.sum()).float()


def _path(diagonal: float, intensity: float, generator: np.random.Generator) -> NDArray[np.complex128]:
    """Draw the vertices of a random path in the complex plane, starting at 0."""
    length = 0.75 * diagonal * (generator.uniform() + generator.uniform(0.0, intensity**2))
    heading = generator.uniform(0.0, 2.0 * math.pi)
    flips = generator.uniform(size=_STEPS) < generator.beta(2.0, 20.0)
    curvatures = generator.uniform(0.0, 8.0 * math.pi * intensity**2, size=_STEPS) / diagonal
    steps = generator.beta(1.0, 30.0, size=_STEPS) * (1.1 - intensity) * diagonal
    # The last step is shortened so that the path has the drawn length.
    ends = np.minimum(np.cumsum(steps), length)
    steps = np.diff(ends, prepend=0.0)
    arc = np.cumsum(flips)
    headings = heading + np.cumsum(np.where(arc % 2, -1.0, 1.0) * curvatures[arc - arc[0]] * steps)
    return np.concatenate([[0.0], np.cumsum(steps * np.exp(1j * headings))])


def _trace(path: NDArray[np.complex128], size: int) -> NDArray[np.float64]:
    """Return the time that the path spends in every pixel of the canvas (2 size, 2 size)."""
    lengths = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(path)))])
    times = np.linspace(0.0, lengths[-1], 1 + math.ceil(_TRACE * lengths[-1]))
    points = np.interp(times, lengths, path.real) + 1j * np.interp(times, lengths, path.imag)
    points = points - points.mean()
    # Kernel pixel i covers canvas pixels 2i and 2i + 1, so its centre lies between them.
    origin = 2 * (size // 2) + 0.5
    radius = min(origin, 2 * size - 1 - origin)
    points = points * min(1.0, radius / max(np.abs(points.real).max(), np.abs(points.imag).max(), 1e-12))
    canvas = np.zeros((2 * size, 2 * size))
    rows, columns = points.real + origin, points.imag + origin
    for row_side in (0, 1):
        for column_side in (0, 1):
            i = np.minimum(np.floor(rows).astype(int) + row_side, 2 * size - 1)
            j = np.minimum(np.floor(columns).astype(int) + column_side, 2 * size - 1)
            weight = np.maximum(0.0, 1.0 - np.abs(rows - i)) * np.maximum(0.0, 1.0 - np.abs(columns - j))
            np.add.at(canvas, (i, j), weight)
    return canvas
