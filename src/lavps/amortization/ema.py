"""The averaged weights, which are the ones a model is used with."""

from __future__ import annotations

__all__ = ["Ema"]

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Ema:
    r"""The average of a network's weights, in float32; buffers are followed, not averaged.

    .. math:: \bar\theta_{k+1} = \beta_k \bar\theta_k + (1 - \beta_k) \theta_{k+1}, \qquad
        \beta_k = \min(\beta, (1 + k) / (10 + k)).

    Args:
        network: whose weights.
        decay: beta.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {
            name: value.detach().clone().float() if value.is_floating_point() else value.detach().clone()
            for name, value in network.state_dict().items()
        }

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """After step 0, 1, ... of the optimiser."""
        keep = min(self.decay, (1 + step) / (10 + step))
        averaged = {name for name, _ in network.named_parameters(remove_duplicate=False)}
        values = network.state_dict()
        parameters = [name for name in values if name in averaged]
        # All at once: hundreds of small tensors one by one would cost as much as a pass of a small network.
        torch._foreach_lerp_(
            [self.weights[name] for name in parameters],
            [values[name].float() for name in parameters],
            1.0 - keep,
        )
        for name in values.keys() - averaged:
            self.weights[name].copy_(values[name])

    @contextmanager
    def applied(self, network: nn.Module) -> Iterator[None]:
        """The network with its averaged weights, in eval mode; its own come back exactly."""
        own = {name: value.detach().clone() for name, value in network.state_dict().items()}
        network.load_state_dict(self.weights)
        network.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            network.load_state_dict(own)
            network.train()
