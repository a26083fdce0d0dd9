"""Size of the window in which LAVPS evaluates its inference model: the last 10 % to 100 % of the steps.

    python -m recipes.windows.run --data DATA --lpips FILE

No gradient step is taken inside the window, one whitened gradient step before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tyro

from lavps.benchmark.figures import matplotlib_figure
from lavps.benchmark.report import markdown_table
from lavps.guidance import Amortized, Gradient, switch
from lavps.minimizers import WhitenedGradient
from lavps.samplers import Settings, Unbound

from ..common.labels import TITLES
from ..common.pages import span
from ..common.table import Record, Table, cell, error, mgdm

SHARES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)


@dataclass(frozen=True)
class Config(Table):
    """LAVPS by the size of its window."""

    count: int = 16
    num_steps: int = 50
    """Number of diffusion steps K."""

    study: ClassVar[str] = "windows"

    def methods(self, task: str) -> list[Settings]:
        """Return MGDM, then LAVPS with every window."""
        early = Gradient(1, WhitenedGradient())
        late = Amortized(Unbound(self.model(task)), 0)
        windows = [switch(early, late, at=share) for share in SHARES[1:-1]]
        return [mgdm(self.num_steps, guidance) for guidance in (early, *windows, late)]

    def measure(self) -> list[Record]:
        """Run every window."""
        return [record for task in self.tasks for record in self.measured(task, self.methods(task))]

    def fields(self, records: list[Record]) -> dict[str, str]:
        """Draw LPIPS by window, and return the table."""
        by_task = {task: [r for r in records if r["task"] == task] for task in self.tasks}
        figure = matplotlib_figure(6.5, 4.0)
        axis = figure.add_subplot()
        for task, found in by_task.items():
            axis.errorbar(
                [100 * share for share in SHARES],
                [r["lpips"] for r in found],
                [error(r) for r in found],
                marker="o",
                capsize=2,
                label=TITLES[task],
            )
        axis.set(xlabel="window of the inference model, % of the steps", ylabel="LPIPS")
        figure.legend(loc="outside upper center", ncols=len(self.tasks), frameon=False)
        figure.savefig(self.pages / "windows.png", dpi=130)
        rows = [[TITLES[task], *map(cell, found)] for task, found in by_task.items()]
        return {
            "table": markdown_table(["task", *[f"{share:.0%}" for share in SHARES]], rows),
            "steps": str(records[0]["method"]["num_steps"]),
            "first": span([found[0]["cost"] for found in by_task.values()]),
            "last": span([found[-1]["cost"] for found in by_task.values()]),
            "errors": span([error(r) for r in records], 4),
        }


if __name__ == "__main__":
    tyro.cli(Config).run()
