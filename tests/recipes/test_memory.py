"""The bytes of a network's activations are counted exactly where they can be added up by hand."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.recipes import ROOT


@pytest.fixture
def activations(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("recipes.memory.run").activations  # type: ignore[no-any-return]


class Two(nn.Module):
    """Two convolutions with eight channels between them."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(3, 8, 1, bias=False), nn.Conv2d(8, 3, 1, bias=False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = torch.relu(self.wide(x))
        return self.narrow(hidden)  # type: ignore[no-any-return]


def test_the_peak_of_a_forward_pass_is_the_largest_pair_of_layers(
    activations: Callable[..., Any],
) -> None:
    time, plane = 4, 16 * 16 * 4
    with torch.device("meta"):
        network = Two().requires_grad_(False)
        assert activations(network, (3, 16, 16), gradient=False) == time + 16 * plane
        assert activations(network, (3, 32, 32), gradient=False) == time + 64 * plane


def test_a_gradient_keeps_activations_until_its_end(activations: Callable[..., Any]) -> None:
    deep = nn.Sequential(*(layer for _ in range(9) for layer in (nn.Conv2d(3, 3, 1, bias=False), nn.ReLU())))

    class Deep(nn.Module):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return deep(x)  # type: ignore[no-any-return]

    with torch.device("meta"):
        deep.requires_grad_(False).to("meta")
        forward, gradient = (activations(Deep(), (3, 16, 16), kept) for kept in (False, True))
    plane = 3 * 16 * 16 * 4
    assert forward == 4 + 2 * plane
    assert gradient >= 9 * plane
