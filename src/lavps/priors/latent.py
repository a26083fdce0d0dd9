r"""Latent diffusion: a prior over the latents z of an autoencoder, images being x = decode(z).

The measurement then reads :math:`y = A(\mathrm{decode}(z)) + noise`: an inverse problem in z with a nonlinear
operator, :class:`~lavps.operators.DecodedOperator`, to which every sampler applies unchanged.

::

    prior = lavps.load_prior("CompVis/ldm-celebahq-256")
    operator = lavps.operators.DecodedOperator(lavps.operators.AveragePool(4), prior)
    problem = lavps.InverseProblem(y, operator, lavps.GaussianNoise(0.05))
    images = prior.decode(lavps.DPS(prior).sample(problem).samples)

Latents are scaled to about unit variance, :math:`z = s (z' - m)` for the autoencoder's own latents z', as the
denoiser was trained on them.

References:
    - Rombach et al., High-Resolution Image Synthesis with Latent Diffusion Models, 2022.
"""

from __future__ import annotations

__all__ = ["LatentPrior"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..schedule import Schedule
from .base import Prior


@dataclass(frozen=True)
class LatentPrior:
    """A prior in the latent space of an autoencoder.

    Args:
        prior: the prior over scaled latents.
        decoder: the autoencoder's latents (B, c, h, w) to images (B, C, H, W) in [-1, 1].
        encoder: images to the autoencoder's latents (their mean, where it gives a distribution).
        latent_channels: c.
        factor: H / h = W / w.
        scale: s, by which latents are multiplied for the prior.
        shift: m, subtracted before.
        image_shape: (C, H, W) it was made for, where known.
    """

    prior: Prior
    decoder: Callable[[Tensor], Tensor]
    encoder: Callable[[Tensor], Tensor]
    latent_channels: int
    factor: int
    scale: float = 1.0
    shift: float = 0.0
    image_shape: tuple[int, ...] | None = None

    @property
    def schedule(self) -> Schedule:
        """The schedule of the latents' noise."""
        return self.prior.schedule

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """E[z_0 | z_t] for noisy latents (B, c, h, w)."""
        return self.prior.denoise(x_t, t)

    def decode(self, z: Tensor) -> Tensor:
        """Images (B, C, H, W) of scaled latents (B, c, h, w); differentiable."""
        return self.decoder(z / self.scale + self.shift)

    def encode(self, x: Tensor) -> Tensor:
        """Scaled latents (B, c, h, w) of images (B, C, H, W)."""
        return (self.encoder(x) - self.shift) * self.scale

    def latent_shape(self, image_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape (c, h, w) of the latents of images (C, H, W)."""
        _, *spatial = image_shape
        if any(size % self.factor for size in spatial):
            raise ValueError(
                f"the sizes of an image must be multiples of {self.factor}, got {tuple(spatial)}"
            )
        return (self.latent_channels, *(size // self.factor for size in spatial))
