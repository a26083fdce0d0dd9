r"""One set of measurements per task and split, created once and used by every method.

Item i has image :math:`\pi_{seed}(i)` of the data, an operator :math:`A_i \sim p_{op}` and a measurement
:math:`y_i = A_i x_i + \sigma z_i`, all functions of (seed, item). The first item depends only on the name of
the split and lies beyond the items of any training run: no kernel or mask of a benchmark was used in
training.

The files are ``SPLIT.safetensors`` (clean images as bytes, y) and ``SPLIT.json``. Operators are redrawn from
their family, and verified with a hash of their parameters and with the stored y.
"""

from __future__ import annotations

__all__ = ["MeasurementSet", "MeasurementSettings", "operator_hash"]

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..amortization.measurements import measure
from ..checkpoints.hashes import file_hash
from ..evaluation.metrics import ImageBatch
from ..io.atomic import write_json
from ..noise import GaussianNoise
from ..operators.base import Operator
from ..operators.precision import FullPrecision
from ..operators.registry import family_from
from ..problem import InverseProblem
from ..training.crops import RandomCrops
from ..training.data import ImageData, image_of
from .records import claim, read_json

_ROUNDING = 1e-4  # differences of y between machines; another operator or noise changes the second digit


@dataclass(frozen=True)
class MeasurementSettings:
    """Settings that determine a set of measurements.

    Attributes:
        task: Name of the measurement, or file.py:attribute (:func:`~lavps.operators.registry.family_from`).
        noise: Standard deviation of the noise, in the units of the measurement.
        split: Name of the split, e.g. "validation" or "test".
        count: Number of images.
        seed: Seed of images, operators and noise.
        image_shape: Shape (C, H, W) of the images.
        data: Identification of the image files, set by :meth:`MeasurementSet.create`.
    """

    task: str
    noise: float
    split: str
    count: int
    seed: int
    image_shape: tuple[int, ...]
    data: str = ""

    @property
    def items(self) -> range:
        """Ids of the items, from a first one that the split determines."""
        start = (1 + zlib.crc32(self.split.encode())) << 32
        return range(start, start + self.count)

    def check(self, wanted: MeasurementSettings, path: Path) -> None:
        """Raise ValueError unless these are the wanted settings."""
        pairs = [(f.name, getattr(self, f.name), getattr(wanted, f.name)) for f in fields(self)]
        if differing := [
            f"{name} is {own!r}, wanted {other!r}" for name, own, other in pairs if own != other
        ]:
            raise ValueError(
                f"{path} has measurements with other settings: {'; '.join(differing)}. All methods share "
                "one set of measurements: use these settings, or another folder"
            )


@dataclass(frozen=True, eq=False)
class MeasurementSet:
    """Measurements and the true images.

    Attributes:
        settings: Settings of the set.
        images: Clean images (N, C, H, W).
        y: Measurements (N, *measurement).
        operator: Operator A, with N rows or one for all.
        files: File names of the images.
    """

    settings: MeasurementSettings
    images: ImageBatch
    y: Tensor
    operator: Operator
    files: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.files)

    @property
    def items(self) -> range:
        """Ids of the items."""
        return self.settings.items

    def problem(self, rows: slice, device: str = "cpu", full_precision: bool = False) -> InverseProblem:
        """Return the inverse problem of these rows.

        Args:
            rows: Rows of the set.
            device: Device of the problem.
            full_precision: Whether the operator stays in float32 if a network applies it under autocast.
        """
        chosen = torch.arange(len(self))[rows]
        operator = self.operator if self.operator.batch == 1 else self.operator.select(chosen)
        operator = FullPrecision(operator) if full_precision else operator
        shape = self.settings.image_shape
        return InverseProblem(self.y[chosen], operator, GaussianNoise(self.settings.noise), shape).to(device)

    @classmethod
    def create(
        cls, folder: Path, settings: MeasurementSettings, data: ImageData | RandomCrops
    ) -> MeasurementSet:
        """Measure and write to ``folder``, or open an existing set with equal settings."""
        about = data.describe()
        settings = MeasurementSettings(**asdict(settings) | {"data": f"{about['files']} ({about['count']})"})
        if settings.count > len(data):
            raise ValueError(
                f"{settings.count} {settings.split} images were requested, and the data have {len(data)}: "
                "use more data, or request fewer images"
            )
        with claim(folder / f"{settings.split}.lock"):
            if not (folder / f"{settings.split}.json").exists():
                cls._measure(settings, data)._write(folder)
            return cls.open(folder, settings.split, settings)

    @classmethod
    def open(cls, folder: Path, split: str, wanted: MeasurementSettings | None = None) -> MeasurementSet:
        """Open the set in ``folder``.

        Args:
            folder: Folder written by :meth:`create`.
            split: Name of the split.
            wanted: Settings that the set must have, if given.

        Raises:
            ValueError: The settings differ, a file is damaged, or the redrawn operators differ.
        """
        description, tensors = folder / f"{split}.json", folder / f"{split}.safetensors"
        if not (record := read_json(description)):
            raise FileNotFoundError(f"{folder} has no {split} measurements: run `lavps bench measure`")
        about: dict[str, Any] = record["settings"]
        settings = MeasurementSettings(**about | {"image_shape": tuple(about["image_shape"])})
        if wanted is not None:
            settings.check(wanted, description)
        if file_hash(tensors) != record["sha256"]:
            raise ValueError(f"{tensors} is damaged, or not of this {description.name}: delete both files")
        stored = load_file(tensors)
        images, y = ImageBatch(stored["clean"]), stored["y"]
        again = _problem(settings, images)
        same = operator_hash(again.operator) == record["operator"]
        # An operator that is a user's function has no parameters to hash, so y is compared too.
        if not same or not torch.allclose(again.y, y, rtol=_ROUNDING, atol=_ROUNDING):
            raise ValueError(
                f"{description}: the redrawn operators of {settings.task!r} differ from those of the stored "
                "y (another version of the library, or of your file): measure into another folder"
            )
        return cls(settings, images, y, again.operator, tuple(record["files"]))

    @classmethod
    def _measure(cls, settings: MeasurementSettings, data: ImageData | RandomCrops) -> MeasurementSet:
        chosen = [image_of(row, len(data), settings.seed) for row in range(settings.count)]
        names = data.names
        files = tuple(names[index] if names else f"image {index}" for index in chosen)
        images = ImageBatch.from_tensor(torch.stack([data[index] for index in chosen]))
        problem = _problem(settings, images)
        return cls(settings, images, problem.y, problem.operator, files)

    def _write(self, folder: Path) -> None:
        """Write the tensors, then the JSON file that makes the set valid."""
        file = folder / f"{self.settings.split}.safetensors"
        partial = file.with_suffix(".partial")
        save_file({"clean": self.images.pixels.contiguous(), "y": self.y.contiguous()}, partial)
        partial.replace(file)
        record = {
            "settings": asdict(self.settings),
            "files": self.files,
            "first_item": self.items.start,
            "operator": operator_hash(self.operator),
            "sha256": file_hash(file),
        }
        write_json(folder / f"{self.settings.split}.json", record)


def _problem(settings: MeasurementSettings, images: ImageBatch) -> InverseProblem:
    family = family_from(settings.task, settings.image_shape)
    noise = GaussianNoise(settings.noise)
    return measure(images.to_tensor(), settings.items, family, noise, settings.seed)


def operator_hash(operator: Operator) -> str:
    """Return the SHA-256 of an operator's class and parameters; functions are hashed by name."""
    digest = hashlib.sha256(type(operator).__name__.encode())
    for name, value in sorted(vars(operator).items()):
        digest.update(name.encode())
        for part in value if isinstance(value, Sequence) and not isinstance(value, str) else (value,):
            if isinstance(part, Tensor):
                tensor = part.detach().cpu().contiguous()
                digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                digest.update(tensor.flatten().view(torch.uint8).numpy().data)
            elif isinstance(part, Operator):
                digest.update(operator_hash(part).encode())
            elif part is None or isinstance(part, int | float | str):
                digest.update(repr(part).encode())
            else:
                digest.update(getattr(part, "__qualname__", type(part).__qualname__).encode())
    return digest.hexdigest()
