r"""The inference model: one forward pass that predicts where the inner problem ends (the paper's Eq. 20).

.. math:: \mu_\varphi(c) = m_b + \sigma_b \big(f^{mean}_\varphi(c) + \gamma_\varphi(s, t)\, u(c)\big), \qquad
    \lambda_\varphi(c) = \log \sigma_b + f^{std}_\varphi(c)

with :math:`m_b, \sigma_b` mean and standard deviation of the bridge. The residual of the mean is in units of
the bridge's spread, which makes it of order one at every noise level; that of the spread is in its
logarithm, so no variance is ever negative. u is the step that guidance would take were the denoiser linear
(:func:`~lavps.initializers.likelihood_step`); late in the run, where the denoiser is nearly the identity, it
is most of the answer for *any* operator, and needs no pass of the denoiser. It is both a channel of the
network and, times a gate, a shortcut to the output. All outputs start at zero: an untrained model *is* the
zero-shot start.
"""

from __future__ import annotations

__all__ = ["InferenceModel"]

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..initializers import likelihood_step
from ..networks import Conditioning, conditioning_channels
from ..networks.layers import zeroed
from ..priors import Prior
from ..transitions import per_sample
from ..variational import Context, DiagonalGaussian


class InferenceModel(nn.Module):
    """c -> N(mu, diag(exp(2 lambda))), a warm start for MGDM, MGPS and whatever shares their context.

    Args:
        network: called as network(channels, t, s, problem=...), returns twice the image's channels.
        conditioning: what the network is told of the measurement, as channels.
        likelihood_step: whether it is told u(c), and has the shortcut.
        data_variance: v.
        solver_steps: of u; 0 is the bound, a few solve for it, which an operator that blurs is worth.
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
        self.data_variance = data_variance
        self.solver_steps = solver_steps
        self.check_prior: Callable[[Prior], None] | None = None  # set by what loads a checkpoint
        self.gate: nn.Module | None = None
        if likelihood_step:
            self.gate = nn.Sequential(
                nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), zeroed(nn.Linear(64, 1))
            )

    @staticmethod
    def in_channels(
        image_channels: int, conditioning: Sequence[Conditioning], likelihood_step: bool = True
    ) -> int:
        """Channels the network receives: x_t, x_0, u and the conditioning's."""
        own = image_channels * (3 if likelihood_step else 2)
        return own + sum(part.channels(image_channels) for part in conditioning)

    def forward(self, context: Context) -> DiagonalGaussian:
        """Bridge plus residual, in the dtype of the images."""
        x_t, schedule = context.x_t, context.schedule
        # As EDM does: the noisy image at unit scale, whatever the schedule.
        size = torch.hypot(schedule.alpha(context.t), schedule.sigma(context.t))
        told = [conditioning_channels(self.conditioning, context)]
        t, s = (self._clock(time, x_t) for time in (context.t, context.s))
        bridge, step, gate = context.bridge, None, None
        if self.gate is not None:
            step, stiffness = likelihood_step(context, self.data_variance, self.solver_steps)
            scale = bridge.log_std.to(x_t).reshape(-1).float() / 4
            numbers = [s, t, scale, stiffness.float().log() / 8]
            gate = self.gate(torch.stack([n.expand(len(x_t)) for n in numbers], dim=1))
            told.append(step / (1.0 + step.abs() / 4))  # of order one also where the start is far off
        channels = torch.cat([x_t / per_sample(size, x_t), context.x_0, *told], dim=1)
        shift, spread = self.network(channels, t, s, problem=context.problem).to(x_t.dtype).chunk(2, dim=1)
        if step is not None and gate is not None:
            shift = shift + per_sample(gate[:, 0], step) * step
        return DiagonalGaussian(bridge.mean + bridge.log_std.exp() * shift, bridge.log_std + spread)

    @staticmethod
    def _clock(time: Tensor, like: Tensor) -> Tensor:
        return time.to(torch.float32).to(like.device).reshape(-1)
