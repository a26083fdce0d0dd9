"""Images of a folder or a tar, or drawn from the prior."""

from __future__ import annotations

__all__ = ["images_or_draws", "prior_image_shape"]

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from ..priors import LatentPrior, Prior
from ..problem import Unconditional
from ..samplers import DDIM
from ..training.crops import RandomCrops
from ..training.data import ImageData, image_of
from .options import Crop

_PRIOR_SAMPLE_STEPS = 30


def prior_image_shape(prior: Prior, command: str) -> tuple[int, ...]:
    """Return the shape of a prior's images; raise ValueError if it is unknown or of latents."""
    shape = getattr(prior, "image_shape", None)
    if shape is None or isinstance(prior, LatentPrior):
        raise ValueError(f"{command} needs a prior of images of a known size")
    return tuple(shape)


def images_or_draws(
    path: Path | None, crop: Crop, prior: Prior, shape: tuple[int, ...], count: int, seed: int, device: str
) -> Tensor:
    """Return at most ``count`` images (B, C, H, W), or ``count`` crops or draws, determined by the seed.

    Args:
        path: Folder or tar; None draws from the prior.
        crop: "centre" for whole images, resized; "random" for crops at the native resolution.
        prior: Prior.
        shape: Shape (C, H, W) of the images.
        count: Number of images.
        seed: Seed of the order, or of the draws.
        device: Device of the draws.
    """
    if path is None:
        print(f"drawing {count} images from the prior")
        sampler = DDIM(prior, num_steps=_PRIOR_SAMPLE_STEPS)
        problem = Unconditional(shape, count, device=device)
        drawn = sampler.sample(problem, seed=seed, batch_size=16).samples
        assert drawn is not None
        return drawn[:, 0]
    if crop == "random":
        with TemporaryDirectory() as cache:
            photographs = RandomCrops.open(path, (shape[1], shape[2]), shape[0], cache=cache, seed=seed)
            chosen = [image_of(item, len(photographs), seed) for item in range(count)]
            return photographs.draw(chosen, range(count))
    data = ImageData.open(path, (shape[1], shape[2]), shape[0], cache=False)
    chosen = [image_of(item, len(data), seed) for item in range(min(count, len(data)))]
    return torch.stack([data[index] for index in chosen])
