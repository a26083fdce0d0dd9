r"""One set of measurements per task and split, made once and seen by every method.

Item i has the image number :math:`\pi_{seed}(i)` of the data, an operator
:math:`A_i \sim p_{op}` and a measurement :math:`y_i = A_i x_i + \sigma z_i`, all functions of (seed, item).
Items are numbered from a start that only the split's name decides, far beyond the items of any training:
no kernel or mask of a benchmark is one that a model was trained on or tuned with.

On disk: ``SPLIT.safetensors`` (clean images as bytes, y) and ``SPLIT.json`` (all else). Operators are drawn
again from their family; a hash of their parameters and the stored y say whether they are the same ones.
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

from ...amortization.checkpoint import write_json
from ...amortization.data import ImageData, image_of
from ...amortization.hashes import file_hash
from ...amortization.measurements import measure
from ...noise import GaussianNoise
from ...operators.base import Operator
from ...operators.named import family_from
from ...operators.precision import FullPrecision
from ...problem import InverseProblem
from ..metrics import ImageBatch
from .records import claim, read_json

_ROUNDING = 1e-4  # of y between machines; a different operator or noise shows in the second digit


@dataclass(frozen=True)
class MeasurementSettings:
    """What decides a set of measurements.

    Attributes:
        task: name of the measurement, or file.py:attribute (:func:`~lavps.operators.named.family_from`).
        noise: standard deviation, in the units of the measurement.
        split: "validation", "test", or another name.
        count: number of images.
        seed: of images, operators and noise.
        image_shape: (C, H, W).
        data: what tells the image files from others; filled in by :meth:`MeasurementSet.create`.
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
        """Item ids, from a start of the split's own."""
        start = (1 + zlib.crc32(self.split.encode())) << 32
        return range(start, start + self.count)

    def check(self, wanted: MeasurementSettings, path: Path) -> None:
        """Refuse to be taken for other settings."""
        pairs = [(f.name, getattr(self, f.name), getattr(wanted, f.name)) for f in fields(self)]
        differing = [
            f"{name} is {mine!r}, wanted {theirs!r}" for name, mine, theirs in pairs if mine != theirs
        ]
        if differing:
            raise ValueError(
                f"{path} holds measurements of other settings: {'; '.join(differing)}. Measurements are made "
                "once and serve every method: use these settings, or another folder"
            )


@dataclass(frozen=True, eq=False)
class MeasurementSet:
    """Measurements, and the images they are of.

    Attributes:
        settings: what they are.
        images: the clean images (N, C, H, W).
        y: measurements (N, *measurement).
        operator: A, N rows or one for all.
        files: file name of every image.
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
        """Item ids."""
        return self.settings.items

    def problem(self, rows: slice, device: str = "cpu", full_precision: bool = False) -> InverseProblem:
        """The problem of these rows.

        Args:
            rows: which.
            device: where to compute.
            full_precision: keep the operator in float32 where a network calls it under autocast.
        """
        chosen = torch.arange(len(self))[rows]
        operator = self.operator if self.operator.batch == 1 else self.operator.select(chosen)
        operator = FullPrecision(operator) if full_precision else operator
        shape = self.settings.image_shape
        return InverseProblem(self.y[chosen], operator, GaussianNoise(self.settings.noise), shape).to(device)

    @classmethod
    def create(cls, folder: Path, settings: MeasurementSettings, data: ImageData) -> MeasurementSet:
        """Measure and write to ``folder``, unless it is there already; refused where it is another."""
        about = data.describe()
        settings = MeasurementSettings(**asdict(settings) | {"data": f"{about['files']} ({about['count']})"})
        if settings.count > len(data):
            raise ValueError(
                f"{settings.count} {settings.split} images are wanted, the data have {len(data)}: give more "
                "data, or ask for fewer"
            )
        with claim(folder / f"{settings.split}.lock"):
            if not (folder / f"{settings.split}.json").exists():
                cls._measure(settings, data)._write(folder)
            return cls.open(folder, settings.split, settings)

    @classmethod
    def open(cls, folder: Path, split: str, wanted: MeasurementSettings | None = None) -> MeasurementSet:
        """The set in ``folder``.

        Args:
            folder: where :meth:`create` wrote it.
            split: its name.
            wanted: where given, any difference is refused.

        Raises:
            ValueError: other settings; a damaged file; operators that are not rebuilt as they were.
        """
        description, tensors = folder / f"{split}.json", folder / f"{split}.safetensors"
        record = read_json(description)
        if not record:
            raise FileNotFoundError(
                f"{folder} has no {split} measurements: make them with `lavps bench measure`"
            )
        about: dict[str, Any] = record["settings"]
        settings = MeasurementSettings(**about | {"image_shape": tuple(about["image_shape"])})
        if wanted is not None:
            settings.check(wanted, description)
        if file_hash(tensors) != record["sha256"]:
            raise ValueError(
                f"{tensors} is damaged, or of another {description.name}: delete both, measure again"
            )
        stored = load_file(tensors)
        images = ImageBatch(stored["clean"])
        again = _problem(settings, images)
        rebuilt = cls(settings, images, stored["y"], again.operator, tuple(record["files"]))
        rebuilt._check(again, record["operator"], description)
        return rebuilt

    @classmethod
    def _measure(cls, settings: MeasurementSettings, data: ImageData) -> MeasurementSet:
        chosen = [image_of(row, len(data), settings.seed) for row in range(settings.count)]
        names = data.names
        files = tuple(names[index] if names else f"image {index}" for index in chosen)
        images = ImageBatch.from_tensor(torch.stack([data[index] for index in chosen]))
        problem = _problem(settings, images)
        return cls(settings, images, problem.y, problem.operator, files)

    def _write(self, folder: Path) -> None:
        """The tensors first: a set without its JSON is none."""
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

    def _check(self, again: InverseProblem, expected: str, path: Path) -> None:
        same = operator_hash(again.operator) == expected
        # An operator that is a user's function has no parameters to hash: what it does is what counts.
        if not same or not torch.allclose(again.y, self.y, rtol=_ROUNDING, atol=_ROUNDING):
            raise ValueError(
                f"{path}: the operators of {self.settings.task!r} are not drawn again as they were when y "
                "was measured (another version of the library, or of your file): measure into another folder"
            )


def _problem(settings: MeasurementSettings, images: ImageBatch) -> InverseProblem:
    family = family_from(settings.task, settings.image_shape)
    noise = GaussianNoise(settings.noise)
    return measure(images.to_tensor(), settings.items, family, noise, settings.seed)


def operator_hash(operator: Operator) -> str:
    """sha256 of an operator's class and all its parameters; functions count by their name."""
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
