"""Preview of a run that takes long: the current estimate, in a file that is removed at the end."""

from __future__ import annotations

__all__ = ["INTERVAL", "Preview", "preview_name"]

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from ..io.atomic import write_atomically
from ..io.encode import encode_image
from ..io.image import ImageFile
from ..samplers.base import Step

INTERVAL = 30.0  # seconds before the first preview, and between two


def preview_name(stem: str) -> str:
    """Return the name of the preview of a file of this stem."""
    return f"{stem}-preview.png"


class Preview:
    """Callback of a sampler that writes the estimate of the first sample, atomically.

    Args:
        file: Path of the preview.
        like: File whose number of channels the preview has.
        images: Function from rows of the sampler to images (B, C, H, W).
        interval: Seconds before the first preview, and between two.
    """

    def __init__(
        self, file: Path, like: ImageFile, images: Callable[[Tensor], Tensor], interval: float | None = None
    ) -> None:
        self.file, self.images = file, images
        self.like = replace(like, alpha=None, palette=None, mode="L", dtype="uint8")
        self.interval = INTERVAL if interval is None else interval
        self._last = time.monotonic()

    def __call__(self, step: Step) -> None:
        """Write the preview if the interval has passed; a full disk does not stop the run."""
        if time.monotonic() - self._last < self.interval:
            return
        with suppress(OSError):
            pixels = self.images(step.x_0[:1])[0].detach().float().cpu()
            write_atomically(self.file, encode_image(pixels, self.like, "PNG"))
        self._last = time.monotonic()

    def remove(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)
