"""The noise of an image is estimated from the image alone, with an uncertainty that means something."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lavps.evaluation import estimate_noise
from lavps.io import read_image

TRUTH = sorted((Path(__file__).parents[2] / "examples" / "truth").glob("*.png"))


def smooth(offset: float = 0.0) -> Tensor:
    y, x = torch.meshgrid(torch.linspace(0, 1, 96), torch.linspace(0, 1, 96), indexing="ij")
    return torch.stack([0.7 * torch.sin(3 * x + 2 * y), 0.8 * x - 0.3, 0.6 * torch.cos(4 * y * x)]) + offset


def measured(image: Tensor, std: float, seed: int = 0) -> Tensor:
    """A file of 8 bits: noise, clipping, rounding."""
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(seed))
    return ((image + std * noise).clamp(-1, 1) * 127.5 + 127.5).round() / 127.5 - 1


@pytest.mark.parametrize("std", [0.02, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("offset", [0.0, 0.4])  # with 0.4, a tenth of the pixels is clipped
def test_smooth_images_within_ten_per_cent(std: float, channels: int, offset: float) -> None:
    for seed in range(3):
        found, error = estimate_noise(measured(smooth(offset)[:channels], std, seed))
        assert found == pytest.approx(std, rel=0.1)
        assert abs(found - std) < 4 * error < std


@pytest.mark.parametrize("file", TRUTH, ids=lambda file: file.name)
def test_detailed_images(file: Path) -> None:
    assert len(TRUTH) == 4
    image = read_image(file).pixels
    for seed in range(3):
        for std in (0.05, 0.1, 0.2):
            assert estimate_noise(measured(image, std, seed))[0] == pytest.approx(std, rel=0.1)
        found, error = estimate_noise(measured(image, 0.02, seed))  # about the detail of the image itself
        assert 0 < found - 0.02 < 2 * error


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_only_known_pixels_count(share: float) -> None:
    known = torch.rand(1, 96, 96, generator=torch.Generator().manual_seed(1)) < share
    known[:, 20:70, 20:70] = False
    image = measured(smooth(), 0.05)
    hidden = torch.where(known, image, torch.rand(3, 96, 96))
    found, error = estimate_noise(hidden, known)
    assert found == pytest.approx(0.05, abs=3 * error)
    assert found == estimate_noise(torch.where(known, image, 0.0), known)[0]
    assert error < 0.01


def test_values_beyond_the_range_were_not_clipped() -> None:
    noise = torch.randn(1, 96, 96, generator=torch.Generator().manual_seed(2))
    assert estimate_noise(0.95 + 0.1 * noise)[0] == pytest.approx(0.1, rel=0.1)


def test_grey_saved_as_colour_is_grey() -> None:
    grey = measured(smooth()[:1], 0.05)
    assert estimate_noise(grey.expand(3, -1, -1)) == estimate_noise(grey)


def test_large_images_are_sampled() -> None:
    image = 0.05 * torch.randn(1, 1200, 1000, generator=torch.Generator().manual_seed(3))
    assert estimate_noise(image)[0] == pytest.approx(0.05, rel=0.01)


@pytest.mark.parametrize("image", [torch.zeros(3, 1, 1), torch.zeros(3, 4, 5), torch.ones(3, 64, 64)])
def test_too_few_pixels_raise(image: Tensor) -> None:
    with pytest.raises(ValueError, match="too few pixels"):
        estimate_noise(image)
    with pytest.raises(ValueError, match="shape"):
        estimate_noise(image[0])
