"""Noise models: the distribution of a measurement given its noiseless prediction A(x)."""

from __future__ import annotations

__all__ = [
    "GaussianNoise",
    "NoiseModel",
    "Noiseless",
    "PoissonGaussianNoise",
    "PoissonNoise",
    "as_noise",
]

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .random import NoiseStreams, Purpose
from .transitions import per_sample

_ROUNDING = 2.0 / 255.0 / math.sqrt(12.0)  # standard deviation of rounding [-1, 1] to 256 levels
_FEWEST = 1e-6  # likelihoods take smaller counts, which read-out noise can give, as this one
_MANY = 16.0  # counts from which Stirling's series is accurate in single precision


class NoiseModel(ABC):
    """Distribution of a measurement given its noiseless prediction, independent per entry."""

    @abstractmethod
    def log_prob(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Return the log-density of every entry of y, real, with y's shape."""

    @abstractmethod
    def sample(self, prediction: Tensor, streams: NoiseStreams) -> Tensor:
        """Draw a measurement for every row; a pure function of each row's stream."""

    @abstractmethod
    def residual(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Return the residual of the prediction, in the prediction's units."""

    @abstractmethod
    def precision(self, prediction: Tensor) -> Tensor:
        """Return the inverse variance of the residual (complex: of its modulus), broadcastable."""

    @property
    def batch(self) -> int:
        """Number of rows of the parameters; 1 if all items share them."""
        return 1

    def curvature(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Return the second derivative of -log_prob in the prediction, or an upper bound."""
        return self.precision(prediction) * (2.0 if prediction.is_complex() else 1.0)

    def select(self, rows: Tensor) -> NoiseModel:
        """Return the model with the parameters of these rows."""
        return self

    def to(self, *args: torch.device | str | torch.dtype) -> NoiseModel:
        """Return the model with its tensors on another device; their precision is kept."""
        return self

    def check_fits(self, y: Tensor) -> None:
        """Raise ValueError unless the parameters fit measurements y (B, *measurement)."""
        if self.batch not in (1, len(y)):
            raise ValueError(f"the noise has parameters for {self.batch} items, the batch has {len(y)}")


@dataclass(frozen=True)
class GaussianNoise(NoiseModel):
    """Gaussian noise, y = A(x) + std z; E|noise|^2 = std^2 for complex measurements.

    Args:
        std: Standard deviation in the units of the measurement: one number, one per item (B,), or a map with
            the axes of y (B, *measurement), each of y's size or 1.

    Example:
        >>> GaussianNoise(0.1).log_prob(torch.zeros(1), torch.zeros(1)).item() > 0
        True
        >>> GaussianNoise(torch.tensor([[0.5, 0.25]])).precision(torch.zeros(3, 2))  # a map for all items
        tensor([[ 4., 16.]])
    """

    std: float | Tensor

    def __post_init__(self) -> None:
        if not bool((torch.as_tensor(self.std) > 0).all()):
            raise ValueError(f"the noise's std must be positive, got {self.std}; for none: lavps.Noiseless()")

    def _std(self, like: Tensor) -> Tensor:
        # float64, since torch's default float32 would round it in double-precision problems too.
        std = self.std if isinstance(self.std, Tensor) else torch.tensor(self.std, dtype=torch.float64)
        real = like.real if like.is_complex() else like
        return std.to(real) if std.ndim > 1 else per_sample(std, real)

    @property
    def batch(self) -> int:
        """Number of standard deviations or maps; 1 if all items share it."""
        return len(self.std) if isinstance(self.std, Tensor) and self.std.ndim else 1

    def check_fits(self, y: Tensor) -> None:
        """Raise ValueError unless there is one std for all items, one per item, or a map with y's axes."""
        super().check_fits(y)
        sizes = tuple(torch.as_tensor(self.std).shape)
        if len(sizes) > 1 and (
            len(sizes) != y.ndim or any(own not in (1, n) for own, n in zip(sizes, y.shape, strict=True))
        ):
            raise ValueError(f"a std map {sizes} does not fit measurements {tuple(y.shape)}")

    def log_prob(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Return the log-density; complex: -|y - A x|^2 / std^2 - log(pi std^2)."""
        std = self._std(y)
        if y.is_complex():
            residual = torch.view_as_real(y - prediction).square().sum(-1)
            return -residual / std.square() - (math.pi * std.square()).log()
        return -0.5 * ((y - prediction) / std).square() - (math.sqrt(2 * math.pi) * std).log()

    def sample(self, prediction: Tensor, streams: NoiseStreams) -> Tensor:
        """Return prediction + std z."""
        noise = streams.normal(Purpose.MEASUREMENT, prediction.shape[1:], prediction)
        return prediction + self._std(prediction) * noise

    def residual(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Return y - A(x)."""
        return y - prediction

    def precision(self, prediction: Tensor) -> Tensor:
        """Return 1 / std^2."""
        return 1.0 / self._std(prediction).square()

    def select(self, rows: Tensor) -> GaussianNoise:
        """Return the noise with the standard deviations of these rows."""
        if not isinstance(self.std, Tensor) or self.batch == 1:
            return self
        return GaussianNoise(self.std[rows.to(self.std.device)])

    def to(self, *args: torch.device | str | torch.dtype) -> GaussianNoise:
        """Return the noise with its standard deviations on another device."""
        std = self.std
        for target in args:
            if isinstance(std, Tensor) and not isinstance(target, torch.dtype):
                std = std.to(target)
        return self if std is self.std else GaussianNoise(std)


@dataclass(frozen=True)
class Noiseless(GaussianNoise):
    """Measurements without noise, y = A(x).

    Samplers treat them as Gaussian noise of a small standard deviation. Their samples are then moved to the
    nearest image with A(x) = y, if A is a mask, block means or the identity
    (:meth:`lavps.InverseProblem.project`).

    Args:
        std: Standard deviation that solvers use; default that of rounding to 8 bits.

    Example:
        >>> Noiseless().sample(torch.full((1, 2), 0.5), NoiseStreams.from_seed(1))
        tensor([[0.5000, 0.5000]])
    """

    std: float = _ROUNDING

    def sample(self, prediction: Tensor, streams: NoiseStreams) -> Tensor:
        """Return the prediction."""
        return prediction


def as_noise(noise: object, operator: object = None) -> NoiseModel:
    """Return a noise model; a number is the std of Gaussian noise, None stands for the operator's own.

    Example:
        >>> as_noise(0.0) == Noiseless()
        True
    """
    if isinstance(noise, NoiseModel | Tensor):
        return GaussianNoise(noise) if isinstance(noise, Tensor) else noise
    if noise is not None:
        if not isinstance(noise, (float, int, np.number)):
            raise TypeError(f"noise is a standard deviation or a noise model, got {noise!r}")
        return GaussianNoise(float(noise)) if noise else Noiseless()
    std = getattr(operator, "noise_std", None)
    if std is None or not bool((torch.as_tensor(std) > 0).all()):
        raise ValueError(f"{operator!r} states no Gaussian noise: pass noise=std, in the measurement's units")
    return GaussianNoise(std)


@dataclass(frozen=True)
class PoissonNoise(NoiseModel):
    r"""Photon counts, y ~ Poisson(rate) with rate = peak (A(x) + 1) / 2 + background.

    During sampling a prediction may fall below -1 (black), where the rate is negative. There the logarithm is
    replaced by its second-order expansion and half the squared rate is subtracted, so that the gradient
    points towards valid rates.

    Args:
        peak: Expected photon count at white (+1), without background.
        background: Expected photon count at black (-1), the dark counts.

    Example:
        >>> PoissonNoise(peak=100.0, background=2.0).rate(torch.tensor([-1.0, 1.0]))
        tensor([  2., 102.])
    """

    peak: float
    background: float = 0.0

    def __post_init__(self) -> None:
        if self.peak <= 0 or self.background < 0:
            raise ValueError("PoissonNoise needs peak > 0 and background >= 0")

    def rate(self, prediction: Tensor) -> Tensor:
        """Return the expected counts; negative for a prediction below black."""
        return 0.5 * self.peak * (prediction + 1.0) + self.background

    @property
    def _floor(self) -> float:
        # Rate below which the expansion is used: one photon, or less in very dim scenes. A lower value would
        # be closer to the distribution of dark pixels, but too stiff for first-order methods.
        return max(min(1.0, 0.05 * self.peak), self.background)

    def log_prob(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Return y log(rate) - rate - log(y!)."""
        rate = self.rate(prediction)
        excess = (rate / self._floor - 1.0).clamp(max=0.0)
        log_rate = rate.clamp(min=self._floor).log() + excess - 0.5 * excess.square()
        negative = rate.clamp(max=0.0)  # without this term the log-density is unbounded for y = 0
        return y * log_rate - rate - 0.5 * negative.square() - torch.lgamma(y + 1.0)

    def sample(self, prediction: Tensor, streams: NoiseStreams) -> Tensor:
        """Draw counts, as floats."""
        return streams.poisson(Purpose.MEASUREMENT, self.rate(prediction).clamp(min=0.0))

    def residual(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Return (y - rate) / (peak / 2)."""
        return (y - self.rate(prediction)) / (0.5 * self.peak)

    def precision(self, prediction: Tensor) -> Tensor:
        """Return (peak / 2)^2 / rate, with a lower bound on the rate."""
        return (0.5 * self.peak) ** 2 / self.rate(prediction).clamp(min=self._floor)

    def curvature(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Return (peak / 2)^2 max(y, rate) / rate^2, which exceeds the precision where rate < y."""
        rate = self.rate(prediction).clamp(min=self._floor)
        return (0.5 * self.peak) ** 2 * torch.maximum(y, rate) / rate.square()


@dataclass(frozen=True)
class PoissonGaussianNoise(NoiseModel):
    r"""Noise of a camera: photon counts and read-out noise, in the units of pixels.

    Black (-1) is no light, so that A(x) + 1 is the intensity:

    .. math:: y = g N - 1 + s z, \quad N \sim \mathrm{Poisson}((A(x) + 1) / g), \quad z \sim N(0, 1),

    with mean A(x) and variance :math:`g (A(x) + 1) + s^2`. This is what :meth:`sample` draws. The likelihood
    is that of the shifted Poisson distribution, which has the same mean and variance and a concave logarithm:
    :math:`(y + 1) / g + s^2 / g^2` is taken as a Poisson count. It is accurate unless there are few photons
    and s is smaller than g.

    Args:
        gain: Gain g, the variance per unit of intensity; 2 / n for n photons at white (+1).
        std: Standard deviation s of the read-out noise.

    Reference: Snyder, Hammoud and White, Image recovery from data acquired with a charge-coupled-device
    camera, 1993 (the shifted Poisson distribution).

    Example:
        >>> noise = PoissonGaussianNoise(gain=0.02, std=0.1)
        >>> (1 / noise.precision(torch.tensor([-1.0, 1.0]))).sqrt()  # standard deviation at black and white
        tensor([0.1000, 0.2236])
    """

    gain: float
    std: float

    def __post_init__(self) -> None:
        if not (self.gain > 0 and self.std > 0):
            raise ValueError(f"PoissonGaussianNoise needs gain > 0 and std > 0: {self}")

    @property
    def _shifted(self) -> PoissonNoise:
        return PoissonNoise(2.0 / self.gain, (self.std / self.gain) ** 2)

    def _counts(self, y: Tensor) -> Tensor:
        return self._shifted.rate(y).clamp(min=_FEWEST)

    def log_prob(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Return the log-density of the shifted Poisson distribution."""
        model, k = self._shifted, self._counts(y)
        rate = model.rate(prediction)
        excess = (rate / model._floor - 1.0).clamp(max=0.0)
        # k log(rate / k) - (rate - k), whose terms are small where counts are large, unlike k log(rate).
        log_ratio = ((rate.clamp(min=model._floor) - k) / k).log1p() + excess - 0.5 * excess.square()
        deviance = k * log_ratio - (rate - k) - 0.5 * rate.clamp(max=0.0).square()
        stirling = -0.5 * (2.0 * math.pi * k).log() - 1.0 / (12.0 * k)
        constant = torch.where(k < _MANY, torch.xlogy(k, k) - k - torch.lgamma(k + 1.0), stirling)
        return deviance + constant - math.log(self.gain)

    def sample(self, prediction: Tensor, streams: NoiseStreams) -> Tensor:
        """Draw photon counts and read-out noise."""
        photons = streams.poisson(Purpose.MEASUREMENT, ((prediction + 1.0) / self.gain).clamp(min=0.0))
        noise = streams.normal(Purpose.MEASUREMENT, prediction.shape[1:], prediction, index=1)
        return self.gain * photons - 1.0 + self.std * noise

    def residual(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Return y - A(x)."""
        return y - prediction

    def precision(self, prediction: Tensor) -> Tensor:
        """Return 1 / (gain (A(x) + 1) + std^2), with a lower bound on the variance."""
        return self._shifted.precision(prediction)

    def curvature(self, y: Tensor, prediction: Tensor) -> Tensor:
        """Return the curvature of the shifted Poisson distribution, or an upper bound."""
        return self._shifted.curvature(self._counts(y), prediction)
