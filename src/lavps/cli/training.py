"""What the training commands share: images, trainer, and the run itself."""

from __future__ import annotations

__all__ = ["Training", "Writer"]

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor

from ..devices import resolve_device
from ..training.augmentation import Augmentation
from ..training.crops import RandomCrops
from ..training.data import ImageData
from ..training.plan import planned
from ..training.task import Task
from ..training.trainer import TrainerConfig, train
from .options import Crop, N, T, argument
from .reference import first_images

Writer = Callable[[Path, dict[str, Any], torch.dtype], object]
_Images = Annotated[T, argument(metavar="FOLDER|FILE.tar")]
_PREVIEWED = 8  # images per preview
_HOURS = 2.0  # on a CPU


@dataclass(frozen=True, kw_only=True)
class Training(ABC):
    """Options of every training run: images and trainer."""

    data: _Images[Path]  # Training images: a folder of png, jpg or webp files or of tar shards, or one tar.
    trainer: Annotated[TrainerConfig, tyro.conf.arg(name="")]
    # Duration, instead of --steps: a few steps are timed and a plan is printed. Default on a CPU: 2 hours.
    hours: Annotated[float | None, argument(metavar="HOURS")] = None
    # Crops: the centre, resized to the size of the prior, or random windows at native resolution.
    crop: Crop = "centre"
    flip: bool = True  # Random horizontal flips.
    quarter_turns: bool = False  # Random rotations by 0, 90, 180 or 270 degrees.
    cache: bool = True  # Decoding once, to OUTPUT/cache, instead of at every access.
    skip_bad: bool = False  # Skipping of files that cannot be decoded, or are smaller than a random crop.
    validation: _Images[Path | None] = None  # Validation images, in the form of the training images.
    # Maximum number of validation images; with random crops, the number of crops, fixed for all validations.
    validation_images: N[int] = 64
    weights: Literal["float32", "bfloat16", "float16"] = "float32"  # Precision of the written weights.

    @property
    @abstractmethod
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W) of the images."""

    @abstractmethod
    def plan(self) -> tuple[Task, Writer]:
        """Return the task, and the function that writes its model: (folder, training record, dtype)."""

    def run(self) -> None:
        """Train, and write the model."""
        task, write = self.plan()
        data = self.images(self.data, Augmentation(self.flip, self.quarter_turns, self.trainer.seed))
        if data.bad:
            print(f"skipped {len(data.bad)} files: {', '.join(data.bad[:3])} ...", file=sys.stderr)
        held_out = None if self.held_out is None else ImageData.from_tensor(self.held_out)
        config = self._planned(task, data)
        result = train(task, data, config, held_out)
        if result.is_main:
            about = asdict(config) | {"output": config.output.name, "data": data.describe()}
            about["validation"] = result.validation
            if len(config.decays) > 1:
                about["exported_ema_decay"] = result.ema_decay
                print(f"the weights are averaged with decay {result.ema_decay}, of {config.decays}")
            write(config.output / "model", about, getattr(torch, self.weights))
            print(f"the model is in {config.output / 'model'}")

    def _planned(self, task: Task, data: ImageData | RandomCrops) -> TrainerConfig:
        """Return the trainer's settings, with a number of steps for the hours, and print the plan."""
        config, hours = self.trainer, self.hours
        has_steps = config.steps != TrainerConfig.steps
        if hours is not None and has_steps:
            raise ValueError("give --hours or --steps, not both: each sets the length of the training")
        if hours is None and (has_steps or not (config.cpu or resolve_device("auto") == "cpu")):
            return config
        config, plan = planned(config, task, data, _HOURS if hours is None else hours)
        print(plan, flush=True)
        if self.validation is None and plan.warning is not None:
            print(f"warning: {plan.warning}", file=sys.stderr, flush=True)
        return config

    def images(self, path: Path, augmentation: Augmentation) -> ImageData | RandomCrops:
        """Open the images of a folder or tar file."""
        channels, height, width = self.image_shape
        make = RandomCrops if self.crop == "random" else ImageData
        return make.open(
            path,
            (height, width),
            channels,
            cache=self.trainer.output / "cache" if self.cache else False,
            skip_bad=self.skip_bad,
            **asdict(augmentation),
        )

    @cached_property
    def held_out(self) -> Tensor | None:
        """Validation images, shape (N, C, H, W)."""
        if self.validation is None:
            return None
        return first_images(self.images(self.validation, Augmentation()), self.validation_images)

    @property
    def previewed(self) -> Tensor | None:
        """Validation images that a preview restores."""
        return None if self.held_out is None else self.held_out[:_PREVIEWED]
