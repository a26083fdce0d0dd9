"""Preview images of a training run."""

from __future__ import annotations

__all__ = ["save_grid"]

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def save_grid(images: Tensor, file: Path) -> None:
    """Write images (N, C, H, W) in [-1, 1], with C of 1 or 3, as one PNG."""
    count, channels, height, width = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    pixels = images.detach().float().cpu().clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8).numpy()
    sheet = np.zeros((rows * height, columns * width, channels), np.uint8)
    for number, image in enumerate(pixels):
        top, left = number // columns * height, number % columns * width
        sheet[top : top + height, left : left + width] = image.transpose(1, 2, 0)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(sheet[..., 0] if channels == 1 else sheet).save(file)
