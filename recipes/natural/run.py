"""Super-resolution of natural images, with a prior and an inference model trained on such images.

python -m recipes.natural.run --data DATA --lpips FILE
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tyro

from lavps.checkpoints.folder import read_config
from lavps.guidance import Amortized, Gradient, Linearized, switch
from lavps.minimizers import WhitenedGradient
from lavps.samplers import Settings, Unbound

from ..common.one_task import OneTask
from ..common.study import Scale
from ..common.table import Record, find, mgdm


@dataclass(frozen=True)
class Config(OneTask):
    """Super-resolution of natural images."""

    scale: Scale = "natural"
    tasks: tuple[str, ...] = ("sr4",)
    study: ClassVar[str] = "natural"

    def methods(self, model: str) -> list[Settings]:
        """Return MGDM with gradients, MGDM with linearized steps, LAVPS."""
        whitened, late = Gradient(1, WhitenedGradient()), Linearized()
        lavps = switch(Amortized(Unbound(model), 0, safeguard_every=4), late, at=0.5)
        return [
            mgdm(100, switch(Gradient(1), Gradient(0), at=0.2)),
            mgdm(25, whitened),
            mgdm(50, whitened),
            mgdm(50, switch(Linearized(data_variance=0.01), late, at=0.5)),
            mgdm(25, lavps),
            mgdm(50, lavps),
        ]

    def numbers(self, records: list[Record]) -> dict[str, str]:
        """Return the results that the prose names, and the training images of the prior."""
        training = read_config(self.prior).training
        return {
            "lavps": self.shown(records, "LAVPS, K=50"),
            "linearized": self.shown(records, "MGDM (linearized)"),
            "whitened": self.shown(records, "MGDM (whitened gradient), K=50"),
            "adam": self.shown(records, "MGDM (Adam)"),
            "chi": f"{find(records, 'sr4', 'MGDM (Adam)')['chi_square']:.2f}",
            "seen": f"{int(training['steps']) * int(training['batch_size']):,}",
        }


if __name__ == "__main__":
    tyro.cli(Config).run()
