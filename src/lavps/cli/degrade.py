"""``lavps degrade``: measurements of images that are known, to try a restoration on.

For ``photo.png`` the output folder holds ``photo.npy``, the measurement as numbers (what to restore from:
noise leaves [-1, 1], and an image file would clip it), ``photo.png``, the measurement as a picture where
it is one, and ``manifest.json`` with all that is needed to make the same measurements again. Image number i
has the operator and the noise of (seed, i).
"""

from __future__ import annotations

__all__ = ["Degrade"]

import io
import json
import sys
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from torch import Tensor

from ..amortization.hashes import file_hash
from ..noise import GaussianNoise
from ..operators.named import family_from
from ..problem import InverseProblem
from ..restoration import ImageFile, encode_image, read_image, write_atomically
from .failures import fatal
from .listing import image_files


@dataclass(frozen=True, kw_only=True)
class Degrade:
    """Make synthetic measurements from images."""

    images: Annotated[tuple[Path, ...], tyro.conf.Positional]  # image files, or folders of them
    task: str  # sr4, motion-blur, random-rectangle, ...; or file.py:attribute with an operator of your own
    output: Path  # folder of the measurements, made if missing
    noise: float = 0.05  # standard deviation of the noise, in the units of the measurement
    seed: int = 0  # of the noise and of random operators
    crop: int = 1  # cut the borders so that height and width are multiples of this (sr4 needs 4)

    def run(self) -> None:
        """Measure every image; files that cannot be are listed, and the others are done."""
        with fatal("degrade"):
            family_from(self.task, (3, 64, 64))  # a name that stands for nothing is refused before any work
            files = image_files(self.images, self.output)
            self.output.mkdir(parents=True, exist_ok=True)
        entries = [self._attempt(item, file) for item, file in enumerate(files)]
        records = [entry for entry in entries if "reason" not in entry]
        failures = [entry for entry in entries if "reason" in entry]
        manifest = {
            "task": self.task,
            "noise": self.noise,
            "seed": self.seed,
            "crop": self.crop,
            "lavps": version("lavps"),
            "measurements": records,
            "failures": failures,
        }
        write_atomically(self.output / "manifest.json", (json.dumps(manifest, indent=2) + "\n").encode())
        print(f"{len(records)} measurements of {len(files)} images are in {self.output}")
        if failures:
            raise SystemExit(3)

    def _attempt(self, item: int, file: Path) -> dict[str, Any]:
        try:
            return self._measure(item, file)
        except (OSError, ValueError) as error:
            print(f"{file}: {error}", file=sys.stderr)
            return {"image": file.name, "reason": str(error)}

    def _measure(self, item: int, file: Path) -> dict[str, Any]:
        """Write the measurement of one image; its entry in the manifest."""
        image = read_image(file)
        x = _cropped(image.pixels, self.crop)
        operator = family_from(self.task, x.shape).draw([item], x.shape, self.seed)
        problem = InverseProblem.simulate(x[None], operator, GaussianNoise(self.noise), self.seed, [item])
        y = problem.y[0]
        numbers = io.BytesIO()
        np.save(numbers, y.numpy(), allow_pickle=False)
        write_atomically(self.output / f"{file.stem}.npy", numbers.getvalue())
        record = {
            "image": file.name,
            "sha256": file_hash(file),
            "item": item,
            "image_shape": list(x.shape),
            "measurement": f"{file.stem}.npy",
            "measurement_shape": list(y.shape),
            "notes": list(image.notes),
        }
        if picture := _picture(y, image):
            write_atomically(self.output / f"{file.stem}.png", picture)
            record["picture"] = f"{file.stem}.png"
        return record


def _cropped(pixels: Tensor, multiple: int) -> Tensor:
    """The middle, of a height and width that are multiples of this."""
    if multiple < 1:
        raise ValueError(f"--crop must be at least 1, got {multiple}")
    for axis in (1, 2):
        kept = pixels.shape[axis] // multiple * multiple
        pixels = pixels.narrow(axis, (pixels.shape[axis] - kept) // 2, kept)
    return pixels


def _picture(y: Tensor, image: ImageFile) -> bytes | None:
    """A measurement that is an image as a PNG to look at, clipped to [-1, 1]."""
    if y.ndim != 3 or y.is_complex() or len(y) != image.channels:
        return None
    return encode_image(y, replace(image, alpha=None, palette=None, mode="L", dtype="uint8"), "PNG")
