"""A nonlinear operator: faces compressed by JPEG at quality 5.

python -m recipes.nonlinear.run --data DATA --lpips FILE
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tyro

from lavps.checkpoints.folder import read_config
from lavps.guidance import Amortized, Gradient, Linearized, switch
from lavps.minimizers import Adam, WhitenedGradient
from lavps.samplers import Settings, Unbound

from ..common.one_task import OneTask
from ..common.table import Record, find, mgdm

RATES = (0.01, 0.03, 0.1)


@dataclass(frozen=True)
class Config(OneTask):
    """JPEG at quality 5, an operator that a few conjugate-gradient steps cannot invert."""

    count: int = 32
    tasks: tuple[str, ...] = ("jpeg",)
    study: ClassVar[str] = "nonlinear"

    def methods(self, model: str) -> list[Settings]:
        """Return MGDM with gradients (Adam at its best learning rate), MGDM with linearized steps, LAVPS."""
        rates = {rate: mgdm(100, Gradient(1, Adam(rate))) for rate in RATES}
        network, whitened, late = Unbound(model), WhitenedGradient(), Linearized()
        first, refined = (Amortized(network, steps, whitened, 4) for steps in (0, 1))
        return [
            rates[self.best(self.tasks[0], rates)],
            mgdm(25, Gradient(1, whitened)),
            mgdm(50, Gradient(1, whitened)),
            mgdm(50, late),
            mgdm(50, switch(Linearized(data_variance=0.01), late, at=0.5)),
            mgdm(25, first),
            mgdm(25, refined),
            mgdm(50, first),
            mgdm(50, switch(first, late, at=0.5)),
            mgdm(50, switch(first, refined, at=0.1)),
        ]

    def numbers(self, records: list[Record]) -> dict[str, str]:
        """Return the results that the prose names."""
        plain = find(records, "jpeg", "LAVPS, K=25, G=0")
        training = read_config(self.model("jpeg")).training
        return {
            "rates": ", ".join(f"{rate:g}" for rate in RATES),
            "lavps": self.shown(records, "LAVPS, K=25, G=0"),
            "more": self.shown(records, "LAVPS, K=50"),
            "adam": self.shown(records, "MGDM (Adam)"),
            "whitened": self.shown(records, "MGDM (whitened gradient), K=25"),
            "linearized": self.shown(records, "MGDM (linearized)"),
            "share": f"{(plain['cost'] - plain['forwards'] - 2 * plain['backwards']) / plain['model_forwards']:.1f}",
            "seen": f"{int(training['steps']) * int(training['batch_size']):,}",
        }


if __name__ == "__main__":
    tyro.cli(Config).run()
