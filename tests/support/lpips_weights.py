"""Random weights of LPIPS's names and shapes."""

from __future__ import annotations

import pytest
import torch

WIDTHS, LAYERS, SIZES = (64, 192, 384, 256, 256), (0, 3, 6, 8, 10), (11, 5, 3, 3, 3)


def random_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights of the right names and shapes, heads positive."""
    generator, weights = torch.Generator().manual_seed(seed), {}
    for level, (inputs, width, layer, size) in enumerate(
        zip((3, *WIDTHS[:-1]), WIDTHS, LAYERS, SIZES, strict=True)
    ):
        scale = (2 / (inputs * size**2)) ** 0.5
        weights[f"features.{layer}.weight"] = scale * torch.randn(
            width, inputs, size, size, generator=generator
        )
        weights[f"features.{layer}.bias"] = 0.1 * torch.randn(width, generator=generator)
        weights[f"lin{level}.model.1.weight"] = torch.rand(1, width, 1, 1, generator=generator)
    return weights


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return random_weights()
