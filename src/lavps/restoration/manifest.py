"""What is written beside a restored picture: all that is needed to judge it, and to make it again."""

from __future__ import annotations

__all__ = ["Manifest", "distrusted", "file_record", "found", "model_record", "verdict", "versions"]

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..amortization.hashes import file_hash

_FORMAT = 1
# A sampler of few steps doubles the misfit of a model that fits; these are far beyond.
_FAR_ABOVE, _ABOVE, _FAR_BELOW = 3.0, 1.5, 0.5


@dataclass(frozen=True)
class Manifest:
    """A restoration, in plain JSON values; paths are relative to the manifest's folder where they can be.

    Attributes:
        input: the file: path, sha256, shape of the measurement.
        measurement: task, noise, mask, kernel, member of a random family, shape of the image.
        prior: path and hash of the weights.
        model: the same of the inference model, or None.
        settings: of the sampler.
        sampling: samples, seed, item, rows and windows at a time, and how the settings were chosen.
        machine: device, threads, versions.
        result: misfit and its verdict, acceptance, counts, seconds, advice, a hash of the samples.
        outputs: name and sha256 of the files written.
        notes: what a user should know.
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
        """As the content of a JSON file."""
        text = json.dumps({"lavps restoration": _FORMAT} | asdict(self), indent=2, allow_nan=False)
        return (text + "\n").encode()

    @classmethod
    def read(cls, file: str | Path) -> Manifest:
        """The manifest in a file.

        Raises:
            ValueError: it is none.
        """
        try:
            values: Mapping[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
            if values["lavps restoration"] != _FORMAT:
                raise ValueError(f"its format is {values['lavps restoration']}, not {_FORMAT}")
            return cls(**{field.name: values[field.name] for field in fields(cls)})
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file} is no manifest of lavps restore ({error!r})") from error


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    return {
        "lavps": version("lavps"),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "pillow": version("pillow"),
        "python": platform.python_version(),
    }


def file_record(file: Path | None, folder: Path) -> dict[str, str] | None:
    """Where a file lies, seen from the folder of the manifest, and what is in it."""
    if file is None:
        return None
    return {"path": _relative(file, folder), "sha256": file_hash(file)}


def found(path: str, folder: Path) -> str:
    """A path as a manifest in this folder has it: the file it stands for, or a Hub id as it is."""
    return str(folder / path) if (folder / path).exists() else path


def _relative(path: str | Path, folder: Path) -> str:
    if not Path(path).exists():
        return str(path)  # a Hub id
    try:
        return Path(os.path.relpath(Path(path).resolve(), folder.resolve())).as_posix()
    except ValueError:  # on another drive
        return str(Path(path).resolve())


def model_record(path: str | None, digest: str | None, folder: Path) -> dict[str, str | None] | None:
    """Where a model lies, and the hash of its weights."""
    return None if path is None else {"path": _relative(path, folder), "weights_hash": digest}


def distrusted(chi_square: float) -> bool:
    """Whether a misfit says that the samples do not explain the measurement."""
    return not chi_square <= _FAR_ABOVE


def verdict(chi_square: Sequence[float], noise: float) -> str:
    """What the misfits of the samples, in units of the noise's variance, say in plain words."""
    level = sum(chi_square) / len(chi_square)
    measured = f"its misfit is {level:.3g} in units of the noise's variance, 1 being ideal"
    if distrusted(level):
        return (
            f"does not explain the measurement: {measured}. The operator or the prior does not fit this "
            f"file, or its noise is more than {noise:g}"
        )
    if level < _FAR_BELOW:
        return (
            f"follows the measurement more closely than its noise: {measured}. The noise {noise:g} looks "
            f"overstated: try {noise * max(level, 1e-6) ** 0.5:.2g}"
        )
    if level > _ABOVE:
        return f"roughly explains the measurement: {measured}. A better quality comes nearer"
    return f"explains the measurement: {measured}"
