"""Networks in half precision, everything around them in full.

A network computes in bfloat16 what it would in float32, at up to twice the speed and half the memory; the
state of a sampler, its schedule, its likelihood and its noise must not lose their digits. So the network
alone runs under ``torch.autocast``, and what leaves it is of the dtype that went in.
"""

from __future__ import annotations

__all__ = ["Autocast", "in_half", "with_autocast"]

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .networks import EDMPrior, NetworkPrior

_CAST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
P = TypeVar("P", bound=NetworkPrior | EDMPrior)


class Autocast(nn.Module):
    """A network, computed under autocast.

    Args:
        network: called with images (B, C, *spatial) first, returns a tensor. Its weights are shared.
        dtype: bfloat16 has the range of float32; float16, which has not, is for networks trained in it.
    """

    def __init__(self, network: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.network = network
        self.dtype = dtype

    def forward(self, x: Tensor, *arguments: Any, **named: Any) -> Tensor:
        """What the network returns, in the dtype of x."""
        with torch.autocast(x.device.type, self.dtype):
            output: Tensor = self.network(x, *arguments, **named)
        return output.to(x.dtype)


def in_half(network: nn.Module, dtype: torch.dtype = torch.bfloat16) -> Autocast:
    """A copy of a network for sampling under autocast: the weights it would cast at every call are cast once.

    What it answers is the same to the last bit; at batch 1, where reading the weights is a good part of the
    work, it comes sooner.
    """
    half = copy.deepcopy(network).requires_grad_(False)
    for module in half.modules():
        if isinstance(module, _CAST):
            module.to(dtype)
    return Autocast(half, dtype).eval()


def with_autocast(prior: P, dtype: torch.dtype = torch.bfloat16) -> P:
    """A prior whose network is :func:`in_half`, with the same weights (and hash); the given one stays."""
    if not isinstance(getattr(prior, "network", None), nn.Module):
        raise TypeError(f"{type(prior).__name__} has no network of torch to run in {dtype}")
    half = copy.copy(prior)
    assert isinstance(prior.network, nn.Module)
    half.network = in_half(prior.network, dtype)
    return half
