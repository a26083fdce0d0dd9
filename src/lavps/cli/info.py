"""``lavps info``: a description of a model, a checkpoint, an image file or an operator."""

from __future__ import annotations

__all__ = ["Info", "describe_foreign", "describe_image", "describe_model", "describe_operator"]

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..checkpoints import local_copy, zoo_model
from ..checkpoints.folder import ModelConfig, read_config
from ..checkpoints.prior import is_model_folder, open_foreign
from ..io import ImageFile, read_image
from ..operators import check
from ..operators.registry import family_from
from .failures import fatal
from .options import N, argument

_CHECKPOINTS = (".pt", ".pth", ".pkl", ".safetensors", ".bin", ".ckpt")
_KINDS = {
    "prior": "A prior: an unconditional denoiser of images.",
    "inference": "An inference model: it initializes a sampler, for one prior and its measurements.",
    "conditional": "A conditional denoiser: it restores measurements like those it was trained on.",
    "few-step": "A few-step model: the network of a prior, trained further for a few evaluations.",
}


@dataclass(frozen=True)
class Info:
    """Describe a model, a checkpoint of another library, an image file or an operator."""

    # Model folder, checkpoint (.pt, .pkl, .safetensors, a folder of diffusers), Hub id, image, or operator (a
    # name, or a Python object in a file).
    thing: Annotated[str, tyro.conf.Positional, argument(metavar="FOLDER|FILE|ID|NAME|FILE.py:NAME")]
    label: N[int | None] = None  # Class, for a class-conditional checkpoint of another library.
    # Channels, height and width of the images on which an operator is tested.
    shape: Annotated[tuple[int, ...], argument(metavar="C H W")] = (3, 64, 64)

    def run(self) -> None:
        """Print the description."""
        with fatal("info"):
            print(self._description())

    def _description(self) -> str:
        path = Path(self.thing)
        if path.is_file() and path.suffix.lower() not in _CHECKPOINTS:
            return describe_image(read_image(path))
        is_hub = "/" in self.thing and ".py:" not in self.thing
        if path.exists() or is_hub or zoo_model(self.thing) is not None:
            found = local_copy(self.thing)
            is_own = is_model_folder(found)
            return describe_model(read_config(found)) if is_own else describe_foreign(found, self.label)
        if path.suffix and ".py" not in self.thing:
            raise FileNotFoundError(f"there is no file {self.thing}")
        return describe_operator(self.thing, self.shape)


def describe_model(config: ModelConfig) -> str:
    """Describe a model: its images, schedule, network, weights and training."""
    channels, *spatial = config.image_shape
    lines = [
        _KINDS[config.kind],
        f"  images: {' x '.join(map(str, spatial))} pixels, {channels} channel(s), in [-1, 1]",
        f"  schedule: {config.schedule!r}",
        f"  network: {config.network.get('kind', 'unknown')}, weights in {config.dtype}",
        f"  weights: sha256 {config.sha256}",
    ]
    if config.prediction is not None:
        lines.append(f"  predicts: {config.prediction}, given the {config.time_input}")
    if config.operator:
        lines += [f"  {name} it was trained on: {value}" for name, value in config.operator.items()]
    if config.window:
        lines += [f"  {name}: {value}" for name, value in config.window.items()]
    if config.prior_hash is not None:
        lines.append(f"  trained for the prior whose weights have the hash {config.prior_hash}")
    validation = config.training.get("validation") or {}
    lines += [f"  validation, {name}: {value}" for name, value in validation.items()]
    versions = ", ".join(f"{name} {number}" for name, number in config.versions.items())
    return "\n".join(lines + ([f"  written by {versions}"] if versions else []))


def describe_foreign(path: Path, label: int | None = None) -> str:
    """Describe a checkpoint of another library; its weights are read."""
    loaded = open_foreign(path, label)
    shape = "of any size" if loaded.image_shape is None else " x ".join(map(str, loaded.image_shape))
    return "\n".join(
        [
            "A prior of another library: an unconditional denoiser of images.",
            f"  found: {loaded.line}",
            f"  images: {shape}, in [-1, 1]",
            f"  schedule: {loaded.prior.schedule!r}",
            f"  to use it: --prior {path}, or lavps.load_prior({str(path)!r})",
        ]
    )


def describe_image(image: ImageFile) -> str:
    """Describe an image file, and the metadata that a restoration keeps."""
    (height, width), about = image.size, image.metadata
    kept = {
        "ICC profile": about.icc,
        "EXIF": about.exif,
        "XMP": about.xmp,
        "text": about.text,
        "resolution": about.dpi,
    }
    low, high = float(image.pixels.min()), float(image.pixels.max())
    lines = [
        f"A {image.format} image of {width} x {height} pixels, upright (width x height).",
        f"  pixels: {'grey' if image.channels == 1 else 'colour'}, mode {image.mode}, {image.depth} bit(s) "
        f"per channel, from {low:.3f} to {high:.3f} in [-1, 1]",
        f"  transparency: {'none' if image.alpha is None else 'kept, not restored'}",
        f"  metadata: {', '.join(name for name, value in kept.items() if value) or 'none'}",
    ]
    if about.dpi is not None:
        lines.append(f"  resolution: {about.dpi[0]:.0f} x {about.dpi[1]:.0f} dots per inch")
    return "\n".join(lines + [f"  note: {note}" for note in image.notes])


def describe_operator(task: str, shape: tuple[int, ...]) -> str:
    """Describe an operator, tested on random images."""
    family = family_from(task, shape)
    report = check(family.draw([0], shape), shape)
    return f"{task} is {family!r}; its first draw:\n{report}"
