r"""Adapters that turn a network into a denoiser, whatever it predicts.

With :math:`x_t = \alpha x_0 + \sigma \varepsilon`:

==============  =======================================  ====================================================
prediction      estimated quantity                       D(x_t, t)
==============  =======================================  ====================================================
``"x0"``        :math:`x_0`                              network output
``"eps"``       :math:`\varepsilon`                      :math:`(x_t - \sigma \varepsilon) / \alpha`
``"v"``         :math:`\alpha \varepsilon - \sigma x_0`  :math:`(\alpha x_t - \sigma v)/(\alpha^2+\sigma^2)`
``"score"``     :math:`\nabla \log p_t(x_t)`             :math:`(x_t + \sigma^2 score) / \alpha`
``"velocity"``  :math:`\varepsilon - x_0`                :math:`(x_t - \sigma u) / (\alpha + \sigma)`
==============  =======================================  ====================================================

References:
    - Salimans and Ho, Progressive Distillation for Fast Sampling of Diffusion Models, 2022 (v).
    - Karras et al., Elucidating the Design Space of Diffusion Models, 2022 (preconditioning).
"""

from __future__ import annotations

__all__ = ["EDMPrior", "NetworkPrior", "Prediction", "TimeInput"]

from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..schedule import VE, DiscreteVP, Schedule
from ..transitions import per_sample

Network = Callable[[Tensor, Tensor], Tensor]
Prediction = Literal["x0", "eps", "v", "score", "velocity"]
TimeInput = Literal["time", "index", "noise_level", "log_snr"]

# Predictions of the noise do not determine x_0 where alpha = 0, and an infinite noise level or log SNR makes
# a network return NaN: larger noise levels are evaluated at this one.
_LARGEST_NOISE_LEVEL = 1e3


def _in_eval_mode(network: Network) -> Network:
    # Dropout and batch statistics would make the denoiser random.
    return network.eval() if isinstance(network, nn.Module) else network


class NetworkPrior:
    """A network ``network(x, c)`` as a prior.

    Args:
        network: Map from noisy images (B, C, *spatial) and conditions c (B,) to a prediction. A module is
            put in eval mode. Of 2C output channels (a learned variance) the first C are used.
        schedule: Schedule of the training.
        prediction: Predicted quantity, see the table of the module.
        time_input: Meaning of c: the time in [0, 1], the index 0..n-1 of a discrete chain, the noise level
            sigma / alpha, or log SNR.

    Example:
        >>> import torch
        >>> from lavps import NetworkPrior, VPLinear
        >>> prior = NetworkPrior(lambda x, c: torch.zeros_like(x), VPLinear(), "x0")
        >>> prior.denoise(torch.randn(2, 3, 8, 8), torch.tensor(0.5).double()).shape
        torch.Size([2, 3, 8, 8])
    """

    def __init__(
        self,
        network: Network,
        schedule: Schedule,
        prediction: Prediction = "eps",
        time_input: TimeInput = "time",
    ) -> None:
        if prediction not in get_args(Prediction):
            raise ValueError(f"prediction must be one of {get_args(Prediction)}, got {prediction!r}")
        if time_input not in get_args(TimeInput):
            raise ValueError(f"time_input must be one of {get_args(TimeInput)}, got {time_input!r}")
        if time_input == "index" and not isinstance(schedule, DiscreteVP):
            raise ValueError(f"time_input='index' needs a DiscreteVP schedule, got {schedule!r}")
        self.network = _in_eval_mode(network)
        self.schedule, self.prediction, self.time_input = schedule, prediction, time_input
        # Known for checkpoints: name, hash of the weights, shape (C, *spatial) of training images, folder.
        self.name: str | None = None
        self.weights_hash: str | None = None
        self.image_shape: tuple[int, ...] | None = None
        self.folder: Path | None = None

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Return D(x_t, t), computed from the prediction of the network."""
        if self.prediction in ("eps", "score") or self.time_input in ("noise_level", "log_snr"):
            x_t, t = self._clamped(x_t, t)
        output = self.network(x_t, self._condition(x_t, t)).to(x_t.dtype)
        if output.shape[1] == 2 * x_t.shape[1]:
            output = output[:, : x_t.shape[1]]
        if self.prediction == "x0":
            return output
        weight_x, weight_output = self._weights(t)
        return per_sample(weight_x, x_t) * x_t + per_sample(weight_output, x_t) * output

    def _weights(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of D(x_t, t) = first * x_t + second * output (last column of the table)."""
        alpha, sigma = self.schedule.coefficients(t)
        if self.prediction == "v":
            power = alpha.square() + sigma.square()
            return alpha / power, -sigma / power
        if self.prediction == "velocity":
            return 1 / (alpha + sigma), -sigma / (alpha + sigma)
        slope = sigma.square() if self.prediction == "score" else -sigma
        return 1 / alpha, slope / alpha

    def _clamped(self, x_t: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Rescale images and times to at most the largest noise level."""
        last = torch.minimum(t, self.schedule.time(torch.tensor(_LARGEST_NOISE_LEVEL)))
        size, size_at_last = (torch.hypot(*self.schedule.coefficients(s)) for s in (t, last))
        return per_sample(size_at_last / size, x_t) * x_t, last

    def _condition(self, x_t: Tensor, t: Tensor) -> Tensor:
        if self.time_input == "index":
            assert isinstance(self.schedule, DiscreteVP)
            c = (t * self.schedule.num_train_steps - 1.0).clamp(min=0.0)
        elif self.time_input == "noise_level":
            c = self.schedule.noise_level(t)
        elif self.time_input == "log_snr":
            c = self.schedule.log_snr(t)
        else:
            c = t
        return c.to(torch.float32).to(x_t.device).expand(x_t.shape[0])


class EDMPrior:
    r"""A network F under EDM's preconditioning, as a prior on the VE schedule.

    .. math:: D(x, \sigma) = c_{skip} x + c_{out} F(c_{in} x, \tfrac14 \log \sigma)

    with :math:`c_{skip} = \sigma_d^2 / (\sigma^2 + \sigma_d^2)`,
    :math:`c_{out} = \sigma \sigma_d / \sqrt{\sigma^2 + \sigma_d^2}`,
    :math:`c_{in} = 1 / \sqrt{\sigma^2 + \sigma_d^2}`; :class:`~lavps.priors.Rescheduled` changes schedules.

    Args:
        network: Network F(x, c_noise).
        schedule: VE schedule, its sigma_max the largest noise level of the training.
        sigma_data: Standard deviation sigma_d of the data assumed in training.

    Example:
        >>> import torch
        >>> from lavps import EDMPrior
        >>> prior = EDMPrior(lambda x, c: torch.zeros_like(x))
        >>> prior.denoise(torch.randn(2, 3, 8, 8), torch.tensor(0.5).double()).shape
        torch.Size([2, 3, 8, 8])
    """

    def __init__(self, network: Network, schedule: VE | None = None, sigma_data: float = 0.5) -> None:
        self.network = _in_eval_mode(network)
        self.schedule: Schedule = VE() if schedule is None else schedule
        self.sigma_data = sigma_data
        self.name: str | None = None  # known for checkpoints, as are hash, image shape and folder
        self.weights_hash: str | None = None
        self.image_shape: tuple[int, ...] | None = None
        self.folder: Path | None = None

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Return c_skip x + c_out F(c_in x, log(sigma) / 4)."""
        sigma = self.schedule.sigma(t)
        norm = torch.hypot(sigma, torch.full_like(sigma, self.sigma_data))
        c_noise = (sigma.clamp(min=1e-12).log() / 4).to(torch.float32).to(x_t.device).expand(x_t.shape[0])
        output = self.network(per_sample(1 / norm, x_t) * x_t, c_noise).to(x_t.dtype)
        skip = per_sample((self.sigma_data / norm).square(), x_t)
        return skip * x_t + per_sample(sigma * self.sigma_data / norm, x_t) * output
