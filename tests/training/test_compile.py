"""Training with a compiled network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lavps
from lavps.nn import build_seeded
from lavps.training import DenoiserTask, ImageData, TrainerConfig, train
from support.restoring import TINY

GREY = TINY | {"in_channels": 1, "out_channels": 1}


@pytest.mark.slow
def test_a_compiled_network_trains_to_the_same_weights(tmp_path: Path) -> None:
    images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    weights = {}
    for compiled in (False, True):
        network = build_seeded(GREY, 0)
        task = DenoiserTask(network, lavps.Flow(), (1, 8, 8), preview_steps=2, preview_samples=1)
        config = TrainerConfig(
            tmp_path / str(compiled), 5, 2, warmup_steps=1, ema_decay=0.5, compile=compiled, tensorboard=False
        )
        train(task, ImageData.from_tensor(images), config, ImageData.from_tensor(images[:3]))
        weights[compiled] = network.state_dict()
    assert weights[True].keys() == weights[False].keys()
    for name, value in weights[True].items():
        torch.testing.assert_close(value, weights[False][name], atol=1e-4, rtol=1e-3)
