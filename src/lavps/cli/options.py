"""Options that several commands share, declared once."""

from __future__ import annotations

__all__ = [
    "Crop",
    "Device",
    "File",
    "Folder",
    "Model",
    "N",
    "NoiseRange",
    "Option",
    "PriorPath",
    "RestorationOptions",
    "Std",
    "TaskName",
    "argument",
    "lowest_and_highest",
    "parse_duration",
]

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro

from ..devices import resolve_device
from ..priors.precision import Precision
from ..restoration.config import RestorationConfig
from ..restoration.presets import Quality
from ..restoration.schedules import TunedSchedule
from ..restoration.spec import MeasurementSpec


def _hint(default: str) -> str:
    return "" if default in ("", "''", "None") else f"(default: {default})"


# tyro's, which prints no default where there is none.
argument = partial(tyro.conf.arg, help_behavior_hint=_hint)

# Types of options, each with the word that --help prints for its value.
T = TypeVar("T")
Crop = Literal["centre", "random"]
File = Annotated[T, argument(metavar="FILE")]
Folder = Annotated[T, argument(metavar="FOLDER")]
Model = Annotated[T, argument(metavar="FOLDER|NAME|ID")]
N = Annotated[T, argument(metavar="N")]
Std = Annotated[T, argument(metavar="STD")]
NoiseRange = Annotated[tuple[float, ...], argument(metavar="STD [STD]")]
TaskName = Annotated[T, argument(metavar="NAME|FILE.py:NAME")]
PriorPath = Annotated[T, argument(metavar="FOLDER|FILE|NAME|ID")]
Option = Annotated[T, argument()]
Device = Annotated[T, argument(metavar="DEVICE")]
_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def lowest_and_highest(noise: tuple[float, ...]) -> tuple[float, float]:
    """Return the ends of a range of noise levels; raise ValueError unless --noise gives one or two."""
    if len(noise) not in (1, 2) or min(noise) <= 0:
        raise ValueError("--noise takes one or two standard deviations above 0: --noise 0.01 0.1")
    return min(noise), max(noise)


def parse_duration(text: str) -> float:
    """Return the seconds of "5s", "500ms", "2min", "1h" or "5"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _UNITS or float(match[1]) == 0:
        raise ValueError(f"a budget is a time such as 5s, 500ms or 2min, got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True, kw_only=True)
class RestorationOptions:
    """Options of a restoration."""

    # Model folder, checkpoint of another library (.pt, .pkl, .safetensors, diffusers), name of a model of the
    # installed package lavps-zoo (synthfaces64), or Hub id.
    prior: PriorPath[str]
    # Operator: a name (sr4, inpaint, deblur, denoise, motion-blur, jpeg, ...) or a Python object in a file.
    # Default: the entry of a manifest of lavps degrade beside the file.
    task: Annotated[str | None, argument(metavar="NAME|FILE.py:NAME", aliases=["--operator"])] = None
    # Execution of a Python file that a manifest.json beside the measurements names as its operator; without
    # this option only a file given as --task is executed.
    trust_manifest: bool = False
    # Mask for inpaint: an image that is white where the measurement is known and black where it is missing.
    # Default: the file's own transparency, with alpha 0 for missing pixels.
    mask: File[Path | None] = None
    kernel: File[Path | None] = None  # Blur kernel for deblur: image of a point of light, or .npy.
    # Standard deviation of the noise, on the scale on which black is -1 and white is +1: 0.05 is 6.4 grey
    # levels of 255; 0 stands for rounding. Default: the entry of a manifest of lavps degrade, else an
    # estimate from the file; not for hdr, phase-retrieval and lossy files, except jpeg of JPEG files (0.01).
    noise: Std[float | None] = None
    # Known pixels of a mask, unchanged in every sample; default if the noise is 0.
    keep_known: Option[bool | None] = None
    inference_model: Model[str | None] = None  # Inference model or few-step model of this prior.
    samples: N[int] = 1  # Samples per image; from 2 on, their mean and uncertainty are also written.
    seed: N[int] = 0  # Seed of the sampler's noise.
    # fast, balanced (the default) or best: 4 or 8, 25 or 100 evaluations.
    quality: Option[Quality | None] = None
    # Denoiser evaluations per sample at most, instead of --quality; 1 gives the posterior mean at once.
    evaluations: N[int | None] = None
    schedule: File[Path | None] = None  # Schedule of lavps tune, instead of --quality.
    tile_batch: N[int] = 16  # Windows per denoiser call, for images larger than the prior's.
    precision: Precision = "fp32"  # Precision of the prior's network; images and noise stay in fp32.
    compile: bool = False  # Compilation of the prior's network: a slow first evaluation, then faster ones.
    label: N[int | None] = None  # Class, for a class-conditional prior of another library.
    device: Device[str] = "auto"  # cpu, cuda, mps, xpu, or auto: the first available of cuda, mps, xpu, cpu.

    def job(self) -> RestorationConfig:
        """Return the options in plain values."""
        return RestorationConfig(
            self.prior,
            self.inference_model,
            MeasurementSpec(
                self.task,
                self.noise,
                self.mask,
                self.kernel,
                trust_manifest=self.trust_manifest,
                keep_known=self.keep_known,
            ),
            self.samples,
            self.seed,
            quality=self.quality,
            evaluations=self.evaluations,
            schedule=None if self.schedule is None else TunedSchedule.read(self.schedule),
            tile_batch=self.tile_batch,
            device=resolve_device(self.device),
            label=self.label,
            precision=self.precision,
            compiled=self.compile,
        )
