"""Small priors, networks and problems shared by the tests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lavps
from lavps.operators import AveragePool, Mask
from lavps.schedule import Schedule
from lavps.transitions import per_sample


class ConvDenoiser(nn.Module):
    """A convolution, tanh and the same convolution transposed, of fixed random weights.

    Like a true denoiser it has a symmetric Jacobian without negative directions. Any number of spatial axes.
    """

    def __init__(self, channels: int = 1, width: int = 8, dims: int = 2, seed: int = 0) -> None:
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        self.conv = conv(channels, width, 3, padding=1)
        self.transposed = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
        self.dropout = nn.Dropout(0.5)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.15 * torch.randn(parameter.shape, generator=generator))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """v-prediction."""
        hidden = self.conv(x) + t.to(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
        return -self.transposed(self.dropout(torch.tanh(hidden)), self.conv.weight, padding=1)


class StationaryGaussian:
    """Zero-mean images of any size whose covariance is a product of exp(-distance / length), exact.

    The marginal on a window has the same form: the prior of windows of a Gaussian prior of images.
    """

    def __init__(self, length: float, std: float = 0.5) -> None:
        self.schedule: Schedule = lavps.VPLinear()
        self.length, self.std = length, std
        self.axis = lru_cache(self._axis)

    def _axis(self, size: int) -> tuple[Tensor, Tensor]:
        place = torch.arange(size, dtype=torch.float64)
        distance = (place[:, None] - place).abs() / self.length
        values, basis = torch.linalg.eigh(torch.exp(-distance))
        return values.clamp(min=0.0), basis

    def _spectrum(self, shape: Sequence[int]) -> Tensor:
        return self.std**2 * self.axis(shape[-2])[0][:, None] * self.axis(shape[-1])[0]

    def _filter(self, x: Tensor, gain: Tensor) -> Tensor:
        (_, down), (_, across) = self.axis(x.shape[-2]), self.axis(x.shape[-1])
        return (down @ (gain * (down.mT @ x.double() @ across)) @ across.mT).to(x.dtype)

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        like = x_t.double()
        alpha, sigma = (per_sample(c, like) for c in (self.schedule.alpha(t), self.schedule.sigma(t)))
        spectrum = self._spectrum(x_t.shape)
        return self._filter(x_t, alpha * spectrum / (alpha.square() * spectrum + sigma.square()))

    def sample(self, *shape: int) -> Tensor:
        noise = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return self._filter(noise, self._spectrum(shape).sqrt())


def network_prior(schedule: Schedule | None = None, dims: int = 2, channels: int = 1) -> lavps.NetworkPrior:
    schedule = lavps.VPLinear() if schedule is None else schedule
    return lavps.NetworkPrior(ConvDenoiser(channels, dims=dims), schedule, "v")


def images(batch: int, shape: tuple[int, ...] = (1, 8, 8), seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.5 * torch.randn(batch, *shape, generator=generator)


def pooling_problem(batch: int, seed: int = 0, items: list[int] | None = None) -> lavps.InverseProblem:
    """Block means of images, a noise level of its own for every item."""
    std = torch.linspace(0.05, 0.2, batch)
    noise = lavps.GaussianNoise(std)
    return lavps.InverseProblem.simulate(images(batch, seed=seed), AveragePool(2), noise, seed, items)


def masking_problem(batch: int, seed: int = 0) -> lavps.InverseProblem:
    """A mask of its own for every item."""
    masks = torch.rand(batch, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) < 0.5
    operator = Mask(masks, batched=True)
    return lavps.InverseProblem.simulate(images(batch, seed=seed), operator, lavps.GaussianNoise(0.1), seed)
