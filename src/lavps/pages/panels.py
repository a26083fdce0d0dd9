"""Figures of a restoration: uncertainty per pixel, and a comparison with the measurement.

The uncertainty is the standard deviation of the samples, root mean square over the channels, in grey levels
of 255. Its scale ends at the 99.5 % quantile, so that a few outliers do not darken the rest.
"""

from __future__ import annotations

__all__ = ["Panel", "comparison", "heat", "picture_panel", "uncertainty_panel", "uncertainty_scale"]

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

Pixels = npt.NDArray[np.uint8]
# From black over violet and orange to pale yellow; lightness rises evenly, for prints in grey.
_COLOURS = np.array(
    [[0, 0, 4], [40, 11, 84], [101, 21, 110], [159, 42, 99], [212, 72, 66], [245, 125, 21], [250, 193, 39],
     [252, 255, 164]], dtype=np.float64,
)  # fmt: skip
_SMALLEST, _LARGEST = 256, 1024  # sides of a panel, in pixels
_GAP, _LINE, _TEXT, _BAR, _NARROWEST = 12, 20, 14, 12, 160
_PAPER, _INK, _PALE = (255, 255, 255), (30, 30, 30), (120, 120, 120)
_MISSING = (0.32, 0.18)  # the two tones of the checkerboard, in [0, 1]


@dataclass(frozen=True, eq=False)
class Panel:
    """Image with a caption.

    Attributes:
        pixels: Pixels, uint8 (H, W, 3).
        caption: First line below the image.
        remark: Second line.
        top: Value of the brightest colour, for a panel with a scale.
    """

    pixels: Pixels
    caption: str
    remark: str = ""
    top: float | None = None


def heat(values: npt.NDArray[np.float64], top: float) -> Pixels:
    """Return the colours (H, W, 3) of values (H, W) from 0 to ``top``."""
    position = np.clip(values / max(top, 1e-12), 0, 1) * (len(_COLOURS) - 1)
    left = np.minimum(position.astype(int), len(_COLOURS) - 2)
    part = (position - left)[..., None]
    mixed: Pixels = np.rint((1 - part) * _COLOURS[left] + part * _COLOURS[left + 1]).astype(np.uint8)
    return mixed


def uncertainty_scale(std: Tensor) -> tuple[npt.NDArray[np.float64], float]:
    """Return the standard deviation (C, H, W) in grey levels (H, W), and the end of its scale."""
    levels = 127.5 * std.detach().cpu().double().square().mean(0).sqrt().numpy()
    return levels, max(float(np.quantile(levels, 0.995)), 0.1)


def uncertainty_panel(std: Tensor, samples: int) -> Panel:
    """Return the standard deviation of the samples (C, H, W) as a heat map."""
    levels, top = uncertainty_scale(std)
    remark = f"std in grey levels of 255, mean {levels.mean():.1f}"
    return Panel(heat(levels, top), f"uncertainty of {samples} samples", remark, top)


def picture_panel(pixels: Tensor, caption: str, remark: str = "", observed: Tensor | None = None) -> Panel:
    """Return the panel of an image (C, H, W) in [-1, 1]; unobserved pixels show a checkerboard."""
    unit = (pixels.detach().cpu().float().clamp(-1, 1) + 1) / 2
    unit = unit.expand(3, -1, -1) if len(unit) == 1 else unit
    if observed is not None:
        height, width = unit.shape[1:]
        side = max(min(height, width) // 16, 1)
        rows, columns = torch.arange(height)[:, None] // side, torch.arange(width) // side
        tones = torch.where((rows + columns) % 2 == 0, *_MISSING)
        unit = torch.where(observed.detach().cpu().bool().expand_as(unit), unit, tones)
    levels: Pixels = np.rint(255 * unit.permute(1, 2, 0).numpy()).astype(np.uint8)
    return Panel(levels, caption, remark)


def comparison(panels: Sequence[Panel]) -> bytes:
    """Return a PNG of panels side by side at one height, each above its caption."""
    shown = [_scaled(panel.pixels, _common_height(panels)) for panel in panels]
    columns = [max(image.width, _NARROWEST) for image in shown]
    scaled = any(panel.top is not None for panel in panels)
    below = _GAP // 2 + 2 * _LINE + (_BAR + _LINE + _GAP // 2 if scaled else 0)
    size = (sum(columns) + _GAP * (len(columns) + 1), shown[0].height + _GAP + below + _GAP // 2)
    paper = Image.new("RGB", size, _PAPER)
    draw, x = ImageDraw.Draw(paper), _GAP
    for panel, image, width in zip(panels, shown, columns, strict=True):
        paper.paste(image, (x, _GAP))
        y = _GAP + image.height + _GAP // 2
        for text, ink in ((panel.caption, _INK), (panel.remark, _PALE)):
            draw.text((x, y), text, fill=ink, font=_fitting(draw, text, width))
            y += _LINE
        if panel.top is not None:
            _scale_bar(paper, draw, x, y + _GAP // 2, width, panel.top)
        x += width + _GAP
    file = io.BytesIO()
    paper.save(file, "PNG")
    return file.getvalue()


def _common_height(panels: Sequence[Panel]) -> int:
    """Return the height of the tallest panel, enlarged by a whole factor or reduced to fit the page."""
    height = int(max(panel.pixels.shape[0] for panel in panels))
    widths = [float(panel.pixels.shape[1] * height / panel.pixels.shape[0]) for panel in panels]
    longest = max(float(height), *widths)
    if longest > _LARGEST:
        return max(round(height * _LARGEST / longest), 1)
    return height * max(min(-(-_SMALLEST // height), int(_LARGEST // longest)), 1)


def _scaled(pixels: Pixels, height: int) -> Image.Image:
    """Scale to this height: without interpolation if the factors are whole, else resampled."""
    rows, columns = pixels.shape[:2]
    image, width = Image.fromarray(pixels), max(round(columns * height / rows), 1)
    whole = height % rows == 0 and width % columns == 0
    return image.resize((width, height), Image.Resampling.NEAREST if whole else Image.Resampling.LANCZOS)


def _fitting(draw: ImageDraw.ImageDraw, text: str, width: int) -> Any:
    """Return a font in which the text fits the width, down to half the usual size."""
    for size in range(_TEXT, _TEXT // 2, -1):
        font = ImageFont.load_default(size)
        if draw.textlength(text, font=font) <= width:
            break
    return font


def _scale_bar(paper: Image.Image, draw: ImageDraw.ImageDraw, x: int, y: int, width: int, top: float) -> None:
    ramp = heat(np.tile(np.linspace(0, top, width), (_BAR, 1)), top)
    paper.paste(Image.fromarray(ramp), (x, y))
    font = ImageFont.load_default(_TEXT - 2)
    for part, anchor in ((0.0, "la"), (0.5, "ma"), (1.0, "ra")):
        label = f"{part * top:.3g}"
        draw.text((x + part * width, y + _BAR + 2), label, fill=_INK, font=font, anchor=anchor)
