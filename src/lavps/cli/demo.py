"""``lavps demo``: a page to try the methods on."""

from __future__ import annotations

__all__ = ["Demo"]

from dataclasses import dataclass
from pathlib import Path

import torch

from ..restoration.demo import Demonstration
from ..restoration.demo_page import build_page
from .failures import fatal
from .listing import image_files


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Open a page on which pictures are degraded and restored: upload, paint, compare MGDM and LAVPS."""

    prior: str  # model folder or Hub id of the prior
    inference_model: str | None = None  # of an inference model of this prior; without one LAVPS is untrained
    examples: Path | None = None  # folder of pictures to choose from
    port: int = 7860  # to listen at, on 127.0.0.1
    device: str = "auto"  # cpu, cuda, mps; auto takes cuda where there is one

    def run(self) -> None:
        """Serve the page until interrupted."""
        with fatal("demo"):
            device = self.device
            if device == "auto":
                device = "cuda" if torch.cuda.is_available() else "cpu"
            examples = [] if self.examples is None else image_files([self.examples], Path("nowhere"))[:12]
            page = build_page(Demonstration(self.prior, self.inference_model, device), examples)
            allowed = [] if self.examples is None else [str(self.examples.resolve())]
            page.launch(server_name="127.0.0.1", server_port=self.port, allowed_paths=allowed, share=False)
