"""Manifest of a restored image: all that is needed to assess it, and to reproduce it."""

from __future__ import annotations

__all__ = [
    "LARGEST_MISFIT",
    "Manifest",
    "assessment",
    "distrusted",
    "file_record",
    "found",
    "model_record",
    "versions",
]

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.hashes import file_hash

_FORMAT = 1
LARGEST_MISFIT = 3.0  # far above the misfit of a fitting model, which few sampler steps at most double
_ABOVE, _FAR_BELOW = 1.5, 0.5


@dataclass(frozen=True)
class Manifest:
    """Record of a restoration, in plain JSON values; paths are relative to the manifest's folder if possible.

    Attributes:
        input: Path and sha256 of the file, shape of the measurement.
        measurement: Task, noise, mask, kernel, draw of a random family, shape of the image.
        prior: Path, and hash of the weights.
        model: The same of the inference model, or None.
        settings: Settings of the sampler.
        sampling: Samples, seed, item, sizes of batches, and how the settings were chosen.
        machine: Device, threads, versions.
        result: Misfit and its assessment, acceptance rate, counts, seconds, advice, hash of the samples.
        outputs: Name and sha256 of the files written.
        notes: Notes for the user.
    """

    input: dict[str, Any]
    measurement: dict[str, Any]
    prior: dict[str, Any]
    model: dict[str, Any] | None
    settings: dict[str, Any]
    sampling: dict[str, Any]
    machine: dict[str, Any]
    result: dict[str, Any]
    outputs: dict[str, str]
    notes: list[str]

    def encode(self) -> bytes:
        """Return the content of the JSON file."""
        text = json.dumps({"lavps restoration": _FORMAT} | asdict(self), indent=2, allow_nan=False)
        return (text + "\n").encode()

    @classmethod
    def read(cls, file: str | Path) -> Manifest:
        """Read a manifest.

        Raises:
            ValueError: The file is not a manifest.
        """
        try:
            values: Mapping[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
            if values["lavps restoration"] != _FORMAT:
                raise ValueError(f"its format is {values['lavps restoration']}, not {_FORMAT}")
            return cls(**{field.name: values[field.name] for field in fields(cls)})
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise ValueError(f"{file} is no JSON file; give the one that lavps restore wrote") from None
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file} is no manifest of lavps restore ({error!r})") from error


def versions() -> dict[str, str]:
    """Return the versions on which the numbers depend."""
    return {
        "lavps": version("lavps"),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "pillow": version("pillow"),
        "python": platform.python_version(),
    }


def file_record(file: Path | None, folder: Path) -> dict[str, str] | None:
    """Return path, relative to the manifest's folder, and hash of a file."""
    if file is None:
        return None
    return {"path": _relative(file, folder), "sha256": file_hash(file)}


def found(path: str, folder: Path) -> str:
    """Resolve a path of a manifest in this folder; a Hub id is returned unchanged."""
    return str(folder / path) if (folder / path).exists() else path


def _relative(path: str | Path, folder: Path) -> str:
    if not Path(path).exists():
        return str(path)  # a Hub id
    try:
        return Path(os.path.relpath(Path(path).resolve(), folder.resolve())).as_posix()
    except ValueError:  # on another drive
        return str(Path(path).resolve())


def model_record(path: str | None, digest: str | None, folder: Path) -> dict[str, str | None] | None:
    """Return the path of a model and the hash of its weights."""
    return None if path is None else {"path": _relative(path, folder), "weights_hash": digest}


def distrusted(chi_square: float) -> bool:
    """Return whether the misfit is too large for the samples to explain the measurement."""
    return not chi_square <= LARGEST_MISFIT


def assessment(chi_square: Sequence[float], noise: float, below: bool = False) -> str:
    """Assess the misfits, in units of the noise's variance, in plain words.

    Args:
        chi_square: Misfit of every sample.
        noise: Standard deviation of the noise.
        below: Whether a misfit far below 1 is as it should be: of the posterior mean, and of JPEG files.
    """
    level = sum(chi_square) / len(chi_square)
    if noise == 0 and level <= _ABOVE:
        return "agrees with the measurement, whose noise is 0"
    ideal = "at most 1" if below else "1"
    measured = f"its misfit is {level:.3g} in units of the noise's variance, {ideal} being ideal"
    if distrusted(level):
        return (
            f"does not explain the measurement: {measured}. The operator or the prior does not fit this "
            f"file, or its noise is more than {noise:g}"
        )
    if level < _FAR_BELOW and not below:
        return (
            f"follows the measurement more closely than its noise: {measured}. The noise {noise:g} looks "
            f"overstated: try {noise * max(level, 1e-6) ** 0.5:.2g}"
        )
    if level > _ABOVE:
        return (
            f"roughly explains the measurement: {measured}. The noise {noise:g} may be understated: leave "
            f"out --noise, or try {noise * level**0.5:.2g}; with few evaluations, more come nearer, too"
        )
    return f"explains the measurement: {measured}"
