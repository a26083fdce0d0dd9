r"""The supervised baseline: a denoiser conditioned on the measurement, trained on pairs.

.. math:: \min_\theta E \| f_\theta(x_t, t, y, A) - \text{target}(x, z) \|^2, \qquad A \sim p_{op}, \;
    y \sim l(\cdot | A x), \; x_t = \alpha_t x + \sigma_t z,

Its minimizer is :math:`E[x_0 | x_t, y, A]`, the denoiser of the posterior, so DDIM with it samples the
posterior (:class:`~lavps.samplers.Supervised`) if A and the noise are distributed as in training.

Inputs are the channels :math:`[x_t, \text{conditioning}]` and, for an HDiT with joint levels, the operator
(InvFusion). Conditionings that need an estimate of the clean image receive the best linear one for white
images of variance v, :math:`\alpha v x_t / (\alpha^2 v + \sigma^2)`.

References:
    - Saharia et al., Palette: Image-to-Image Diffusion Models, 2022.
    - Elata et al., InvFussion: Bridging Supervised and Zero-shot Diffusion for Inverse Problems, 2025.
"""

from __future__ import annotations

__all__ = ["ConditionalDenoiser", "ConditionalTask"]

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..noise import NoiseModel
from ..operators.families import OperatorFamily
from ..priors import NetworkPrior
from ..priors.adapters import Prediction
from ..problem import InverseProblem
from ..samplers import Supervised
from ..schedule import Schedule
from ..training.denoiser import Denoising, Times
from ..transitions import per_sample
from ..variational import Context
from .conditioning import Conditioning, conditioning_channels
from .measurements import measure


class ConditionalDenoiser(nn.Module):
    """A denoiser D(x_t, t | y, A) conditioned on the measurement.

    Args:
        network: Network called as network(channels, t, problem=...), with the image's channels as output.
        conditioning: Channels that represent the measurement.
        schedule: Schedule of t.
        prediction: Predicted quantity.
        data_variance: Variance v of the images.

    Example:
        >>> import torch
        >>> from lavps import ConditionalDenoiser, Flow, GaussianNoise, InverseProblem, operators
        >>> from lavps.nn import MLP, MLPConfig
        >>> from lavps.amortization import Palette
        >>> problem = InverseProblem(torch.zeros(2, 1, 2, 2), operators.AveragePool(2), GaussianNoise(0.1))
        >>> model = ConditionalDenoiser(MLP(MLPConfig((1, 4, 4), 2, 1)), [Palette()], Flow())
        >>> model.denoise(torch.randn(2, 1, 4, 4), torch.tensor(0.5).double(), problem).shape
        torch.Size([2, 1, 4, 4])
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
        """Return the number of input channels of the network: x_t and the conditioning."""
        return image_channels + sum(part.channels(image_channels) for part in conditioning)

    def forward(self, x_t: Tensor, t: Tensor, problem: InverseProblem) -> Tensor:
        """Return the prediction (B, C, *spatial).

        Args:
            x_t: Noisy images, shape (B, C, *spatial).
            t: Times, shape () or (B,).
            problem: B measurements and their operators.
        """
        if len(problem) != len(x_t) or problem.image_shape != tuple(x_t.shape[1:]):
            raise ValueError(
                f"{len(x_t)} images {tuple(x_t.shape[1:])} do not match a problem of {len(problem)} images "
                f"{problem.image_shape}: repeat or select its rows"
            )
        channels = conditioning_channels(self.conditioning, self._context(x_t, t, problem))
        prediction: Tensor = self.network(torch.cat([x_t, channels], 1), t, problem=problem)
        return prediction

    def denoise(self, x_t: Tensor, t: Tensor, problem: InverseProblem) -> Tensor:
        """Return D(x_t, t | y, A) (B, C, *spatial) for float64 times t on the CPU, shape () or (B,)."""
        conditioned = partial(self, problem=problem)
        return NetworkPrior(conditioned, self.schedule, self.prediction).denoise(x_t, t)

    def _context(self, x_t: Tensor, t: Tensor, problem: InverseProblem) -> Context:
        """Return the context of the conditionings, with s = t."""
        time = t.detach().double().cpu()
        (alpha, sigma), v = self.schedule.coefficients(time), self.data_variance
        x_0 = per_sample(alpha * v / (alpha.square() * v + sigma.square()), x_t) * x_t
        return Context(x_0, x_t, time, time, problem, self.schedule)


class ConditionalTask:
    """The task of training a :class:`ConditionalDenoiser`.

    Args:
        model: Denoiser to train.
        family: Distribution p_op of the operators, one draw per sample.
        noise: Noise model of the measurements.
        image_shape: Shape (C, *spatial) of the images.
        times: Distribution of training times, see :func:`~lavps.training.denoiser.draw_times`.
        seed: Seed of operators, measurements, times and noise.
        description: Plain values for the checkpoint (network, name of the task, ...).
        bins: Number of times of the validation.
        preview_images: Images (N, C, H, W) restored for a preview; None for no preview.
        preview_steps: Number of DDIM steps of a preview.
        times_mean: Mean of the logarithm of log-normal noise levels.
        times_std: Standard deviation of the logarithm of log-normal noise levels.
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
        times_mean: float = -1.2,
        times_std: float = 1.2,
    ) -> None:
        self.network, self.family, self.noise = model, family, noise
        self.denoising = Denoising(
            model.schedule, tuple(image_shape), model.prediction, times, seed, bins, times_mean, times_std
        )
        self.description = dict(description or {})
        self.preview_images, self.preview_steps = preview_images, preview_steps

    def problem(self, images: Tensor, items: Sequence[int]) -> InverseProblem:
        """Return the measurements of these images."""
        return measure(images, items, self.family, self.noise, self.denoising.seed)

    def loss(self, images: Tensor, items: Sequence[int]) -> Tensor:
        """Return the mean squared error of the prediction per sample (B,)."""
        network = partial(self.network, problem=self.problem(images, items))
        return self.denoising.loss(network, images, items)

    def validate(self, images: Tensor) -> dict[str, Any]:
        """Return the loss, and the mean squared error of the denoised images, overall and by time."""
        items = range(-1, -1 - len(images), -1)  # not used in training
        return self.denoising.validate(partial(self.network, problem=self.problem(images, items)), images)

    def preview(self) -> Tensor | None:
        """Return pairs of an image and a sample given its measurement."""
        if self.preview_images is None:
            return None
        images = self.preview_images.to(next(self.network.parameters()).device)
        problem = self.problem(images, range(-1, -1 - len(images), -1))
        sampler = Supervised(self.network, num_steps=self.preview_steps)
        samples = sampler.sample(problem, seed=self.denoising.seed).samples
        assert samples is not None
        return torch.cat([images, samples.flatten(0, 1)], dim=-1)

    def describe(self) -> dict[str, Any]:
        """Return JSON values of everything but the weights."""
        return {
            "kind": "conditional",
            **self.denoising.describe(),
            "family": repr(self.family),
            "noise": repr(self.noise),
            "conditioning": [repr(part) for part in self.network.conditioning],
            **self.description,
        }
