"""Gradient steps in the window: G_end = 0, 1, 3, 10, for MGDM and LAVPS.

    python -m recipes.ablation.run --data DATA --lpips FILE

The window is the paper's (the last 20 % of the steps), with K = 100 and Adam.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import tyro

from lavps.benchmark.report import markdown_table
from lavps.guidance import Amortized, Gradient, Guidance, switch
from lavps.minimizers import Adam
from lavps.samplers import Settings, Unbound

from ..common.labels import TITLES
from ..common.table import Record, Table, cell, compared, mgdm, of, settings

ENDS = (0, 1, 3, 10)
NAMES = ("MGDM (Adam)", "LAVPS")


@dataclass(frozen=True)
class Config(Table):
    """G_end = 0, 1, 3, 10 in the window: MGDM against LAVPS."""

    count: int = 24
    ends: tuple[int, ...] = ENDS
    """Values of G_end."""

    study: ClassVar[str] = "ablation"

    def methods(self, task: str) -> list[Settings]:
        """Return MGDM and LAVPS with every G_end."""
        model = Unbound(self.window_model(task))
        late: list[Guidance] = [kind for end in self.ends for kind in (Gradient(end), Amortized(model, end))]
        early = Gradient(1)
        return [mgdm(100, early if end == early else switch(early, end, at=0.2)) for end in late]

    def measure(self) -> list[Record]:
        """Run MGDM and LAVPS with every G_end."""
        return [record for task in self.tasks for record in self.measured(task, self.methods(task))]

    def fields(self, records: list[Record]) -> dict[str, str]:
        """Return the table, and the comparison of LAVPS without gradients with MGDM with three."""

        def one(task: str, name: str, end: int) -> Record:
            return next(r for r in of(records, task, name) if last_steps(r) == end)

        rows = [
            [TITLES[task], name, *[cell(one(task, name, end)) for end in self.ends]]
            for task, name in product(self.tasks, NAMES)
        ]
        claims = [
            [TITLES[task], compared(one(task, "MGDM (Adam)", 3), one(task, "LAVPS", 0))]
            for task in self.tasks
            if {0, 3} <= set(self.ends)
        ]
        return {
            "options": "" if self.ends == ENDS else f" --ends {' '.join(map(str, self.ends))}",
            "table": markdown_table(["task", "method", *[f"G_end = {end}" for end in self.ends]], rows),
            "claims": markdown_table(["task", "ΔLPIPS; non-inferior"], claims),
            "rate": f"{Adam().learning_rate:g}",
        }


def last_steps(record: Record) -> int:
    """Return the number of gradient steps in the last diffusion step."""
    last = settings(record).guidance_by_step[-1]
    assert isinstance(last, Gradient | Amortized)
    return last.steps


if __name__ == "__main__":
    tyro.cli(Config).run()
