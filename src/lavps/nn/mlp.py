"""A residual multilayer perceptron for images of a few dozen pixels, as used in exact experiments."""

from __future__ import annotations

__all__ = ["MLP", "MLPConfig"]

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from .config import NetworkConfig
from .layers import ConditionEmbedding, zeroed
from .protocols import MeasurementLike


@dataclass(frozen=True)
class MLPConfig(NetworkConfig):
    """Architecture of an :class:`MLP`.

    Attributes:
        shape: Image shape (C, *spatial).
        in_channels: Channels of the input, each of the image's spatial size.
        out_channels: Channels of the output.
        width: Width of the hidden layers.
        depth: Number of residual blocks.
        second_time: Conditioning on a second time s.
    """

    kind: ClassVar[str] = "mlp"
    shape: tuple[int, ...]
    in_channels: int
    out_channels: int
    width: int = 256
    depth: int = 3
    second_time: bool = False


class MLP(nn.Module):
    """Residual blocks on the flattened image, with scale and shift from the embedded times.

    Example:
        >>> import torch
        >>> from lavps.nn import MLP, MLPConfig
        >>> MLP(MLPConfig((1, 4, 4), 2, 1))(torch.randn(3, 2, 4, 4), torch.tensor(0.5)).shape
        torch.Size([3, 1, 4, 4])
    """

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        self.config = config
        pixels, width, depth = math.prod(config.shape[1:]), config.width, config.depth
        self.embedding = ConditionEmbedding(width, 1, config.second_time, 0)
        self.enter = nn.Linear(config.in_channels * pixels, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.modulations = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.leave = zeroed(nn.Linear(width, config.out_channels * pixels))

    def forward(
        self,
        x: Tensor,
        t: Tensor,
        s: Tensor | None = None,
        labels: Tensor | None = None,
        problem: MeasurementLike | None = None,
    ) -> Tensor:
        """Return (B, out_channels, *spatial) for x (B, in_channels, *spatial); ignore labels and problem."""
        condition = self.embedding(len(x), t, s, None)
        hidden = self.enter(x.flatten(1))
        for norm, modulation, block in zip(self.norms, self.modulations, self.blocks, strict=True):
            scale, shift = modulation(condition).chunk(2, dim=1)
            hidden = hidden + block(norm(hidden) * (1 + scale) + shift)
        output: Tensor = self.leave(torch.nn.functional.gelu(hidden))
        return output.reshape(len(x), self.config.out_channels, *self.config.shape[1:])
