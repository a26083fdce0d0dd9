"""Pictures about restorations: what they show is measured in their pixels."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from lavps.pages.panels import comparison, heat, picture_panel, uncertainty_panel, uncertainty_scale


def opened(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)


def test_hotter_is_lighter() -> None:
    lightness = heat(np.linspace(0, 2, 50)[None], 2.0)[0] @ np.array([0.3, 0.6, 0.1])
    assert (np.diff(lightness) > 0).all()
    assert (heat(np.array([[9.0]]), 2.0) == heat(np.array([[2.0]]), 2.0)).all()


def test_the_scale_is_in_grey_levels_and_knows_no_outlier() -> None:
    std = torch.full((3, 40, 40), 0.1)
    std[:, 0, 0] = 5.0
    levels, top = uncertainty_scale(std)
    assert levels[1, 1] == pytest.approx(12.75)
    assert top == pytest.approx(12.75)
    assert uncertainty_scale(0 * std)[1] > 0  # samples that agree have a scale too
    panel = uncertainty_panel(std, 4)
    assert panel.caption == "uncertainty of 4 samples"


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 16, 16), (3, 5, 300), (1, 900, 2), (3, 40, 1500)])
def test_panels_of_any_shape_share_a_height(shape: tuple[int, ...]) -> None:
    small = picture_panel(-torch.ones(shape), "measurement", "pixels")
    large = torch.ones(shape[0], 2 * shape[1], 2 * shape[2])
    page = opened(comparison([small, picture_panel(large, "restored"), uncertainty_panel(0.1 * large, 2)]))
    assert max(page.shape[:2]) < 3600
    black = (page[12] == 0).all(-1).nonzero()[0]
    assert black[0] == 12  # the measurement begins at the margin, in the first row of panels
    assert (page[:12] == 255).all()  # and above is paper


def test_small_pictures_are_enlarged_by_whole_pixels() -> None:
    pixels = torch.tensor([[[-1.0, 1.0], [1.0, -1.0]]])
    page = opened(comparison([picture_panel(pixels, "two by two")]))
    inside = page[12 : 12 + 256, 12 : 12 + 256]
    assert (inside[:128, :128] == 0).all()
    assert (inside[:128, 128:] == 255).all()


def test_what_is_missing_is_chequered() -> None:
    observed = torch.ones(1, 32, 32)
    observed[:, 8:24, 8:24] = 0
    panel = picture_panel(torch.ones(3, 32, 32), "hole", observed=observed)
    assert (panel.pixels[:8] == 255).all()
    hole = panel.pixels[8:24, 8:24]
    assert len(np.unique(hole)) == 2
    assert hole.max() < 128
