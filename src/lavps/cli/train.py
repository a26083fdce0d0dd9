"""``lavps train``: priors, inference models, conditional denoisers and few-step models.

All share data and trainer (:class:`Training`), and write a model folder, OUTPUT/model.
"""

from __future__ import annotations

__all__ = ["Train", "TrainConditional", "TrainInference", "TrainPrior"]

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
import tyro
from torch import nn

from ..amortization.conditional import ConditionalDenoiser, ConditionalTask
from ..amortization.contexts import ContextSource
from ..amortization.inference import InferenceTask
from ..amortization.loading import prior_hash, save_conditional, save_inference_model
from ..amortization.model import InferenceModel
from ..checkpoints import zoo_model, zoo_names
from ..checkpoints.folder import load_model_prior, model_name, read_config, save_model
from ..evaluation.typicality import TypicalityReference
from ..guidance import Amortized, Gradient, switch
from ..minimizers import WhitenedGradient
from ..nn import build_network, build_seeded, seeded
from ..noise import GaussianNoise
from ..operators.registry import family_from
from ..priors import Prior
from ..samplers import MGDM, MGPS
from ..training.augmentation import Augmentation
from ..training.denoiser import DenoiserTask, Target, Times
from ..training.finetune import closest_prior, init_from
from ..training.task import Task
from .choices import SCHEDULES, MeasurementOptions, NetworkName, ScheduleName, describe_network
from .failures import fatal
from .options import Folder, Model, N, Std, T, argument
from .reference import TrainReference, first_images
from .train_few_step import TrainFewStep
from .training import Training, Writer

_Network = Annotated[T, argument(metavar="|".join((*get_args(NetworkName), "FILE.json")))]
_DEFAULT: NetworkName = "unet-small"
_REFERENCE_IMAGES = 128
_FEW, _COMPARED = 5_000, 8  # images for which a trained prior is a better start, and those that select it


@dataclass(frozen=True, kw_only=True)
class _TrainDenoiser(Training):
    """Options of a denoiser, conditional or not."""

    size: N[int] = 64  # Height and width of the prior's images, and of random crops.
    channels: Literal[1, 3] = 3  # Number of channels: grey or colour.
    # Network: a name, or a JSON description. Default: that of the prior it starts from, else unet-small.
    network: _Network[NetworkName | Path | None] = None
    schedule: ScheduleName = "flow"  # Noise schedule.
    prediction: Target = "velocity"  # Training target of the network.
    times: Times = "uniform"  # Distribution of training times; log-normal: that of noise levels, as in EDM.
    # Mean of the logarithm of the noise level, for log-normal times.
    times_mean: Annotated[float, argument(metavar="MEAN")] = -1.2
    times_std: Std[float] = 1.2  # Standard deviation of the logarithm of the noise level.
    init_from: Folder[Path | None] = None  # Prior with the same network, whose weights initialize it.

    def built(self, network: dict[str, Any]) -> tuple[nn.Module, dict[str, str]]:
        """Return a new network of this description, and a record of the prior that initialized it."""
        module = build_seeded(network, self.trainer.seed)
        if self.init_from is None:
            return module, {}
        origin = init_from(module, self.init_from, SCHEDULES[self.schedule](), self.prediction)
        return module, {"init_from": origin}

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W) of the images, square."""
        return (self.channels, self.size, self.size)


@dataclass(frozen=True, kw_only=True)
class TrainPrior(_TrainDenoiser):
    """Train a denoiser on images, and write it to OUTPUT/model."""

    # Start from the closest prior of the installed zoo, if there are fewer than 5,000 images and neither
    # --network nor --init-from is given.
    init: bool = True

    def plan(self) -> tuple[Task, Writer]:
        """Return the task of denoising."""
        if (origin := self._closest()) is not None:
            network = read_config(origin).network
            print(f"starts from {origin.name}, the closest prior of the zoo (--no-init: from scratch)")
            module, initial = replace(self, init_from=origin).built(network)
        else:
            network = describe_network(self.network or _DEFAULT, self.channels, self.channels)
            module, initial = self.built(network)
        task = DenoiserTask(
            module,
            SCHEDULES[self.schedule](),
            self.image_shape,
            self.prediction,
            times=self.times,
            times_mean=self.times_mean,
            times_std=self.times_std,
            seed=self.trainer.seed,
            description=network,
            initial=initial,
        )

        def write(folder: Path, about: dict[str, Any], dtype: torch.dtype) -> None:
            save_model(folder, task.network, task.model_config(about), dtype)
            self._measure(folder)

        return task, write

    def _closest(self) -> Path | None:
        """Return the prior of the zoo from which a training on few images starts."""
        if not self.init or self.network is not None or self.init_from is not None:
            return None
        folders = [folder for name in zoo_names() if (folder := zoo_model(name)) is not None]
        data = self.images(self.data, Augmentation()) if folders else ()
        if not data or len(data) >= _FEW:
            return None
        images = first_images(data, _COMPARED)
        return closest_prior(images, folders, SCHEDULES[self.schedule](), self.prediction)

    def _measure(self, folder: Path) -> None:
        """Write the typicality reference, of validation images or, without any, of training images."""
        images, prior = self.held_out, load_model_prior(folder)
        if images is None:
            images = first_images(self.images(self.data, Augmentation()), _REFERENCE_IMAGES)
        with suppress(ValueError):  # too few images
            TypicalityReference.measure(prior, images, prior_hash(prior)).write(folder)


@dataclass(frozen=True, kw_only=True)
class TrainConditional(_TrainDenoiser):
    """Train a denoiser conditioned on the measurement (supervised), and write it to OUTPUT/model."""

    measurement: Annotated[MeasurementOptions, tyro.conf.arg(name="")]

    def plan(self) -> tuple[Task, Writer]:
        """Return the task of denoising, given a measurement."""
        measurement, conditioning = self.measurement, self.measurement.channels
        network = describe_network(
            self.network or _DEFAULT,
            ConditionalDenoiser.in_channels(self.channels, conditioning),
            self.channels,
            fused_channels=self.channels if measurement.is_fused else 0,
        )
        module, initial = self.built(network)
        model = ConditionalDenoiser(module, conditioning, SCHEDULES[self.schedule](), self.prediction)
        task = ConditionalTask(
            model,
            family_from(measurement.task, self.image_shape),
            GaussianNoise(measurement.noise),
            self.image_shape,
            times=self.times,
            times_mean=self.times_mean,
            times_std=self.times_std,
            seed=self.trainer.seed,
            description={"task": measurement.task, "network": network} | initial,
            preview_images=self.previewed,
        )
        return task, lambda folder, about, dtype: save_conditional(
            folder, task, network, about | initial, dtype
        )


@dataclass(frozen=True, kw_only=True)
class TrainInference(Training):
    """Train an inference model, which initializes a prior's samplers, and write it to OUTPUT/model."""

    prior: Model[Path]  # Model folder or Hub id of the prior, which stays frozen.
    measurement: Annotated[MeasurementOptions, tyro.conf.arg(name="")]
    network: _Network[NetworkName | Path] = "unet-tiny"  # Network: a name, or a JSON description.
    sampler: Literal["mgdm", "mgps"] = "mgdm"  # Sampler that the model initializes.
    num_steps: N[int] = 100  # Number K of intervals of the sampler's time grid.
    # Several K, of time grids to train on instead of the one.
    step_counts: Annotated[tuple[int, ...], argument(metavar="K ...")] = ()
    window: Annotated[float, argument(metavar="T")] = 1.0  # Largest time t at which the model is used.
    shortcut: bool = True  # Likelihood step as an input of the network, and in its output; not in the paper.
    solver_steps: N[int] = 0  # Conjugate-gradient iterations of the likelihood step; 3 suits blurs.
    rollout: N[int] = 0  # Sampler steps with the current model before a training context; mgdm only.

    @cached_property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W) of the prior's images."""
        return read_config(self.prior).image_shape

    def plan(self) -> tuple[Task, Writer]:
        """Return the task of inference, with the prior frozen."""
        measurement, seed, channels = self.measurement, self.trainer.seed, self.image_shape[0]
        prior, conditioning = load_model_prior(self.prior), measurement.channels
        network = describe_network(
            self.network,
            InferenceModel.in_channels(channels, conditioning, self.shortcut),
            2 * channels,
            second_time=True,
            fused_channels=channels if measurement.is_fused else 0,
        )
        with seeded(seed):  # the model has weights beside the network's
            model = InferenceModel(
                build_network(network), conditioning, self.shortcut, solver_steps=self.solver_steps
            )
        source = ContextSource(
            self._sampler(prior, model),
            family_from(measurement.task, self.image_shape),
            GaussianNoise(measurement.noise),
            self.rollout,
            seed,
            self.step_counts,
        )
        about = {"task": measurement.task, "network": network, "prior_hash": prior_hash(prior)}
        task = InferenceTask(source, about, self.previewed)
        return task, lambda folder, about, dtype: save_inference_model(
            folder, task, network, self.image_shape, about | {"prior": model_name(self.prior)}, dtype
        )

    def _sampler(self, prior: Prior, model: InferenceModel) -> MGDM | MGPS:
        if not 0.0 < self.window <= 1.0:
            raise ValueError(f"--window must be above 0 and at most 1, got {self.window}")
        late = Amortized(model, steps=0, safeguard_every=None)
        early = Gradient(steps=3, minimizer=WhitenedGradient())
        guidance = late if self.window == 1.0 else switch(early, late, at=self.window)
        make = MGDM if self.sampler == "mgdm" else MGPS
        return make(prior, num_steps=self.num_steps, guidance=guidance)


@dataclass(frozen=True)
class Train:
    """Train a model."""

    model: (
        Annotated[TrainPrior, tyro.conf.subcommand("prior")]
        | Annotated[TrainInference, tyro.conf.subcommand("inference")]
        | Annotated[TrainConditional, tyro.conf.subcommand("conditional")]
        | Annotated[TrainFewStep, tyro.conf.subcommand("few-step")]
        | Annotated[TrainReference, tyro.conf.subcommand("reference")]
    )

    def run(self) -> None:
        """Train the chosen model."""
        with fatal("train", (OSError, ValueError, ImportError)):
            self.model.run()
