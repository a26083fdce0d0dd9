"""``lavps degrade``: synthetic measurements of known images.

For ``photo.png`` the output folder holds the measurement ``photo.npy``, unclipped, from which to restore;
``photo.png``, the same clipped to [-1, 1], if it is an image; and ``manifest.json``, from which the
measurements can be reproduced. The operator and noise of image number i depend on (seed, i) alone.
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

from ..checkpoints.hashes import file_hash
from ..io import encode_image, read_image, write_atomically
from ..noise import as_noise
from ..operators.registry import family_from
from ..problem import InverseProblem
from .failures import fatal
from .listing import image_files
from .options import Folder, N, Std, TaskName, argument


@dataclass(frozen=True, kw_only=True)
class Degrade:
    """Make synthetic measurements from images."""

    # Image files, or folders of them.
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, argument(metavar="FILE|FOLDER ...")]
    # Operator: sr4, jpeg20 (JPEG of quality 20), motion-blur, ..., or a Python object in a file.
    task: TaskName[str]
    output: Folder[Path]  # Folder of the measurements, created if missing.
    noise: Std[float] = 0.05  # Standard deviation of the noise, in the units of the measurement.
    seed: N[int] = 0  # Seed of the noise and of random operators.
    crop: N[int] = 1  # Divisor to which height and width are cropped (sr4 needs 4).

    def run(self) -> None:
        """Measure every image, and list the files that fail."""
        with fatal("degrade"):
            family_from(self.task, (3, 64, 64))  # raises before any work if the name is unknown
            files = image_files(self.images, self.output)
            self.output.mkdir(parents=True, exist_ok=True)
        records, failures = [], []
        for item, file in enumerate(files):
            try:
                records.append(self._measure(item, file))
            except (OSError, ValueError) as error:  # noqa: PERF203
                print(f"{file}: {error}", file=sys.stderr)
                failures.append({"image": file.name, "reason": str(error)})
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
        print(f"{len(records)} of {len(files)} images are measured, in {self.output}")
        if failures:
            raise SystemExit(3)

    def _measure(self, item: int, file: Path) -> dict[str, Any]:
        """Write the measurement of one image, and return its entry in the manifest."""
        image = read_image(file)
        x = _cropped(image.pixels, self.crop)
        operator = family_from(self.task, x.shape).draw([item], x.shape, self.seed)
        problem = InverseProblem.simulate(x[None], operator, as_noise(self.noise), self.seed, [item])
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
        if y.ndim == 3 and not y.is_complex() and len(y) == image.channels:  # an image: also as a PNG
            like = replace(image, alpha=None, palette=None, mode="L", dtype="uint8")
            write_atomically(self.output / f"{file.stem}.png", encode_image(y, like, "PNG"))
            record["picture"] = f"{file.stem}.png"
        return record


def _cropped(pixels: Tensor, multiple: int) -> Tensor:
    """Return the centre, with height and width divisible by ``multiple``."""
    if multiple < 1:
        raise ValueError(f"--crop must be at least 1, got {multiple}")
    for axis in (1, 2):
        kept = pixels.shape[axis] // multiple * multiple
        pixels = pixels.narrow(axis, (pixels.shape[axis] - kept) // 2, kept)
    return pixels
