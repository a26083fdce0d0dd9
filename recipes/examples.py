"""The example pictures of the README: people who do not exist, measured in three ways.

    python recipes/examples.py          # a second

The faces are tiles of ``zoo/faces64/samples.png``, which the prior drew. No photograph is in them, so nobody's rights
are. Each is measured as ``lavps degrade`` would, with noise .05, and written as a PNG of 8 bits: what a camera gives.
The mask and the kernel are files too, and it is these files that measured. ``truth/`` holds what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from torch import Tensor

import lavps
from lavps.operators import AveragePool, Blur, Mask, Operator
from lavps.operators.named import named_family
from lavps.restoration import ImageFile, read_image, write_image
from lavps.restoration.arrays import read_kernel, read_mask

SIDE, NOISE = 64, 0.05
TILES = {"small": (5, 2), "hole": (6, 3), "shaken": (4, 3)}  # row and column among the samples


@dataclass(frozen=True)
class Config:
    """Where things are."""

    samples: Path = Path("zoo/faces64/samples.png")
    """The sheet of samples."""
    output: Path = Path("examples")
    """Folder of the pictures."""


def save(file: Path, pixels: Tensor) -> None:
    mode = "L" if len(pixels) == 1 else "RGB"
    write_image(file, pixels, ImageFile(pixels, None, "PNG", mode, "uint8"))


def operator_of(name: str, shape: torch.Size, folder: Path) -> Operator:
    """What measures an example; its mask or kernel is written, and read back."""
    if name == "hole":
        known = named_family("centre-box", shape).draw([0], shape).observed(torch.zeros(1, *shape))
        assert known is not None
        save(folder / "hole-mask.png", 2 * known.reshape(-1, *shape[1:])[:1].float() - 1)
        return Mask(read_mask(folder / "hole-mask.png"))
    if name == "shaken":
        blur = named_family("motion-blur", shape).draw([0], shape)
        assert isinstance(blur, Blur)
        kernel = blur.kernel.reshape(blur.kernel.shape[-2:])
        save(folder / "shaken-kernel.png", (2 * kernel / kernel.max() - 1)[None])
        return Blur(read_kernel(folder / "shaken-kernel.png"))
    return AveragePool(4)


def main(config: Config) -> None:
    """Write the pictures."""
    sheet = read_image(config.samples).pixels
    (config.output / "truth").mkdir(parents=True, exist_ok=True)
    for name, (row, column) in TILES.items():
        x = sheet[:, row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE]
        save(config.output / "truth" / f"{name}.png", x)
        operator = operator_of(name, x.shape, config.output)
        problem = lavps.InverseProblem.simulate(x[None], operator, lavps.GaussianNoise(NOISE), seed=0)
        save(config.output / f"{name}.png", problem.y[0])


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
