"""``lavps demo``: a page in the browser that compares the methods."""

from __future__ import annotations

__all__ = ["Demo"]

from dataclasses import dataclass
from pathlib import Path

from ..apps.demo.demonstration import Demonstration
from ..apps.demo.page import build_page
from ..devices import resolve_device
from .failures import fatal
from .listing import image_files
from .options import Device, Folder, Model, N, PriorPath


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Open a page on which images are degraded and restored: upload, paint, compare MGDM and LAVPS."""

    prior: PriorPath[str]  # Model folder or Hub id of the prior.
    # Inference model that was trained for this prior; without one, LAVPS is replaced by linearized guidance.
    inference_model: Model[str | None] = None
    examples: Folder[Path | None] = None  # Folder of images to choose from.
    port: N[int] = 7860  # Port of the page, on 127.0.0.1.
    device: Device[str] = "auto"  # cpu, cuda, mps, xpu, or auto: the first available of cuda, mps, xpu, cpu.

    def run(self) -> None:
        """Serve the page until interrupted."""
        with fatal("demo"):
            device = resolve_device(self.device)
            examples = [] if self.examples is None else image_files([self.examples], Path("nowhere"))[:12]
            page = build_page(Demonstration(self.prior, self.inference_model, device), examples)
            allowed = [] if self.examples is None else [str(self.examples.resolve())]
            page.launch(server_name="127.0.0.1", server_port=self.port, allowed_paths=allowed, share=False)
