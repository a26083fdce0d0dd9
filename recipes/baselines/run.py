"""DPS, MMPS and MGPS against MGDM and LAVPS.

python -m recipes.baselines.run --data DATA --lpips FILE
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tyro

from lavps.benchmark.report import markdown_table
from lavps.guidance import Amortized, Gradient, Linearized, switch
from lavps.minimizers import WhitenedGradient
from lavps.samplers import DPS, MGPS, MMPS, UNBOUND, Settings, Unbound

from ..common.labels import TITLES
from ..common.pages import figures, span
from ..common.table import COSTS, Record, Table, costs, error, find, lpips, mgdm, of


@dataclass(frozen=True)
class Config(Table):
    """DPS, MMPS and MGPS against MGDM and LAVPS."""

    count: int = 12

    study: ClassVar[str] = "baselines"

    def methods(self, task: str) -> list[Settings]:
        """Return the baselines, then MGDM and LAVPS; the step size of DPS is chosen on validation images."""
        sizes = {size: Settings(DPS(UNBOUND, num_steps=100, step_size=size)) for size in (0.3, 1.0, 3.0)}
        chosen, whitened, late = sizes[self.best(task, sizes)], WhitenedGradient(), Linearized()
        early = Amortized(Unbound(self.model(task)), 0, safeguard_every=4)
        last = switch(late, Amortized(late, 1, whitened, safeguard_every=None), at=0.1)
        return [
            chosen,
            chosen.with_num_steps(300),
            Settings(MMPS(UNBOUND, num_steps=50, solver_steps=1)),
            Settings(MMPS(UNBOUND, num_steps=100, solver_steps=3)),
            Settings(MGPS(UNBOUND, num_steps=50, guidance=Gradient(1, whitened))),
            mgdm(100, Gradient(1)),
            mgdm(50, Gradient(1, whitened)),
            mgdm(50, switch(Amortized(Linearized(data_variance=0.01), 0, safeguard_every=4), late, at=0.5)),
            mgdm(50, switch(early, late, at=0.5)),
            mgdm(50, switch(early, last, at=0.5)),
        ]

    def measure(self) -> list[Record]:
        """Run all methods and draw their images."""
        records = []
        for task in self.tasks:
            found = self.measured(task, self.methods(task))
            self.draw_images(task, found[1:])
            records += found
        return records

    def fields(self, records: list[Record]) -> dict[str, str]:
        """Return the table, and the numbers of the prose."""
        head = ["task", "method", "LPIPS", "PSNR", "SSIM", "chi²", *COSTS]
        rows = [
            [TITLES[r["task"]], r["name"], lpips(r), f"{r['psnr']:.2f}", f"{r['ssim']:.3f}", f"{r['chi_square']:.2f}", *costs(r)]
            for r in records
        ]  # fmt: skip
        sizes = [
            f"{find(records, task, 'DPS')['method']['step_size']:g} ({TITLES[task]})" for task in self.tasks
        ]
        cheap, mmps = (
            [r["cost"] for task in self.tasks for r in of(records, task, group)]
            for group in ("LAVPS or MGDM (linearized)", "MMPS")
        )
        gradients = [r["cost"] for r in records if r["backwards"] > r["forwards"] / 3]
        return {
            "table": markdown_table(head, rows),
            "images": figures(self.study, {task: TITLES[task] for task in self.tasks}),
            "sizes": ", ".join(sizes),
            "errors": span([error(r) for r in records], 3),
            "cheap": span(cheap),
            "gradients": span(gradients),
            "mmps": span(mmps),
        }


if __name__ == "__main__":
    tyro.cli(Config).run()
