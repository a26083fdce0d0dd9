"""Networks in half precision, with samplers in full precision.

In bfloat16 a network takes up to half the time and half the memory. The sampler state, the schedule, the
likelihood and the noise need full precision, so only the network runs under ``torch.autocast``, and its
output is cast to the dtype of its input.
"""

from __future__ import annotations

__all__ = ["PRECISIONS", "Autocast", "Precision", "in_half", "with_autocast"]

import copy
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from .adapters import EDMPrior, NetworkPrior

_CAST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
P = TypeVar("P", bound=NetworkPrior | EDMPrior)

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Autocast(nn.Module):
    """A network evaluated under autocast.

    Args:
        network: Function of images (B, C, *spatial) and further arguments; the weights are shared.
        dtype: bfloat16, which has the range of float32, or float16 for networks trained in it.
    """

    def __init__(self, network: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.network = network
        self.dtype = dtype

    def forward(self, x: Tensor, *arguments: Any, **named: Any) -> Tensor:
        """Return the output of the network in the dtype of x."""
        with torch.autocast(x.device.type, self.dtype):
            output: Tensor = self.network(x, *arguments, **named)
        return output.to(x.dtype)


def in_half(network: nn.Module, dtype: torch.dtype = torch.bfloat16) -> Autocast:
    """Return a copy of a network for inference under autocast, its weights cast once instead of per call.

    The output is bit-identical; at batch size 1, where reading weights dominates, the copy is faster.
    """
    half = copy.deepcopy(network).requires_grad_(False)
    for module in half.modules():
        if isinstance(module, _CAST):
            module.to(dtype)
    return Autocast(half, dtype).eval()


def with_autocast(prior: P, dtype: torch.dtype = torch.bfloat16) -> P:
    """Return a copy of a prior whose network is :func:`in_half`; weights and hash stay the same."""
    if not isinstance(getattr(prior, "network", None), nn.Module):
        raise TypeError(f"{type(prior).__name__} has no torch network to run in {dtype}")
    half = copy.copy(prior)
    assert isinstance(prior.network, nn.Module)
    half.network = in_half(prior.network, dtype)
    return half
