"""Exponential moving averages of the weights, and the choice among averages of several lengths."""

from __future__ import annotations

__all__ = ["Averages", "Ema"]

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Ema:
    r"""The average of a network's weights in float32; buffers are copied.

    .. math:: \bar\theta_{k+1} = \beta_k \bar\theta_k + (1 - \beta_k) \theta_{k+1}, \qquad
        \beta_k = \min(\beta, (1 + k) / (10 + k)).

    Args:
        network: Network to average.
        decay: Decay beta.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {
            name: value.detach().clone().float() if value.is_floating_point() else value.detach().clone()
            for name, value in network.state_dict().items()
        }

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Update the average after step 0, 1, ... of the optimizer."""
        keep = min(self.decay, (1 + step) / (10 + step))
        averaged = {name for name, _ in network.named_parameters(remove_duplicate=False)}
        values = network.state_dict()
        parameters = [name for name in values if name in averaged]
        # In one call: hundreds of small updates would cost as much as evaluating a small network.
        torch._foreach_lerp_(
            [self.weights[name] for name in parameters],
            [values[name].float() for name in parameters],
            1.0 - keep,
        )
        for name in values.keys() - averaged:
            self.weights[name].copy_(values[name])

    @contextmanager
    def applied(self, network: nn.Module) -> Iterator[None]:
        """Use the averaged weights in eval mode, then restore the network's own weights exactly."""
        own = {name: value.detach().clone() for name, value in network.state_dict().items()}
        network.load_state_dict(self.weights)
        network.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            network.load_state_dict(own)
            network.train()


class Averages:
    """Averages of a network's weights with several decays, all validated; the best one is chosen.

    A short average follows the weights closely, a long one averages out more of their noise. Which is better
    depends on the length of the training and on the learning rate.

    Args:
        network: Network to average.
        decays: Decay of each average.
        export: Decay of the chosen average; None for the lowest validation loss, or the first without one.

    Attributes:
        members: Averages by the names of their tensors in a checkpoint.

    Example:
        >>> network = nn.Linear(1, 1)
        >>> averages = Averages(network, (0.9, 0.99))
        >>> losses = iter([{"loss": 2.0}, {"loss": 1.0}])
        >>> averages.validate(network, lambda: next(losses))
        >>> averages.record()
        {'loss': 1.0, 'ema_decay': 0.99, 'loss_by_ema_decay': [2.0, 1.0]}
    """

    def __init__(self, network: nn.Module, decays: Sequence[float], export: float | None = None) -> None:
        alone = len(decays) == 1
        self.members = {"ema" if alone else f"ema-{decay}": Ema(network, decay) for decay in decays}
        self._decays, self._export = tuple(decays), export
        self._results: list[dict[str, Any]] = [{} for _ in decays]

    def update(self, network: nn.Module, step: int) -> None:
        """Update all averages after step 0, 1, ... of the optimizer."""
        for ema in self.members.values():
            ema.update(network, step)

    def validate(self, network: nn.Module, evaluate: Callable[[], dict[str, Any]]) -> None:
        """Evaluate the network with each of the averages in turn."""
        for index, ema in enumerate(self.members.values()):
            with ema.applied(network):
                found = json.dumps(evaluate())
            # The mean of an empty bin is NaN, which JSON lacks.
            self._results[index] = json.loads(found, parse_constant=lambda _: None)

    @property
    def validations(self) -> Any:
        """Last validation, JSON values; a list of them for several decays."""
        return self._results if len(self.members) > 1 else self._results[0]

    @validations.setter
    def validations(self, values: Any) -> None:
        self._results = values if len(self.members) > 1 else [values]

    @property
    def choice(self) -> int:
        """Number of the chosen average."""
        if self._export is not None:
            return self._decays.index(self._export)
        losses = self._losses()
        return min(range(len(losses)), key=lambda i: float("inf") if losses[i] is None else losses[i])

    @property
    def chosen(self) -> Ema:
        """Chosen average."""
        return list(self.members.values())[self.choice]

    def record(self) -> dict[str, Any]:
        """Return the last validation of the chosen average and, for several, its decay and all losses."""
        result = self._results[self.choice]
        if len(self.members) == 1 or not result:
            return result
        name = next(iter(result))
        return result | {"ema_decay": self._decays[self.choice], f"{name}_by_ema_decay": self._losses()}

    def _losses(self) -> list[Any]:
        """Return the first number of each validation, the loss."""
        return [next(iter(result.values()), None) for result in self._results]
