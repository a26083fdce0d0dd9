r"""Motion-blur kernels: the trace of a camera that shook while the shutter was open.

The path lives on a canvas of twice the kernel's side n, with diagonal :math:`D = 2 \sqrt 2\, n`, and depends
on one number, the intensity :math:`I \in [0, 1]`:

- its length is :math:`\tfrac34 D (u + v)`, :math:`u \sim U(0, 1)`, :math:`v \sim U(0, I^2)`;
- it advances by steps :math:`\ell_i \sim (1 - I + 0.1)\, D\, \mathrm{Beta}(1, 30)`: the more intense, the
  finer;
- the heading starts anywhere and turns at every step by :math:`\pm \kappa\, \ell_i`; the sense of turning
  flips with a probability drawn once per path from :math:`\mathrm{Beta}(2, 20)`, and every arc between two
  flips has its own curvature :math:`\kappa \sim U(0, 8 \pi I^2 / D)`. So I = 0 moves straight and I = 1
  winds.

The path, its centre of mass at the kernel's origin, is shrunk where it would leave the canvas, traced at
constant speed with bilinear weights (so it is antialiased), averaged down to n x n and divided by its sum.
"""

from __future__ import annotations

__all__ = ["motion_kernel"]

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_STEPS = 1024  # at I = 1 the longest path takes about 470
_TRACE = 8  # points of the trace in one canvas pixel


def motion_kernel(size: int, intensity: float, generator: np.random.Generator) -> Tensor:
    """A random motion-blur kernel with sum 1, float32, shape (size, size).

    Args:
        size: n, the side of the kernel in pixels.
        intensity: I in [0, 1]; how far and how crookedly the camera moved.
        generator: its draws decide the path; see :func:`lavps.random.generator`.
    """
    if size < 1 or not 0.0 <= intensity <= 1.0:
        raise ValueError(f"a motion kernel needs size >= 1 and intensity in [0, 1], got {size}, {intensity}")
    path = _path(2.0 * math.sqrt(2.0) * size, intensity, generator)
    canvas = _trace(path, size)
    kernel = canvas.reshape(size, 2, size, 2).mean(axis=(1, 3))
    return torch.from_numpy(kernel / kernel.sum()).float()


def _path(diagonal: float, intensity: float, generator: np.random.Generator) -> NDArray[np.complex128]:
    """The corners of a random path in the complex plane, from 0."""
    length = 0.75 * diagonal * (generator.uniform() + generator.uniform(0.0, intensity**2))
    heading = generator.uniform(0.0, 2.0 * math.pi)
    flips = generator.uniform(size=_STEPS) < generator.beta(2.0, 20.0)
    curvatures = generator.uniform(0.0, 8.0 * math.pi * intensity**2, size=_STEPS) / diagonal
    steps = generator.beta(1.0, 30.0, size=_STEPS) * (1.1 - intensity) * diagonal
    # Cut where the length is reached, the last step short.
    ends = np.minimum(np.cumsum(steps), length)
    steps = np.diff(ends, prepend=0.0)
    arc = np.cumsum(flips)
    headings = heading + np.cumsum(np.where(arc % 2, -1.0, 1.0) * curvatures[arc - arc[0]] * steps)
    return np.concatenate([[0.0], np.cumsum(steps * np.exp(1j * headings))])


def _trace(path: NDArray[np.complex128], size: int) -> NDArray[np.float64]:
    """The path drawn on the canvas (2 size, 2 size): the time spent in every pixel."""
    lengths = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(path)))])
    times = np.linspace(0.0, lengths[-1], 1 + math.ceil(_TRACE * lengths[-1]))
    points = np.interp(times, lengths, path.real) + 1j * np.interp(times, lengths, path.imag)
    points = points - points.mean()
    # Kernel pixel i covers canvas pixels 2i and 2i + 1, so its centre lies between them.
    origin = 2 * (size // 2) + 0.5
    reach = min(origin, 2 * size - 1 - origin)
    points = points * min(1.0, reach / max(np.abs(points.real).max(), np.abs(points.imag).max(), 1e-12))
    canvas = np.zeros((2 * size, 2 * size))
    rows, columns = points.real + origin, points.imag + origin
    for row_side in (0, 1):
        for column_side in (0, 1):
            i = np.minimum(np.floor(rows).astype(int) + row_side, 2 * size - 1)
            j = np.minimum(np.floor(columns).astype(int) + column_side, 2 * size - 1)
            weight = np.maximum(0.0, 1.0 - np.abs(rows - i)) * np.maximum(0.0, 1.0 - np.abs(columns - j))
            np.add.at(canvas, (i, j), weight)
    return canvas
