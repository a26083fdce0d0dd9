"""Small priors, networks and problems shared by the tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import lavps
from lavps.operators import AveragePool, Mask
from lavps.schedule import Schedule


class ConvDenoiser(nn.Module):
    """A small convolutional network of fixed random weights, any number of spatial axes."""

    def __init__(self, channels: int = 1, width: int = 8, dims: int = 2, seed: int = 0) -> None:
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        self.first = conv(channels, width, 3, padding=1)
        self.second = conv(width, channels, 3, padding=1)
        self.dropout = nn.Dropout(0.5)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.15 * torch.randn(parameter.shape, generator=generator))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x) + t.to(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
        return self.second(self.dropout(torch.tanh(hidden)))


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
