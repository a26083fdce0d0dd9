r"""The supervised rival: a denoiser that is told the measurement, trained on pairs.

.. math:: \min_\theta E \| f_\theta(x_t, t, y, A) - \text{target}(x, z) \|^2, \qquad A \sim p_{op}, \;
    y \sim l(\cdot | A x), \; x_t = \alpha_t x + \sigma_t z,

whose minimiser is :math:`E[x_0 | x_t, y, A]`, the denoiser of the posterior; so DDIM with it samples the
posterior (:class:`~lavps.samplers.Supervised`), as long as A and the noise are like those of the training.

The network sees the channels :math:`[x_t, \text{conditioning}]`; an HDiT with joint levels also the operator
itself (InvFusion). Conditionings that look at an estimate of the clean image get the best linear one for
white images of variance v, :math:`\alpha v x_t / (\alpha^2 v + \sigma^2)`.

References:
    - Saharia et al., Palette: Image-to-Image Diffusion Models, 2022.
    - Elata et al., InvFussion: Bridging Supervised and Zero-shot Diffusion for Inverse Problems, 2025.
"""

from __future__ import annotations

__all__ = ["ConditionalDenoiser", "ConditionalTask"]

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..networks import Conditioning, conditioning_channels
from ..noise import NoiseModel
from ..operators.families import OperatorFamily
from ..priors import NetworkPrior
from ..priors.networks import Prediction
from ..problem import InverseProblem
from ..samplers import Supervised
from ..schedule import Schedule
from ..transitions import per_sample
from ..variational import Context
from .denoising import Denoising, Times
from .measurements import measure


class ConditionalDenoiser(nn.Module):
    """D(x_t, t | y, A).

    Args:
        network: called as network(channels, t, problem=...), returns as many channels as the image has.
        conditioning: what it is told of the measurement, as channels.
        schedule: the schedule of t.
        prediction: what it predicts.
        data_variance: v.
    """

    def __init__(
        self,
        network: nn.Module,
        conditioning: Sequence[Conditioning],
        schedule: Schedule,
        prediction: Prediction = "velocity",
        data_variance: float = 0.25,
    ) -> None:
        super().__init__()
        self.network = network
        self.conditioning = tuple(conditioning)
        self.schedule, self.prediction, self.data_variance = schedule, prediction, data_variance

    @staticmethod
    def in_channels(image_channels: int, conditioning: Sequence[Conditioning]) -> int:
        """Channels the network receives: x_t and the conditioning's."""
        return image_channels + sum(part.channels(image_channels) for part in conditioning)

    def forward(self, x_t: Tensor, t: Tensor, problem: InverseProblem) -> Tensor:
        """The prediction (B, C, *spatial).

        Args:
            x_t: noisy images (B, C, *spatial).
            t: times, () or (B,).
            problem: B measurements and their operators.
        """
        if len(problem) != len(x_t) or problem.image_shape != tuple(x_t.shape[1:]):
            raise ValueError(
                f"{len(x_t)} images {tuple(x_t.shape[1:])} met a problem of {len(problem)} images "
                f"{problem.image_shape}: repeat or select its rows"
            )
        channels = torch.cat(
            [x_t, conditioning_channels(self.conditioning, self._context(x_t, t, problem))], 1
        )
        prediction: Tensor = self.network(channels, t, problem=problem)
        return prediction

    def denoise(self, x_t: Tensor, t: Tensor, problem: InverseProblem) -> Tensor:
        """D(x_t, t | y, A) (B, C, *spatial); t in float64 on the CPU, () or (B,)."""

        def told(x: Tensor, time: Tensor) -> Tensor:
            return self(x, time, problem)  # type: ignore[no-any-return]

        return NetworkPrior(told, self.schedule, self.prediction).denoise(x_t, t)

    def _context(self, x_t: Tensor, t: Tensor, problem: InverseProblem) -> Context:
        """All a conditioning may look at; there is no midpoint, s is t."""
        time = t.detach().double().cpu()
        alpha, sigma, v = self.schedule.alpha(time), self.schedule.sigma(time), self.data_variance
        x_0 = per_sample(alpha * v / (alpha.square() * v + sigma.square()), x_t) * x_t
        return Context(x_0, x_t, time, time, problem, self.schedule)


class ConditionalTask:
    """Training a :class:`ConditionalDenoiser`.

    Args:
        model: what is trained.
        family: p_op, one draw per sample.
        noise: of the measurements.
        image_shape: (C, *spatial).
        times: "uniform" or "logit-normal", see :class:`~lavps.amortization.denoising.Denoising`.
        seed: of operators, measurements, times and noise.
        description: plain values for the checkpoint (the network's, the task's name, ...).
        bins: times at which it is validated.
        preview_images: (N, C, H, W), restored from their measurements for a preview; None for no preview.
        preview_steps: DDIM steps of a preview.
    """

    def __init__(
        self,
        model: ConditionalDenoiser,
        family: OperatorFamily,
        noise: NoiseModel,
        image_shape: Sequence[int],
        *,
        times: Times = "uniform",
        seed: int = 0,
        description: Mapping[str, Any] | None = None,
        bins: int = 8,
        preview_images: Tensor | None = None,
        preview_steps: int = 50,
    ) -> None:
        self.network, self.family, self.noise = model, family, noise
        self.denoising = Denoising(model.schedule, tuple(image_shape), model.prediction, times, seed, bins)
        self.description = dict(description or {})
        self.preview_images, self.preview_steps = preview_images, preview_steps

    def problem(self, images: Tensor, items: Sequence[int]) -> InverseProblem:
        """The measurements of these images."""
        return measure(images, items, self.family, self.noise, self.denoising.seed)

    def _told(self, problem: InverseProblem) -> Callable[[Tensor, Tensor], Tensor]:
        """The network, told of this problem."""
        return lambda x_t, t: self.network(x_t, t, problem)

    def loss(self, images: Tensor, items: Sequence[int]) -> Tensor:
        """Mean squared error of the prediction, per sample (B,)."""
        return self.denoising.loss(self._told(self.problem(images, items)), images, items)

    def validate(self, images: Tensor) -> dict[str, Any]:
        """The loss, and the mean squared error of the denoised images, in all and by time."""
        items = range(-1, -1 - len(images), -1)  # never met in training
        return self.denoising.validate(self._told(self.problem(images, items)), images)

    def preview(self) -> Tensor | None:
        """Pairs side by side: an image, and a sample given its measurement."""
        if self.preview_images is None:
            return None
        images = self.preview_images.to(next(self.network.parameters()).device)
        problem = self.problem(images, range(-1, -1 - len(images), -1))
        sampler = Supervised(self.network, num_steps=self.preview_steps)
        samples = sampler.sample(problem, seed=self.denoising.seed).samples
        assert samples is not None
        return torch.cat([images, samples.flatten(0, 1)], dim=-1)

    def describe(self) -> dict[str, Any]:
        """Everything but the weights."""
        return {
            "kind": "conditional",
            **self.denoising.describe(),
            "family": repr(self.family),
            "noise": repr(self.noise),
            "conditioning": [repr(part) for part in self.network.conditioning],
            **self.description,
        }
