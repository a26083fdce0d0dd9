"""A residual multilayer perceptron for images of a few dozen pixels: the toy of exact experiments."""

from __future__ import annotations

__all__ = ["MLP", "MLPConfig"]

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..problem import InverseProblem
from .layers import ConditionEmbedding, zeroed


@dataclass(frozen=True)
class MLPConfig:
    """The shape of an :class:`MLP`.

    Attributes:
        shape: image shape (C, *spatial); an MLP knows one only.
        in_channels: channels of its input, each of the image's spatial size.
        out_channels: channels of its output.
        width: of the hidden layers.
        depth: number of residual blocks.
        second_time: whether it takes a second time s.
    """

    kind: ClassVar[str] = "mlp"

    shape: tuple[int, ...]
    in_channels: int
    out_channels: int
    width: int = 256
    depth: int = 3
    second_time: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the network's kind."""
        return {"kind": self.kind, **asdict(self)}


class MLP(nn.Module):
    """Residual blocks on the flattened image, scaled and shifted by the embedded times.

    Args:
        config: its shape.
    """

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        self.config = config
        pixels = math.prod(config.shape[1:])
        self.embedding = ConditionEmbedding(config.width, 1, config.second_time, 0)
        self.enter = nn.Linear(config.in_channels * pixels, config.width)
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(config.depth))
        self.modulations = nn.ModuleList(
            nn.Linear(config.width, 2 * config.width) for _ in range(config.depth)
        )
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(config.width, 2 * config.width),
                nn.GELU(),
                nn.Linear(2 * config.width, config.width),
            )
            for _ in range(config.depth)
        )
        self.leave = zeroed(nn.Linear(config.width, config.out_channels * pixels))

    def forward(
        self,
        x: Tensor,
        t: Tensor,
        s: Tensor | None = None,
        labels: Tensor | None = None,
        problem: InverseProblem | None = None,
    ) -> Tensor:
        """The output (B, out_channels, *spatial).

        Args:
            x: (B, in_channels, *spatial).
            t: time, () or (B,).
            s: a second time, where the network has one.
            labels: not used.
            problem: not used: it knows of the measurement by its channels alone.
        """
        condition = self.embedding(len(x), t, s, None)
        hidden = self.enter(x.flatten(1))
        for norm, modulation, block in zip(self.norms, self.modulations, self.blocks, strict=True):
            scale, shift = modulation(condition).chunk(2, dim=1)
            hidden = hidden + block(norm(hidden) * (1 + scale) + shift)
        output: Tensor = self.leave(torch.nn.functional.gelu(hidden))
        return output.reshape(len(x), self.config.out_channels, *self.config.shape[1:])
