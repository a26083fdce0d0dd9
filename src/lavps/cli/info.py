"""``lavps info``: what a model, a checkpoint, an image file or an operator is, in plain words."""

from __future__ import annotations

__all__ = ["Info", "describe_foreign", "describe_image", "describe_model", "describe_operator"]

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..amortization.checkpoint import ModelConfig, read_config
from ..amortization.opening import is_model_folder, open_foreign
from ..operators import check
from ..operators.named import family_from
from ..priors.foreign import local_copy
from ..restoration import ImageFile, read_image
from .failures import fatal

_CHECKPOINTS = (".pt", ".pth", ".pkl", ".safetensors", ".bin", ".ckpt")
_KINDS = {
    "prior": "A prior: a denoiser that knows images and no measurement.",
    "inference": "An inference model: it tells a sampler where to start, for one prior and its measurements.",
    "conditional": "A conditional denoiser: it has learned to restore the measurements it was trained on.",
}


@dataclass(frozen=True)
class Info:
    """Describe a model, a checkpoint of another library, an image file or an operator."""

    # a model folder, a checkpoint (.pt, .pkl, .safetensors, a folder of diffusers), a Hub id, an image, a
    # task, or file.py:attribute
    thing: Annotated[str, tyro.conf.Positional]
    label: int | None = None  # the class, for a class-conditional checkpoint of another library
    shape: tuple[int, ...] = (3, 64, 64)  # of the images an operator is tried on: channels, height, width

    def run(self) -> None:
        """Print it."""
        with fatal("info"):
            print(self._description())

    def _description(self) -> str:
        path = Path(self.thing)
        if path.is_file() and path.suffix.lower() not in _CHECKPOINTS:
            return describe_image(read_image(path))
        if path.exists() or ("/" in self.thing and ".py:" not in self.thing):
            found = local_copy(self.thing)
            return (
                describe_model(read_config(found))
                if is_model_folder(found)
                else describe_foreign(found, self.label)
            )
        return describe_operator(self.thing, self.shape)


def describe_model(config: ModelConfig) -> str:
    """What a model is, for whom, and where it came from."""
    channels, *spatial = config.image_shape
    lines = [
        _KINDS[config.kind],
        f"  images: {' x '.join(map(str, spatial))} pixels, {channels} channel(s), in [-1, 1]",
        f"  schedule: {config.schedule!r}",
        f"  network: {config.network.get('kind', 'unknown')}, weights in {config.dtype}",
        f"  weights: sha256 {config.sha256}",
    ]
    if config.prediction is not None:
        lines.append(f"  predicts: {config.prediction}, told the {config.time_input}")
    if config.operator:
        lines += [f"  {name} it was trained on: {value}" for name, value in config.operator.items()]
    if config.window:
        lines += [f"  {name}: {value}" for name, value in config.window.items()]
    if config.prior_hash is not None:
        lines.append(f"  serves the prior whose weights have the hash {config.prior_hash}")
    validation = config.training.get("validation") or {}
    lines += [f"  validation, {name}: {value}" for name, value in validation.items()]
    versions = ", ".join(f"{name} {number}" for name, number in config.versions.items())
    return "\n".join(lines + ([f"  written by {versions}"] if versions else []))


def describe_foreign(path: Path, label: int | None = None) -> str:
    """What a checkpoint of another library was found to be; its weights are read to know."""
    loaded = open_foreign(path, label)
    shape = "of any size" if loaded.image_shape is None else " x ".join(map(str, loaded.image_shape))
    return "\n".join(
        [
            "A prior of another library: a denoiser that knows images and no measurement.",
            f"  found: {loaded.line}",
            f"  images: {shape}, in [-1, 1]",
            f"  schedule: {loaded.prior.schedule!r}",
            f"  to use it: --prior {path}, or lavps.load_prior({str(path)!r})",
        ]
    )


def describe_image(image: ImageFile) -> str:
    """What a file holds, and what a restoration will keep."""
    (height, width), about = image.size, image.metadata
    kept = [
        name
        for name, value in (
            ("ICC profile", about.icc),
            ("EXIF", about.exif),
            ("XMP", about.xmp),
            ("text", about.text),
            ("resolution", about.dpi),
        )
        if value
    ]
    low, high = float(image.pixels.min()), float(image.pixels.max())
    lines = [
        f"A {image.format} image of {height} x {width} pixels, upright (height x width).",
        f"  pixels: {'grey' if image.channels == 1 else 'colour'}, mode {image.mode}, {image.depth} bit(s) a "
        f"channel, from {low:.3f} to {high:.3f} in [-1, 1]",
        f"  transparency: {'none' if image.alpha is None else 'kept apart, and not restored'}",
        f"  kept beside the pixels: {', '.join(kept) or 'nothing'}",
    ]
    if about.dpi is not None:
        lines.append(f"  resolution: {about.dpi[0]:.0f} x {about.dpi[1]:.0f} dots per inch")
    return "\n".join(lines + [f"  note: {note}" for note in image.notes])


def describe_operator(task: str, shape: tuple[int, ...]) -> str:
    """What a task's operator, tried on random images, is found to be."""
    family = family_from(task, shape)
    report = check(family.draw([0], shape), shape)
    return f"{task} stands for {family!r}; its first draw:\n{report}"
