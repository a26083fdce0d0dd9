r"""Noise models: the law of a measurement given its noiseless prediction, entry by entry."""

from __future__ import annotations

__all__ = ["GaussianNoise", "NoiseModel", "PoissonNoise"]

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from .random import NoiseStreams, Purpose
from .transitions import per_sample


class NoiseModel(ABC):
    """The law of a measurement given its noiseless prediction, entry by entry."""

    @abstractmethod
    def log_prob(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Log-density of every entry of y, of y's shape, real."""

    @abstractmethod
    def sample(self, prediction: Tensor, streams: NoiseStreams) -> Tensor:
        """A measurement for every row; a pure function of each row's stream."""

    @abstractmethod
    def residual(self, y: Tensor, prediction: Tensor) -> Tensor:
        """What the prediction leaves unexplained, in the prediction's units."""

    @abstractmethod
    def precision(self, prediction: Tensor) -> Tensor:
        """Inverse variance of a residual, broadcastable to the prediction; complex: of its modulus."""

    @property
    def batch(self) -> int:
        """Rows of the parameters: 1 when shared by all items."""
        return 1

    def curvature(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Second derivative of -log_prob in the prediction, or an upper bound of it there."""
        return self.precision(prediction) * (2.0 if prediction.is_complex() else 1.0)

    def select(self, rows: Tensor) -> NoiseModel:
        """The model of these rows; itself where nothing is batched."""
        return self


@dataclass(frozen=True)
class GaussianNoise(NoiseModel):
    """y = A(x) + std z. For complex measurements E|noise|^2 = std^2.

    Args:
        std: one number, or one per item as a tensor (B,), in the units of the measurement.
    """

    std: float | Tensor

    def __post_init__(self) -> None:
        if not bool((torch.as_tensor(self.std) > 0).all()):
            raise ValueError(f"the noise's std must be positive, got {self.std}")

    def _std(self, like: Tensor) -> Tensor:
        # A number as float64: torch's default would round it to float32 in double-precision problems too.
        std = self.std if isinstance(self.std, Tensor) else torch.tensor(self.std, dtype=torch.float64)
        return per_sample(std, like.real if like.is_complex() else like)

    @property
    def batch(self) -> int:
        """Number of stds: 1 when shared by all items."""
        return self.std.numel() if isinstance(self.std, Tensor) else 1

    def log_prob(self, y: Tensor, prediction: Tensor) -> Tensor:
        """-(y - A x)^2 / 2 std^2 - log(std sqrt(2 pi)); complex: -|y - A x|^2 / std^2 - log(pi std^2)."""
        std = self._std(y)
        if y.is_complex():
            residual = torch.view_as_real(y - prediction).square().sum(-1)
            return -residual / std.square() - (math.pi * std.square()).log()
        return -0.5 * ((y - prediction) / std).square() - (math.sqrt(2 * math.pi) * std).log()

    def sample(self, prediction: Tensor, streams: NoiseStreams) -> Tensor:
        """Prediction + std z."""
        noise = streams.normal(Purpose.MEASUREMENT, prediction.shape[1:], prediction)
        return prediction + self._std(prediction) * noise

    def residual(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Y - A(x)."""
        return y - prediction

    def precision(self, prediction: Tensor) -> Tensor:
        """1 / std^2."""
        return 1.0 / self._std(prediction).square()

    def select(self, rows: Tensor) -> GaussianNoise:
        """The stds of these rows."""
        std = self.std
        return (
            self
            if not isinstance(std, Tensor) or std.numel() == 1
            else GaussianNoise(std[rows.to(std.device)])
        )


@dataclass(frozen=True)
class PoissonNoise(NoiseModel):
    r"""Photon counts: y ~ Poisson(rate), rate = peak (A(x) + 1) / 2 + background.

    A prediction of -1 (black) gives the background, +1 (white) ``peak`` photons more. A prediction below
    black can occur in mid-sampling and has no rate: there the log is continued by its second-order
    expansion, and a negative rate is charged half its square, so that the gradient still points back to
    light (from one photon below none where no photon was counted).

    Args:
        peak: photons at white.
        background: photons at black (dark counts).
    """

    peak: float
    background: float = 0.0

    def __post_init__(self) -> None:
        if self.peak <= 0 or self.background < 0:
            raise ValueError("PoissonNoise needs peak > 0 and background >= 0")

    def rate(self, prediction: Tensor) -> Tensor:
        """Expected counts; negative where the prediction is below black."""
        return 0.5 * self.peak * (prediction + 1.0) + self.background

    @property
    def _floor(self) -> float:
        # Where the expansion takes over: one photon, or less in very dim scenes. Lower would be truer to the
        # law of dark pixels and stiffer than any first-order method can follow.
        return max(min(1.0, 0.05 * self.peak), self.background)

    def log_prob(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Y log(rate) - rate - log(y!)."""
        rate = self.rate(prediction)
        excess = (rate / self._floor - 1.0).clamp(max=0.0)
        log_rate = rate.clamp(min=self._floor).log() + excess - 0.5 * excess.square()
        missing = rate.clamp(max=0.0)  # without this charge y = 0 would draw the prediction down without end
        return y * log_rate - rate - 0.5 * missing.square() - torch.lgamma(y + 1.0)

    def sample(self, prediction: Tensor, streams: NoiseStreams) -> Tensor:
        """Counts, as floats."""
        return streams.poisson(Purpose.MEASUREMENT, self.rate(prediction).clamp(min=0.0))

    def residual(self, y: Tensor, prediction: Tensor) -> Tensor:
        """(y - rate) / (peak / 2)."""
        return (y - self.rate(prediction)) / (0.5 * self.peak)

    def precision(self, prediction: Tensor) -> Tensor:
        """(peak / 2)^2 / rate, the rate not below the floor."""
        return (0.5 * self.peak) ** 2 / self.rate(prediction).clamp(min=self._floor)

    def curvature(self, y: Tensor, prediction: Tensor) -> Tensor:
        """(peak / 2)^2 max(y, rate) / rate^2: far more than the precision where light is underestimated."""
        rate = self.rate(prediction).clamp(min=self._floor)
        return (0.5 * self.peak) ** 2 * torch.maximum(y, rate) / rate.square()
