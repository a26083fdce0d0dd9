"""Objects in the form of other libraries."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import lavps


class GaussianNoise(nn.Module):
    def __init__(self, sigma: float | Tensor) -> None:
        super().__init__()
        self.register_buffer("sigma", torch.as_tensor(sigma))


class Masking(nn.Module):
    """y = mask * x, in the form of deepinv's linear physics; a call may store things, as there."""

    def __init__(self, mask: Tensor, sigma: float | Tensor | None = 0.1) -> None:
        super().__init__()
        self.noise_model = nn.Identity() if sigma is None else GaussianNoise(sigma)
        self.register_buffer("mask", mask)

    def A(self, x: Tensor) -> Tensor:  # noqa: N802 - deepinv's name
        self.last = x
        return self.mask * x

    def A_adjoint(self, y: Tensor) -> Tensor:  # noqa: N802
        return self.mask * y

    def A_adjoint_A(self, x: Tensor) -> Tensor:  # noqa: N802
        return self.mask**2 * x


def shrink(x: Tensor, sigma: Tensor) -> Tensor:
    """The denoiser of N(.5, .04) pixels in [0, 1]."""
    variance = torch.as_tensor(sigma).to(x).reshape(-1, *[1] * (x.ndim - 1)).square()
    return 0.5 + 0.04 / (0.04 + variance) * (x - 0.5)


class Azula(nn.Module):
    """N(0, .16) pixels in [-1, 1] in azula's form, with a schedule whose noise starts above 0."""

    def schedule(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return 1 - 0.999 * t, 1e-3 + t

    def forward(self, x_t: Tensor, t: Tensor) -> lavps.Posterior:
        alpha, sigma = (part.reshape(-1, *[1] * (x_t.ndim - 1)) for part in self.schedule(t))
        self.mean = 0.16 * alpha / (0.16 * alpha**2 + sigma**2) * x_t
        return self
