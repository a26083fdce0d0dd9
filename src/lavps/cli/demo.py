"""``lavps demo``: a page in the browser on which images are restored."""

from __future__ import annotations

__all__ = ["Demo"]

from dataclasses import dataclass
from pathlib import Path

from ..apps.demo.demonstration import Demonstration
from ..apps.demo.page import build_page, launch
from ..devices import resolve_device
from .failures import fatal
from .listing import image_files
from .options import Device, Folder, Model, N, PriorPath


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Open a page on which a degraded image is uploaded and restored, or an example degraded first."""

    prior: PriorPath[str]  # Model folder or Hub id of the prior.
    # Inference model or few-step model that was trained for this prior.
    inference_model: Model[str | None] = None
    # Folder of images to choose from; default the samples that the prior's folder shows.
    examples: Folder[Path | None] = None
    port: N[int] = 7860  # Port of the page, on 127.0.0.1.
    device: Device[str] = "auto"  # cpu, cuda, mps, xpu, or auto: the first available of cuda, mps, xpu, cpu.

    def run(self) -> None:
        """Serve the page until interrupted."""
        with fatal("demo"):
            device = resolve_device(self.device)
            examples = [] if self.examples is None else image_files([self.examples], Path("nowhere"))[:12]
            launch(build_page(Demonstration(self.prior, self.inference_model, device), examples), self.port)
