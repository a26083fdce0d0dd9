"""Statistics of more samples than fit in memory."""

from __future__ import annotations

__all__ = ["RunningStatistics"]

from collections.abc import Sequence

import torch
from torch import Tensor


class RunningStatistics:
    """Mean, standard deviation and quantiles of a stream of images, in memory of a few images.

    Mean and variance by Welford's recursion; quantiles by the P-square algorithm (Jain and Chlamtac,
    1985), which follows five markers a level and is exact up to five samples.

    Args:
        quantiles: the levels to follow.
    """

    def __init__(self, quantiles: Sequence[float] = ()) -> None:
        self.count = 0
        self._mean = torch.empty(0)
        self._squares = torch.empty(0)
        self._markers = {q: _PSquare(q) for q in quantiles}

    def update(self, x: Tensor) -> None:
        """Take in one more image."""
        x = x.detach().cpu().double()
        self.count += 1
        if self.count == 1:
            self._mean, self._squares = torch.zeros_like(x), torch.zeros_like(x)
        delta = x - self._mean
        self._mean = self._mean + delta / self.count
        self._squares = self._squares + delta * (x - self._mean)
        for marker in self._markers.values():
            marker.update(x)

    @property
    def mean(self) -> Tensor:
        """Mean so far."""
        return self._mean

    @property
    def std(self) -> Tensor:
        """Standard deviation so far (NaN for one image)."""
        return (self._squares / (self.count - 1 if self.count > 1 else float("nan"))).sqrt()

    def quantile(self, q: float) -> Tensor:
        """The estimate of a followed quantile."""
        return self._markers[q].value


class _PSquare:
    """The P-square estimate of one quantile, for every pixel at once."""

    def __init__(self, q: float) -> None:
        self.q = q
        self.first: list[Tensor] = []
        self.heights = torch.empty(0)
        self.positions = torch.empty(0)
        self.increments = torch.tensor([0.0, q / 2, q, (1 + q) / 2, 1.0], dtype=torch.float64)

    def update(self, x: Tensor) -> None:
        if len(self.first) < 5:
            self.first.append(x)
            if len(self.first) == 5:
                self.heights = torch.stack(self.first).sort(dim=0).values
                shape = (5, *[1] * x.ndim)
                self.positions = torch.arange(5.0, dtype=torch.float64).reshape(shape).expand_as(self.heights)
                self.positions = self.positions.clone()
                self.count = 5
            return
        self.count += 1
        self.heights[0] = torch.minimum(self.heights[0], x)
        self.heights[4] = torch.maximum(self.heights[4], x)
        # Every marker above the new value moves up by one place.
        self.positions[1:4] += (x < self.heights[1:4]).double()
        self.positions[4] += 1.0
        desired = self.increments * (self.count - 1)
        for i in (1, 2, 3):
            self._adjust(i, float(desired[i]))

    def _adjust(self, i: int, desired: float) -> None:
        n, h = self.positions, self.heights
        gap = desired - n[i]
        up = (gap >= 1) & (n[i + 1] - n[i] > 1)
        down = (gap <= -1) & (n[i - 1] - n[i] < -1)
        d = up.double() - down.double()
        right, left = (h[i + 1] - h[i]) / (n[i + 1] - n[i]), (h[i] - h[i - 1]) / (n[i] - n[i - 1])
        parabola = h[i] + d / (n[i + 1] - n[i - 1]) * (
            (n[i] - n[i - 1] + d) * right + (n[i + 1] - n[i] - d) * left
        )
        line = h[i] + torch.where(d > 0, right, -left)
        inside = (h[i - 1] < parabola) & (parabola < h[i + 1])
        self.heights[i] = torch.where(d == 0, h[i], torch.where(inside, parabola, line))
        self.positions[i] = n[i] + d

    @property
    def value(self) -> Tensor:
        if len(self.first) < 5:
            return torch.quantile(torch.stack(self.first), self.q, dim=0)
        return self.heights[2]
