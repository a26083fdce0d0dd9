"""``lavps train``: priors, inference models and conditional denoisers from a folder of images.

All three share their data and their trainer (:class:`Training`) and differ in what is learned. Each writes a
model folder, OUTPUT/model, that the library loads.
"""

from __future__ import annotations

__all__ = ["Train", "TrainConditional", "TrainInference", "TrainPrior", "Training"]

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor, nn

from ..amortization.beginning import begin_with
from ..amortization.checkpoint import load_model_prior, read_config, save_model
from ..amortization.conditional import ConditionalDenoiser, ConditionalTask
from ..amortization.contexts import ContextSource
from ..amortization.data import ImageData
from ..amortization.denoising import DenoiserTask, Target, Times
from ..amortization.inference import InferenceTask
from ..amortization.loading import prior_hash, save_conditional, save_inference_model
from ..amortization.model import InferenceModel
from ..amortization.task import Task
from ..amortization.trainer import TrainerConfig, train
from ..networks import build_network, build_seeded, seeded
from ..priors import Prior
from ..samplers import MGDM, MGPS
from .choices import SCHEDULES, Measurement, NetworkName, ScheduleName, describe_network
from .failures import fatal

Writer = Callable[[Path, dict[str, Any], torch.dtype], object]
_PREVIEWED = 8  # images of a preview


@dataclass(frozen=True, kw_only=True)
class Training(ABC):
    """What every training has: images, and how to train."""

    data: Path  # folder of png, jpg or webp images, or of tar shards, or one tar
    trainer: Annotated[TrainerConfig, tyro.conf.arg(name="")]
    flip: bool = True  # mirror half of the samples
    cache: bool = True  # decode once, to OUTPUT/cache; else at every access
    skip_bad: bool = False  # leave out files that cannot be decoded
    validation: Path | None = None  # images to validate on, like data
    validation_images: int = 64  # how many of them at most
    weights: Literal["float32", "bfloat16", "float16"] = "float32"  # precision of the written model

    @property
    @abstractmethod
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W) of the images."""

    @abstractmethod
    def plan(self) -> tuple[Task, Writer]:
        """What is trained, and how it is written: to a folder, with a record of the training, in a dtype."""

    def run(self) -> None:
        """Train, then write the model."""
        config, (task, write) = self.trainer, self.plan()
        data = self._images(self.data, self.flip)
        if data.bad:
            print(f"skipped {len(data.bad)} files: {', '.join(data.bad[:3])} ...", file=sys.stderr)
        held_out = None if self._held_out is None else ImageData.from_tensor(self._held_out)
        result = train(task, data, config, held_out)
        if result.is_main:
            about = asdict(config) | {"output": config.output.name, "data": data.describe()}
            about["validation"] = result.validation
            write(config.output / "model", about, getattr(torch, self.weights))
            print(f"the model is in {config.output / 'model'}")

    def _images(self, path: Path, flip: bool) -> ImageData:
        channels, height, width = self.image_shape
        return ImageData.open(
            path,
            (height, width),
            channels,
            cache=self.trainer.output / "cache" if self.cache else False,
            flip=flip,
            seed=self.trainer.seed,
            skip_bad=self.skip_bad,
        )

    @cached_property
    def _held_out(self) -> Tensor | None:
        """The images to validate on (N, C, H, W)."""
        if self.validation is None:
            return None
        data = self._images(self.validation, flip=False)
        return torch.stack([data[index] for index in range(min(len(data), self.validation_images))])

    @property
    def _previewed(self) -> Tensor | None:
        """The few of them that a preview restores."""
        return None if self._held_out is None else self._held_out[:_PREVIEWED]


@dataclass(frozen=True, kw_only=True)
class _TrainDenoiser(Training):
    """What a denoiser is, told of a measurement or not."""

    size: int = 64  # images are centre-cropped and resized to size x size
    channels: Literal[1, 3] = 3  # grey or colour
    network: NetworkName | Path = "unet-small"  # or a JSON description
    schedule: ScheduleName = "flow"  # how noise grows with time
    prediction: Target = "velocity"  # what the network learns to predict
    times: Times = "uniform"  # how times are drawn
    begin_with: Path | None = None  # prior of the same network, to begin with its weights

    def built(self, network: dict[str, Any]) -> tuple[nn.Module, dict[str, str]]:
        """A new network of this description, and for the record what it begins with, if anything."""
        module = build_seeded(network, self.trainer.seed)
        if self.begin_with is None:
            return module, {}
        origin = begin_with(module, self.begin_with, SCHEDULES[self.schedule](), self.prediction)
        return module, {"begun_with": origin}

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W), square."""
        return (self.channels, self.size, self.size)


@dataclass(frozen=True, kw_only=True)
class TrainPrior(_TrainDenoiser):
    """Train a denoiser on images, and write it to OUTPUT/model, ready to be loaded."""

    def plan(self) -> tuple[Task, Writer]:
        """The task of denoising."""
        network = describe_network(self.network, self.channels, self.channels)
        module, begun = self.built(network)
        task = DenoiserTask(
            module,
            SCHEDULES[self.schedule](),
            self.image_shape,
            self.prediction,
            times=self.times,
            seed=self.trainer.seed,
            description=network,
            begun=begun,
        )

        def write(folder: Path, about: dict[str, Any], dtype: torch.dtype) -> None:
            save_model(folder, task.network, task.model_config(about), dtype)

        return task, write


@dataclass(frozen=True, kw_only=True)
class TrainConditional(_TrainDenoiser):
    """Train a denoiser that is told the measurement (supervised), and write it to OUTPUT/model."""

    measurement: Annotated[Measurement, tyro.conf.arg(name="")]

    def plan(self) -> tuple[Task, Writer]:
        """The task of denoising, given a measurement."""
        told, seed = self.measurement, self.trainer.seed
        family, conditioning = told.family(self.image_shape), told.channels
        network = describe_network(
            self.network,
            ConditionalDenoiser.in_channels(self.channels, conditioning),
            self.channels,
            fused_channels=self.channels if told.is_fused else 0,
        )
        module, begun = self.built(network)
        model = ConditionalDenoiser(module, conditioning, SCHEDULES[self.schedule](), self.prediction)
        task = ConditionalTask(
            model,
            family,
            told.noise_model,
            self.image_shape,
            times=self.times,
            seed=seed,
            description={"task": told.task, "network": network} | begun,
            preview_images=self._previewed,
        )

        def write(folder: Path, about: dict[str, Any], dtype: torch.dtype) -> None:
            save_conditional(folder, task, network, about | begun, dtype)

        return task, write


@dataclass(frozen=True, kw_only=True)
class TrainInference(Training):
    """Train an inference model, a warm start for a prior's samplers, and write it to OUTPUT/model."""

    prior: Path  # model folder or Hub id of the prior, which stays as it is
    measurement: Annotated[Measurement, tyro.conf.arg(name="")]
    network: NetworkName | Path = "unet-tiny"  # or a JSON description
    sampler: Literal["mgdm", "mgps"] = "mgdm"  # whose steps it is to start
    num_steps: int = 100  # K, intervals of the sampler's time grid
    step_counts: tuple[int, ...] = ()  # grids of several K to train on, instead of the one
    window: float = 1.0  # the part t <= window of the time in which it is asked; mgdm only
    shortcut: bool = True  # tell it the likelihood step, and let that into its answer; not in the paper
    solver_steps: int = 0  # conjugate-gradient steps of the likelihood step; 3 suits blurs
    rollout: int = 0  # steps of the sampler before a training context, with the current model; mgdm only

    @cached_property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W) of the prior's images."""
        return read_config(self.prior).image_shape

    def plan(self) -> tuple[Task, Writer]:
        """The task of inference, with the prior frozen."""
        told, seed, channels = self.measurement, self.trainer.seed, self.image_shape[0]
        prior, conditioning = load_model_prior(self.prior), told.channels
        source = ContextSource(
            self._sampler(prior),
            told.family(self.image_shape),
            told.noise_model,
            self.rollout,
            seed,
            self.step_counts,
        )
        network = describe_network(
            self.network,
            InferenceModel.in_channels(channels, conditioning, self.shortcut),
            2 * channels,
            second_time=True,
            fused_channels=channels if told.is_fused else 0,
        )
        with seeded(seed):  # the model has weights of its own beside the network's
            model = InferenceModel(
                build_network(network), conditioning, self.shortcut, solver_steps=self.solver_steps
            )
        about = {"task": told.task, "network": network, "prior_hash": prior_hash(prior)}
        task = InferenceTask(model, source, about, self._previewed)

        def write(folder: Path, about: dict[str, Any], dtype: torch.dtype) -> None:
            record = about | {"prior": self.prior.name}
            save_inference_model(folder, task, network, self.image_shape, record, dtype)

        return task, write

    def _sampler(self, prior: Prior) -> MGDM | MGPS:
        if not 0.0 < self.window <= 1.0:
            raise ValueError(f"--window is a part of the time, above 0 and at most 1: got {self.window}")
        if self.sampler == "mgdm":
            return MGDM(prior, num_steps=self.num_steps, r_switch=1.0 - self.window)
        if self.window != 1.0:
            raise ValueError("--window is MGDM's: MGPS asks its model at every step")
        return MGPS(prior, num_steps=self.num_steps)


@dataclass(frozen=True)
class Train:
    """Train a model."""

    model: (
        Annotated[TrainPrior, tyro.conf.subcommand("prior")]
        | Annotated[TrainInference, tyro.conf.subcommand("inference")]
        | Annotated[TrainConditional, tyro.conf.subcommand("conditional")]
    )

    def run(self) -> None:
        """Train it."""
        with fatal("train", (OSError, ValueError, ImportError)):
            self.model.run()
