r"""The inference model, which predicts the inner problem's solution in one forward pass (the paper's Eq. 20).

.. math:: \mu_\varphi(c) = m_b + \sigma_b \big(f^{mean}_\varphi(c) + \gamma_\varphi(s, t)\, u(c)\big), \qquad
    \lambda_\varphi(c) = \log \sigma_b + f^{std}_\varphi(c)

with :math:`m_b, \sigma_b` mean and standard deviation of the bridge. The residual of the mean is in units of
:math:`\sigma_b`, hence of order one at every noise level; that of the standard deviation is in its logarithm.
u is the guidance step for a linear denoiser (:func:`~lavps.guidance.linearized_step`). Late in the run, where
the denoiser is nearly the identity, it is close to the solution for any operator and needs no denoiser
evaluation. u is an input channel and, times a gate, added to the output. All outputs are initialized to zero:
an untrained model returns the bridge.
"""

from __future__ import annotations

__all__ = ["InferenceModel"]

from collections.abc import Callable, Sequence

import torch
from torch import nn

from ..guidance import linearized_step
from ..nn.layers import zeroed
from ..priors import Prior
from ..transitions import per_sample
from ..variational import Context, DiagonalGaussian
from .conditioning import Conditioning, conditioning_channels


class InferenceModel(nn.Module):
    """A map from the context c to N(mu, diag(exp(2 lambda))), the initialization of guidance.

    Args:
        network: Network called as network(channels, t, s, problem=...), with 2C output channels.
        conditioning: Channels that represent the measurement.
        likelihood_step: Use of u(c) as input channel and shortcut.
        data_variance: Variance v of the images.
        solver_steps: Number of solver steps for u; 0 for a bound, a few for blur operators.

    Example:
        >>> from lavps import InferenceModel
        >>> from lavps.nn import MLP, MLPConfig
        >>> from lavps.amortization import Palette
        >>> channels = InferenceModel.in_channels(1, [Palette()])
        >>> model = InferenceModel(MLP(MLPConfig((1, 4, 4), channels, 2, second_time=True)), [Palette()])
    """

    def __init__(
        self,
        network: nn.Module,
        conditioning: Sequence[Conditioning],
        likelihood_step: bool = True,
        data_variance: float = 0.25,
        solver_steps: int = 0,
    ) -> None:
        super().__init__()
        self.network = network
        self.conditioning = tuple(conditioning)
        self.data_variance, self.solver_steps = data_variance, solver_steps
        self.check_prior: Callable[[Prior], None] | None = None  # set on loading
        self.gate: nn.Module | None = None
        if likelihood_step:
            self.gate = nn.Sequential(
                nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), zeroed(nn.Linear(64, 1))
            )

    @staticmethod
    def in_channels(
        image_channels: int, conditioning: Sequence[Conditioning], likelihood_step: bool = True
    ) -> int:
        """Return the number of input channels of the network: x_t, x_0, u and the conditioning."""
        own = image_channels * (3 if likelihood_step else 2)
        return own + sum(part.channels(image_channels) for part in conditioning)

    def forward(self, context: Context) -> DiagonalGaussian:
        """Return bridge plus residual in the dtype of the images."""
        x_t, schedule = context.x_t, context.schedule
        # As in EDM: the noisy image at unit scale for any schedule.
        size = torch.hypot(*schedule.coefficients(context.t))
        inputs = [conditioning_channels(self.conditioning, context)]
        t, s = (time.float().to(x_t.device).reshape(-1) for time in (context.t, context.s))
        bridge, step, gate = context.bridge, None, None
        if self.gate is not None:
            step, curvature = linearized_step(context, self.data_variance, self.solver_steps)
            scale = bridge.log_std.to(x_t).reshape(-1).float() / 4
            numbers = [s, t, scale, curvature.float().log() / 8]
            gate = self.gate(torch.stack([n.expand(len(x_t)) for n in numbers], dim=1))
            inputs.append(step / (1.0 + step.abs() / 4))  # of order one even for a distant initialization
        channels = torch.cat([x_t / per_sample(size, x_t), context.x_0, *inputs], dim=1)
        shift, log_std = self.network(channels, t, s, problem=context.problem).to(x_t.dtype).chunk(2, dim=1)
        if step is not None and gate is not None:
            shift = shift + per_sample(gate[:, 0], step) * step
        return DiagonalGaussian(bridge.mean + bridge.log_std.exp() * shift, bridge.log_std + log_std)
