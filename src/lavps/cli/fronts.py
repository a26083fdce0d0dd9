"""``lavps bench fronts``: what a benchmark found becomes what ``lavps restore`` chooses between."""

from __future__ import annotations

__all__ = ["Fronts"]

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..evaluation.benchmark.export import install_fronts
from .failures import fatal


@dataclass(frozen=True, kw_only=True)
class Fronts:
    """Write the settings found best into the model folders, as fronts.json, for lavps restore."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]  # of the benchmark
    output: Path | None = None  # a folder for NAME.json of every model, in place of the model folders

    def run(self) -> None:
        """Write fronts.json of the prior and of every inference model."""
        with fatal("bench fronts"):
            written = install_fronts(self.folder, self.output)
        for file, count in written.items():
            print(f"{count} settings are in {file}")
