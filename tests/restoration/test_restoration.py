"""From a degraded file to a restored one, of any size, with no ground truth anywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lavps
from lavps.guidance import Gradient
from lavps.io import match_channels, read_image, write_image
from lavps.minimizers import WhitenedGradient
from lavps.tiling import TiledPrior
from support.problems import StationaryGaussian


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_a_small_file_is_restored_to_twice_its_size(mode: str, tmp_path: Path) -> None:
    prior = StationaryGaussian(length=12.0, std=0.3)
    field = prior.sample(len(mode), 11, 17).permute(1, 2, 0).numpy()
    levels = (field.clip(-1, 1) * 127.5 + 127.5).astype(np.uint8)
    Image.fromarray(levels).save(tmp_path / "small.png", dpi=(300, 300))

    image = read_image(tmp_path / "small.png")
    y = match_channels(image.pixels, 3)[None]
    std = 0.1 * (3 / image.channels) ** 0.5
    problem = lavps.InverseProblem(y, lavps.operators.AveragePool(2), lavps.GaussianNoise(std))
    sampler = lavps.MGDM(TiledPrior(prior, window=16), num_steps=12, guidance=Gradient(3, WhitenedGradient()))
    restored = sampler.sample(problem).samples[0, 0]
    write_image(tmp_path / "large.png", restored, like=image)

    large = Image.open(tmp_path / "large.png")
    assert (large.mode, large.size) == (mode, (34, 22))
    assert large.info["dpi"] == pytest.approx((300, 300), rel=1e-3)
    # What was written explains what was read far better than a flat image does.
    again = match_channels(read_image(tmp_path / "large.png").pixels, 3)[None]
    assert float(problem.chi_square(again)) < 0.3 * float(problem.chi_square(0 * again + again.mean()))
