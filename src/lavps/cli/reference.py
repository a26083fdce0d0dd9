"""``lavps train reference``: the typicality reference of a prior that has none."""

from __future__ import annotations

__all__ = ["TrainReference", "first_images"]

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
from torch import Tensor

from ..amortization.loading import prior_hash
from ..checkpoints import load_prior, local_copy
from ..devices import resolve_device
from ..evaluation.typicality import REFERENCE, TypicalityReference
from ..training.crops import RandomCrops
from ..training.data import ImageData
from .options import Crop, Device, Model, N, argument


def first_images(data: ImageData | RandomCrops, count: int) -> Tensor:
    """Return the first images, at most ``count``, or ``count`` crops, always the same: (N, C, H, W)."""
    if isinstance(data, RandomCrops):
        return data.fixed(count)
    return torch.stack([data[index] for index in range(min(len(data), count))])


@dataclass(frozen=True, kw_only=True)
class TrainReference:
    """Measure images of the kind a prior was trained on, so that lavps restore reports typicality.

    The weights stay as they are; typicality.json is written beside them.
    """

    prior: Model[Path]  # Model folder of the prior.
    # Images of the kind of its training images: a folder or a tar.
    data: Annotated[Path, argument(metavar="FOLDER|FILE.tar")]
    # Crops: the centre, resized to the size of the prior, or random windows at native resolution.
    crop: Crop = "centre"
    count: N[int] = 256  # Maximum number of images, or number of random crops.
    device: Device[str] = "auto"  # cpu, cuda, mps, xpu, or auto: the first available of cuda, mps, xpu, cpu.

    def run(self) -> None:
        """Measure, and write the reference."""
        folder, device = local_copy(self.prior), resolve_device(self.device)
        prior = load_prior(str(folder), device)
        shape = getattr(prior, "image_shape", None)
        if shape is None or len(shape) != 3:
            raise ValueError(f"{self.prior} is no prior of images")
        channels, height, width = shape
        make = RandomCrops if self.crop == "random" else ImageData
        with TemporaryDirectory() as cache:  # random crops are of decoded photographs
            kept = cache if self.crop == "random" else False
            images = first_images(
                make.open(self.data, (height, width), channels, cache=kept), self.count
            ).clone()
        reference = TypicalityReference.measure(prior, images.to(device), prior_hash(prior))
        reference.write(folder)
        print(f"{reference.images} images are measured, in {Path(folder) / REFERENCE}")
