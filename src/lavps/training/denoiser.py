r"""The task of training a denoiser.

At a time t drawn per sample, :math:`x_t = \alpha_t x + \sigma_t z`. The network minimizes the mean squared
error of its prediction, with equal weight of all times:

==============  ==========================
prediction      target
==============  ==========================
``"x0"``        :math:`x`
``"eps"``       :math:`z`
``"v"``         :math:`\alpha z - \sigma x`
``"velocity"``  :math:`z - x`
==============  ==========================

The time and the noise of a sample are functions of (seed, item). :class:`Denoising` is the loss of any
denoiser, conditional or not; :class:`DenoiserTask` trains an unconditional one.

References:
    - Ho et al., Denoising Diffusion Probabilistic Models, 2020.
    - Esser et al., Scaling Rectified Flow Transformers, 2024 (logit-normal times).
    - Karras et al., Elucidating the Design Space of Diffusion Models, 2022 (log-normal noise levels).
"""

from __future__ import annotations

__all__ = ["DenoiserTask", "Denoising", "Target", "Times", "draw_times"]

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..checkpoints.folder import ModelConfig, schedule_to_dict
from ..priors import NetworkPrior
from ..priors.adapters import Prediction
from ..problem import Unconditional
from ..random import NoiseStreams, Purpose
from ..samplers import DDIM
from ..schedule import VE, Schedule
from ..transitions import per_sample

Network = Callable[[Tensor, Tensor], Tensor]
Target = Literal["v", "eps", "velocity", "x0"]
Times = Literal["uniform", "logit-normal", "log-normal"]


def draw_times(
    times: Times, schedule: Schedule, streams: NoiseStreams, mean: float = -1.2, std: float = 1.2
) -> Tensor:
    r"""Draw a training time per row, float64, shape (B,).

    Args:
        times: "uniform" on [0, 1]; "logit-normal": the logistic function of a standard normal;
            "log-normal": the time at which :math:`\log(\sigma_t / \alpha_t) \sim N(m, s^2)`.
        schedule: Schedule that maps noise levels to times; levels beyond its last one become t = 1.
        streams: Random streams, one per row.
        mean: Mean m of the logarithm of a log-normal noise level.
        std: Standard deviation s of the logarithm of a log-normal noise level.

    Example:
        >>> from lavps.schedule import Flow
        >>> t = draw_times("log-normal", Flow(), NoiseStreams.from_seed(4000), mean=-1.2, std=1.2)
        >>> f"{Flow().noise_level(t).log().median():.1f}"
        '-1.2'
    """
    if times == "uniform":
        return streams.uniform(Purpose.TIME)
    normal = streams.normal(Purpose.TIME, (), torch.zeros((), dtype=torch.float64))
    if times == "logit-normal":
        return normal.sigmoid()
    return schedule.time((mean + std * normal).exp())


@dataclass(frozen=True)
class Denoising:
    """Loss and validation of a denoiser.

    Args:
        schedule: Schedule other than VE, whose inputs are unbounded.
        image_shape: Image shape (C, *spatial).
        prediction: Predicted quantity.
        times: Distribution of training times, see :func:`draw_times`.
        seed: Seed of times and noise.
        bins: Number of times of the validation.
        times_mean: Mean of the logarithm of log-normal noise levels.
        times_std: Standard deviation of the logarithm of log-normal noise levels.
    """

    schedule: Schedule
    image_shape: tuple[int, ...]
    prediction: Prediction = "v"
    times: Times = "uniform"
    seed: int = 0
    bins: int = 8
    times_mean: float = -1.2
    times_std: float = 1.2

    def __post_init__(self) -> None:
        if not (math.isfinite(self.times_mean) and 0.0 < self.times_std < math.inf):
            raise ValueError(
                "log-normal times need a finite mean and a positive standard deviation, "
                f"got {self.times_mean} and {self.times_std}"
            )
        if self.prediction not in get_args(Target) or self.times not in get_args(Times):
            raise ValueError(
                f"prediction must be one of {get_args(Target)} and times one of {get_args(Times)}, "
                f"got {self.prediction!r} and {self.times!r}"
            )
        if isinstance(self.schedule, VE):
            raise ValueError("a VE schedule needs EDM's scaling: train on another, and use Rescheduled")

    def loss(self, network: Network, images: Tensor, items: Sequence[int]) -> Tensor:
        """Return the mean squared error of the prediction network(x_t, t) per sample (B,)."""
        streams = NoiseStreams.from_seed(len(images), self.seed, items)
        t = draw_times(self.times, self.schedule, streams, self.times_mean, self.times_std)
        return self._error(network, images, streams.normal(Purpose.TRAINING, self.image_shape, images), t)

    def _error(self, network: Network, x: Tensor, z: Tensor, t: Tensor) -> Tensor:
        alpha, sigma = (per_sample(part, x) for part in self.schedule.coefficients(t))
        target = {
            "x0": lambda: x,
            "eps": lambda: z,
            "v": lambda: alpha * z - sigma * x,
            "velocity": lambda: z - x,
        }[self.prediction]()
        output = network(alpha * x + sigma * z, t.to(torch.float32).to(x.device))
        error: Tensor = output.float() - target
        return error.square().flatten(1).mean(1)

    @torch.no_grad()
    def validate(self, network: Network, images: Tensor) -> dict[str, Any]:
        """Return the loss, and the mean squared error of the denoised images, overall and by time."""
        prior, losses, errors = NetworkPrior(network, self.schedule, self.prediction), [], []
        streams = NoiseStreams.from_seed(len(images), self.seed)
        for index in range(self.bins):
            t = torch.full((len(images),), (index + 0.5) / self.bins, dtype=torch.float64)
            z = streams.normal(Purpose.TRAINING, self.image_shape, images, 1, index)
            alpha, sigma = (per_sample(part, images) for part in self.schedule.coefficients(t))
            losses.append(self._error(network, images, z, t).mean().item())
            x_0 = prior.denoise(alpha * images + sigma * z, t)
            errors.append((x_0 - images).square().mean().item())
        means = {"loss": sum(losses) / self.bins, "denoising_mse": sum(errors) / self.bins}
        return means | {"denoising_mse_by_time": errors}

    def describe_times(self) -> dict[str, Any]:
        """Return the distribution of times as JSON values."""
        if self.times != "log-normal":
            return {"times": self.times}
        return {"times": self.times, "times_mean": self.times_mean, "times_std": self.times_std}

    def describe(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "schedule": schedule_to_dict(self.schedule),
            "image_shape": list(self.image_shape),
            "prediction": self.prediction,
            **self.describe_times(),
            "seed": self.seed,
        }


class DenoiserTask:
    """The task of training an unconditional denoiser.

    Args:
        network: Map from x_t (B, C, *spatial) and t (B,) to a prediction.
        schedule: Schedule, like the arguments up to ``seed``, ``bins`` and the times of :class:`Denoising`.
        description: Description of the network for :func:`~lavps.nn.build_network`.
        preview_samples: Number of images of a preview.
        preview_steps: Number of DDIM steps of a preview.
    """

    def __init__(
        self,
        network: nn.Module,
        schedule: Schedule,
        image_shape: Sequence[int],
        prediction: Target = "v",
        *,
        times: Times = "uniform",
        seed: int = 0,
        description: Mapping[str, Any] | None = None,
        bins: int = 8,
        preview_samples: int = 16,
        preview_steps: int = 50,
        initial: Mapping[str, Any] | None = None,
        times_mean: float = -1.2,
        times_std: float = 1.2,
    ) -> None:
        self.network = network
        self.initial = dict(initial or {})  # record of the initial weights; empty for random ones
        self.denoising = Denoising(
            schedule, tuple(image_shape), prediction, times, seed, bins, times_mean, times_std
        )
        self.description = dict(description or {})
        self.preview_samples, self.preview_steps = preview_samples, preview_steps

    @property
    def prior(self) -> NetworkPrior:
        """Network as a prior (in eval mode)."""
        return NetworkPrior(self.network, self.denoising.schedule, self.denoising.prediction)

    def loss(self, images: Tensor, items: Sequence[int]) -> Tensor:
        """Return the mean squared error of the prediction per sample (B,)."""
        return self.denoising.loss(self.network, images, items)

    def validate(self, images: Tensor) -> dict[str, Any]:
        """Return the loss, and the mean squared error of the denoised images, overall and by time."""
        return self.denoising.validate(self.network, images)

    def preview(self) -> Tensor | None:
        """Return DDIM samples, always from the same noise."""
        device = str(next(self.network.parameters()).device)
        problem = Unconditional(self.denoising.image_shape, self.preview_samples, device=device)
        sampler = DDIM(self.prior, num_steps=self.preview_steps)
        samples = sampler.sample(problem, seed=self.denoising.seed).samples
        return None if samples is None else samples.flatten(0, 1)

    def describe(self) -> dict[str, Any]:
        """Return JSON values of everything but the weights."""
        return {"kind": "prior", "network": self.description, **self.denoising.describe(), **self.initial}

    def model_config(self, training: Mapping[str, Any] | None = None) -> ModelConfig:
        """Return the configuration for :func:`~lavps.checkpoints.folder.save_model`."""
        about = self.denoising
        return ModelConfig(
            "prior",
            self.description,
            about.schedule,
            about.image_shape,
            about.prediction,
            "time",
            training=about.describe_times() | {"seed": about.seed} | self.initial | dict(training or {}),
        )
