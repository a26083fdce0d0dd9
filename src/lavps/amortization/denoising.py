r"""Training a prior: the task of denoising.

At a time t drawn per sample, :math:`x_t = \alpha_t x + \sigma_t z`; the network learns its prediction by mean
squared error, so the times weigh evenly in the units of the prediction:

==============  ==========================
prediction      target
==============  ==========================
``"x0"``        :math:`x`
``"eps"``       :math:`z`
``"v"``         :math:`\alpha z - \sigma x`
``"velocity"``  :math:`z - x`
==============  ==========================

The time and the noise of a sample are functions of (seed, item). :class:`Denoising` is the loss of any
network that denoises, told of a measurement or not; :class:`DenoiserTask` trains one that is not.

References:
    - Ho et al., Denoising Diffusion Probabilistic Models, 2020.
    - Esser et al., Scaling Rectified Flow Transformers, 2024 (logit-normal times).
"""

from __future__ import annotations

__all__ = ["DenoiserTask", "Denoising", "Target", "Times"]

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..priors import NetworkPrior
from ..priors.networks import Prediction
from ..problem import Unconditional
from ..random import NoiseStreams, Purpose
from ..samplers import DDIM
from ..schedule import VE, Schedule
from ..transitions import per_sample
from .checkpoint import ModelConfig, schedule_to_dict

Network = Callable[[Tensor, Tensor], Tensor]
Target = Literal["v", "eps", "velocity", "x0"]
Times = Literal["uniform", "logit-normal"]


@dataclass(frozen=True)
class Denoising:
    """What a network that denoises learns, and how well it does.

    Args:
        schedule: any but VE, whose inputs grow without bound.
        image_shape: (C, *spatial).
        prediction: what the network learns to predict.
        times: "uniform" on [0, 1], or "logit-normal": the logistic function of a standard normal.
        seed: of times and noise.
        bins: times at which it is validated.
    """

    schedule: Schedule
    image_shape: tuple[int, ...]
    prediction: Prediction = "v"
    times: Times = "uniform"
    seed: int = 0
    bins: int = 8

    def __post_init__(self) -> None:
        if self.prediction not in get_args(Target) or self.times not in get_args(Times):
            raise ValueError(
                f"prediction is one of {get_args(Target)} and times one of {get_args(Times)}: "
                f"got {self.prediction!r} and {self.times!r}"
            )
        if isinstance(self.schedule, VE):
            raise ValueError(
                "a network on a VE schedule needs EDM's scaling: train on another, and use Rescheduled"
            )

    def loss(self, network: Network, images: Tensor, items: Sequence[int]) -> Tensor:
        """Mean squared error of the prediction network(x_t, t), per sample (B,)."""
        streams = NoiseStreams.of(len(images), self.seed, items)
        if self.times == "uniform":
            t = streams.uniform(Purpose.TIME)
        else:
            t = streams.normal(Purpose.TIME, (), torch.zeros((), dtype=torch.float64)).sigmoid()
        return self._error(network, images, streams.normal(Purpose.TRAINING, self.image_shape, images), t)

    def _error(self, network: Network, x: Tensor, z: Tensor, t: Tensor) -> Tensor:
        alpha, sigma = per_sample(self.schedule.alpha(t), x), per_sample(self.schedule.sigma(t), x)
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
        """The loss, and the mean squared error of the denoised images, in all and by time."""
        prior, losses, errors = NetworkPrior(network, self.schedule, self.prediction), [], []
        streams = NoiseStreams.of(len(images), self.seed)
        for place in range(self.bins):
            t = torch.full((len(images),), (place + 0.5) / self.bins, dtype=torch.float64)
            z = streams.normal(Purpose.TRAINING, self.image_shape, images, 1, place)
            alpha, sigma = (f(t) for f in (self.schedule.alpha, self.schedule.sigma))
            losses.append(self._error(network, images, z, t).mean().item())
            x_0 = prior.denoise(per_sample(alpha, images) * images + per_sample(sigma, images) * z, t)
            errors.append((x_0 - images).square().mean().item())
        means = {"loss": sum(losses) / self.bins, "denoising_mse": sum(errors) / self.bins}
        return means | {"denoising_mse_by_time": errors}

    def describe(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "schedule": schedule_to_dict(self.schedule),
            "image_shape": list(self.image_shape),
            "prediction": self.prediction,
            "times": self.times,
            "seed": self.seed,
        }


class DenoiserTask:
    """Training a network to denoise.

    Args:
        network: maps x_t (B, C, *spatial) and t (B,) to a prediction.
        schedule: any but VE, whose inputs grow without bound.
        image_shape: (C, *spatial).
        prediction: what the network learns to predict.
        times: "uniform" on [0, 1], or "logit-normal": the logistic function of a standard normal.
        seed: of times and noise.
        description: what :func:`~lavps.networks.build_network` built the network from.
        bins: times at which it is validated.
        preview_samples: images of a preview.
        preview_steps: DDIM steps of a preview.
        begun: what the network began with, for the record; empty for weights drawn anew.
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
        begun: Mapping[str, Any] | None = None,
    ) -> None:
        self.network = network
        self.begun = dict(begun or {})
        self.denoising = Denoising(schedule, tuple(image_shape), prediction, times, seed, bins)
        self.description = dict(description or {})
        self.preview_samples, self.preview_steps = preview_samples, preview_steps

    @property
    def prior(self) -> NetworkPrior:
        """The network as a prior (in eval mode)."""
        return NetworkPrior(self.network, self.denoising.schedule, self.denoising.prediction)

    def loss(self, images: Tensor, items: Sequence[int]) -> Tensor:
        """Mean squared error of the prediction, per sample (B,)."""
        return self.denoising.loss(self.network, images, items)

    def validate(self, images: Tensor) -> dict[str, Any]:
        """The loss, and the mean squared error of the denoised images, in all and by time."""
        return self.denoising.validate(self.network, images)

    def preview(self) -> Tensor | None:
        """DDIM samples, the same noise every time."""
        device = str(next(self.network.parameters()).device)
        problem = Unconditional(self.denoising.image_shape, self.preview_samples, device=device)
        sampler = DDIM(self.prior, num_steps=self.preview_steps)
        samples = sampler.sample(problem, seed=self.denoising.seed).samples
        return None if samples is None else samples.flatten(0, 1)

    def describe(self) -> dict[str, Any]:
        """Everything but the weights."""
        return {"kind": "prior", "network": self.description, **self.denoising.describe(), **self.begun}

    def model_config(self, training: Mapping[str, Any] | None = None) -> ModelConfig:
        """What :func:`~lavps.amortization.checkpoint.save_model` wants to know."""
        about = self.denoising
        return ModelConfig(
            "prior",
            self.description,
            about.schedule,
            about.image_shape,
            about.prediction,
            "time",
            training={"times": about.times, "seed": about.seed} | self.begun | dict(training or {}),
        )
