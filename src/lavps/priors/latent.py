r"""Latent diffusion: a prior over the latents z of an autoencoder, with images x = decode(z).

The measurement is :math:`y = A(\mathrm{decode}(z)) + noise`: an inverse problem in z with the nonlinear
operator :class:`~lavps.operators.DecodedOperator`, to which every sampler applies unchanged.

::

    prior = lavps.load_prior("CompVis/ldm-celebahq-256")
    operator = lavps.operators.DecodedOperator(lavps.operators.AveragePool(4), prior)
    problem = lavps.InverseProblem(y, operator, lavps.GaussianNoise(0.05))
    images = prior.decode(lavps.DPS(prior).sample(problem).samples)

The prior is defined on scaled latents :math:`z = s (z' - m)` of about unit variance, where z' are the latents
of the autoencoder.

References:
    - Rombach et al., High-Resolution Image Synthesis with Latent Diffusion Models, 2022.
"""

from __future__ import annotations

__all__ = ["LatentPrior"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from .protocol import Prior, WrappedPrior


@dataclass(frozen=True)
class LatentPrior(WrappedPrior):
    """A prior in the latent space of an autoencoder.

    Args:
        prior: Prior over scaled latents.
        decoder: Map from autoencoder latents (B, c, h, w) to images (B, C, H, W) in [-1, 1].
        encoder: Map from images to autoencoder latents (the mean of a probabilistic encoder).
        latent_channels: Number of latent channels c.
        factor: Downsampling factor H / h = W / w.
        scale: Factor s of the latents.
        shift: Offset m, subtracted before scaling.
        image_shape: Shape (C, H, W) of the training images, if known.
    """

    prior: Prior
    decoder: Callable[[Tensor], Tensor]
    encoder: Callable[[Tensor], Tensor]
    latent_channels: int
    factor: int
    scale: float = 1.0
    shift: float = 0.0
    image_shape: tuple[int, ...] | None = None

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Return E[z_0 | z_t] for noisy latents (B, c, h, w)."""
        return self.prior.denoise(x_t, t)

    def decode(self, z: Tensor) -> Tensor:
        """Return the images (B, C, H, W) of scaled latents (B, c, h, w); differentiable."""
        return self.decoder(z / self.scale + self.shift)

    def encode(self, x: Tensor) -> Tensor:
        """Return the scaled latents (B, c, h, w) of images (B, C, H, W)."""
        return (self.encoder(x) - self.shift) * self.scale

    def latent_shape(self, image_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the latent shape (c, h, w) of images of shape (C, H, W)."""
        _, *spatial = image_shape
        if any(size % self.factor for size in spatial):
            raise ValueError(
                f"image height and width must be multiples of {self.factor}, got {tuple(spatial)}"
            )
        return (self.latent_channels, *(size // self.factor for size in spatial))
