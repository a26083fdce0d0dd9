"""Images of the commands that simulate measurements: whole, or windows at native resolution."""

from __future__ import annotations

from pathlib import Path

import torch

from lavps.cli.draws import images_or_draws
from lavps.cli.options import Crop
from support.problems import network_prior
from support.restoring import picture, save

SHAPE = (3, 8, 8)


def images(folder: Path, crop: Crop, seed: int = 0) -> torch.Tensor:
    return images_or_draws(folder, crop, network_prior(), SHAPE, 5, seed, "cpu")


def test_random_crops_are_windows_of_the_photograph_that_the_seed_determines(tmp_path: Path) -> None:
    pixels = picture(20, 30, seed=3)
    save(tmp_path / "photo.png", pixels)
    found = images(tmp_path, "random")
    assert found.shape == (5, *SHAPE)
    photo = torch.from_numpy(pixels).permute(2, 0, 1).float() / 127.5 - 1.0
    windows = photo.unfold(1, 8, 1).unfold(2, 8, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
    assert all(any(torch.allclose(crop, window) for window in windows) for crop in found)
    assert len({crop.numpy().tobytes() for crop in found}) > 1
    assert torch.equal(found, images(tmp_path, "random"))
    assert not torch.equal(found, images(tmp_path, "random", seed=1))


def test_without_random_crops_a_photograph_is_resized_and_used_once(tmp_path: Path) -> None:
    save(tmp_path / "photo.png", picture(20, 30, seed=3))
    assert images(tmp_path, "centre").shape == (1, *SHAPE)
