"""The example images of the README: synthetic faces, measured in three ways, and a photograph with noise.

    python -m recipes.examples.run                          # a second
    python -m recipes.examples.run --restored restored      # after the README's commands: a figure of the results

The faces are samples of a prior of synthetic faces, tiles of ``zoo/synthfaces64/samples.png``. Each is measured as by
``lavps degrade``, with noise 0.05, and written as an 8-bit PNG. Mask and kernel are read back from their files before they
are used. ``truth/`` holds the images before the measurement. The photograph is Chelsea the cat by Stefan van der Walt (CC0), from
scikit-image, at half its size, with noise 0.2; ``--photograph`` writes it again.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from PIL import Image
from torch import Tensor

import lavps
from lavps.io import ImageFile, read_image, write_image
from lavps.io.arrays import read_kernel, read_mask
from lavps.operators import AveragePool, Blur, Mask, Operator
from lavps.operators.registry import named_family
from lavps.pages.panels import comparison, picture_panel

SIDE, NOISE = 64, 0.05
GRAIN = 0.2
TILES = {"small": (3, 3), "hole": (2, 7), "shaken": (6, 1)}  # row and column among the samples


@dataclass(frozen=True)
class Config:
    """Where things are."""

    samples: Path = Path("zoo/synthfaces64/samples.png")
    """The sheet of samples."""
    output: Path = Path("examples")
    """Folder of the images."""
    photograph: bool = False
    """Whether to write the photograph, too."""
    restored: Path | None = None
    """Folder of the restored examples, for one figure of them."""


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


def row_of(name: str, restored: Path, folder: Path) -> Image.Image:
    """The comparison of an example, with the truth at its right."""
    truth = picture_panel(read_image(folder / "truth" / f"{name}.png").pixels, "truth", "not used")
    pair = [Image.open(restored / f"{name}-comparison.png"), Image.open(io.BytesIO(comparison([truth])))]
    row = Image.new("RGB", (sum(part.width for part in pair), max(part.height for part in pair)), "white")
    row.paste(pair[0], (0, 0))
    row.paste(pair[1], (pair[0].width, 0))
    return row


def sheet_of(restored: Path, folder: Path) -> None:
    """The figure of the faces, one below the other, and that of the photograph."""
    row_of("grainy", restored, folder).save(folder / "grainy-restored.png", optimize=True)
    rows = [row_of(name, restored, folder) for name in TILES]
    sheet = Image.new("RGB", (rows[0].width, sum(row.height for row in rows)), "white")
    for number, row in enumerate(rows):
        sheet.paste(row, (0, number * row.height))
    sheet.save(folder / "restored.png", optimize=True)


def photographed() -> Tensor:
    """Return the photograph, (3, H, W)."""
    from skimage import data

    image = Image.fromarray(data.chelsea())
    small = image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)
    levels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
    return levels.reshape(small.height, small.width, 3).permute(2, 0, 1) / 127.5 - 1


def main(config: Config) -> None:
    """Write the images."""
    if config.photograph:
        x = photographed()
        save(config.output / "truth" / "grainy.png", x)
        problem = lavps.InverseProblem.simulate(x[None], lavps.operators.Identity(), GRAIN, seed=0)
        save(config.output / "grainy.png", problem.y[0])
    if config.restored is not None:
        sheet_of(config.restored, config.output)
        return
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
