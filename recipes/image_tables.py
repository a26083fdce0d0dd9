"""The paper's other experiments on real images, and some that it leaves out; a page each, one command each.

    python recipes/image_tables.py ablation --data DATA --lpips FILE               # G_end = 0, 1, 3, 10, with and without a model
    python recipes/image_tables.py windows --data DATA --lpips FILE                # a model asked in the last 10 % ... 100 % of the steps
    python recipes/image_tables.py rivals --data DATA --lpips FILE                 # DPS, MMPS, MGPS against MGDM and LAVPS
    python recipes/image_tables.py out-of-distribution --data DATA --lpips FILE    # operators the model never saw; a supervised network there
    python recipes/image_tables.py natural --data DATA --lpips FILE                # natural images instead of faces
    python recipes/image_tables.py nonlinear --data DATA --lpips FILE              # JPEG, where no likelihood step is exact
    python recipes/image_tables.py calibration --data DATA --lpips FILE            # do 80 % intervals cover 80 %?

``--scale paper --device cuda`` runs them with the 256 x 256 models of the paper. Stopped, the same command goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated

import tyro

from calibration_table import Calibration
from image_study import TITLES
from image_table import Table, cell, compared, error, figures, find
from lavps.evaluation.benchmark import Method
from lavps.evaluation.benchmark.figures import matplotlib_figure
from lavps.evaluation.benchmark.report import markdown_table
from one_task_table import Natural, Nonlinear
from shift_table import OutOfDistribution

ENDS = (0, 1, 3, 10)


@dataclass(frozen=True)
class Ablation(Table):
    """G_end = 0, 1, 3, 10 in the paper's window (the last 20 %), K = 100, Adam: MGDM against LAVPS."""

    count: int = 24
    ends: tuple[int, ...] = ENDS
    """Values of G_end."""

    def run(self) -> None:
        """Write ablation.md."""
        ends = self.ends
        records = []
        for task in self.tasks:
            methods = {}
            for end, model in product(ends, (None, self.window_model(task))):
                name = f"{'MGDM' if model is None else 'LAVPS'} {end}"
                methods[name] = Method(
                    "mgdm" if model is None else "lavps", gradient_steps_end=end, r_switch=0.8, model=model
                )
            records += self.measured("ablation", task, methods)
        rows = [
            [task, method, *[cell(find(records, task, f"{method} {end}")) for end in ends]]
            for task, method in product(self.tasks, ("MGDM", "LAVPS"))
        ]
        claims = [
            [task, compared(find(records, task, "MGDM 3"), find(records, task, "LAVPS 0"))]
            for task in self.tasks
        ]
        self.publish(
            "ablation", records, options="" if ends == ENDS else f" --ends {' '.join(map(str, ends))}", table=markdown_table(["task", "method", *[f"G_end = {end}" for end in ends]], rows),
            claims=markdown_table(["task", "LAVPS at G_end = 0 minus MGDM at G_end = 3, in LPIPS; non-inferior"], claims),
        )  # fmt: skip


@dataclass(frozen=True)
class Windows(Table):
    """The model asked in the last 10 % to 100 % of the steps, no gradient there, one whitened gradient before."""

    count: int = 16
    num_steps: int = 50
    """K."""

    def run(self) -> None:
        """Write windows.md."""
        shares = [0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0]
        records = []
        for task in self.tasks:
            methods = {}
            for share in shares:
                window = {"gradient_steps_start": 1, "gradient_steps_end": 0, "r_switch": round(1 - share, 2)}
                model = self.model(task) if share else None
                if not share:
                    window = {"gradient_steps_start": 1}
                methods[f"{share:.0%}"] = Method(
                    "lavps" if share else "mgdm",
                    num_steps=self.num_steps,
                    minimizer="whitened",
                    model=model,
                    **window,
                )  # type: ignore[arg-type]
            records += self.measured("windows", task, methods)
        rows = [
            [task, *[cell(find(records, task, f"{share:.0%}")) for share in shares]] for task in self.tasks
        ]
        figure = matplotlib_figure(6.5, 4.0)
        axis = figure.add_subplot()
        for task in self.tasks:
            found = [find(records, task, f"{share:.0%}") for share in shares]
            axis.errorbar(
                [100 * s for s in shares],
                [r["lpips"] for r in found],
                [error(r) for r in found],
                marker="o",
                capsize=2,
                label=TITLES.get(task, task),
            )
        axis.set(xlabel="window of the model, % of the steps", ylabel="LPIPS")
        figure.legend(loc="outside upper center", ncols=len(self.tasks), frameon=False)
        figure.savefig(self.pages / "windows.png", dpi=130)
        self.publish(
            "windows",
            records,
            table=markdown_table(["task", *[f"{share:.0%}" for share in shares]], rows),
            steps=str(self.num_steps),
        )


@dataclass(frozen=True)
class Rivals(Table):
    """DPS, MMPS and MGPS against MGDM and LAVPS."""

    count: int = 12

    def run(self) -> None:
        """Write rivals.md."""
        records = []
        for task in self.tasks:
            size = self.step_size(task)
            then = {"gradient_steps_start": 0, "probe_every": 4, "r_step": 0.5}
            last = then | {"gradient_steps_end": 1, "r_switch": 0.9, "r_model": 0.0, "minimizer": "whitened"}
            methods = {
                "DPS, K=100": Method("dps", num_steps=100, step_size=size),
                "DPS, K=300": Method("dps", num_steps=300, step_size=size),
                "MMPS, K=50": Method("mmps", num_steps=50, solver_steps=1),
                "MMPS, K=100": Method("mmps", num_steps=100, solver_steps=3),
                "MGPS, K=50": Method("mgps", num_steps=50, minimizer="whitened"),
                "MGDM, Adam, K=100": Method("mgdm"),
                "MGDM, whitened, K=50": Method("mgdm", num_steps=50, minimizer="whitened"),
                "likelihood steps, K=50": Method("lavps", num_steps=50, model="gentle-step", **then),  # type: ignore[arg-type]
                "LAVPS, K=50": Method("lavps", num_steps=50, model=self.model(task), **then),  # type: ignore[arg-type]
                "LAVPS, K=50, gradients in the last 10 %": Method(
                    "lavps", num_steps=50, model=self.model(task), **last
                ),  # type: ignore[arg-type]
            }
            records += self.measured("rivals", task, methods)
            self.pictures("rivals", task, records, [name for name in methods if name != "DPS, K=100"])
        head = [
            "task",
            "method",
            "LPIPS",
            "PSNR",
            "SSIM",
            "chi²",
            "cost",
            "forwards",
            "backwards",
            "model passes",
        ]
        rows = [
            [r["task"], r["name"], f"{r['lpips']:.4f} ± {error(r):.4f}", f"{r['psnr']:.2f}", f"{r['ssim']:.3f}", f"{r['chi_square']:.2f}",
             f"{r['cost']:.0f}", f"{r['forwards']:.0f}", f"{r['backwards']:.0f}", f"{r['model_forwards']:.0f}"]
            for r in records
        ]  # fmt: skip
        sizes = ", ".join(
            f"{find(records, task, 'DPS, K=100')['method']['step_size']:g} ({TITLES[task]})"
            for task in self.tasks
        )
        self.publish(
            "rivals",
            records,
            table=markdown_table(head, rows),
            pictures=figures("rivals", {task: TITLES[task] for task in self.tasks}),
            sizes=sizes,
        )

    def step_size(self, task: str) -> float:
        """DPS's step size, which decides over it: the best of three on 8 validation images."""
        runner = self.runner(self.begin("rivals", task), "validation")
        scores = {}
        for size in (0.3, 1.0, 3.0):
            rows = runner.run(Method("dps", num_steps=100, step_size=size), 8)
            scores[size] = sum(row["lpips"] for row in rows)
        return min(scores, key=lambda size: scores[size])


Command = (
    Annotated[Ablation, tyro.conf.subcommand("ablation")]
    | Annotated[Windows, tyro.conf.subcommand("windows")]
    | Annotated[Rivals, tyro.conf.subcommand("rivals")]
    | Annotated[OutOfDistribution, tyro.conf.subcommand("out-of-distribution")]
    | Annotated[Natural, tyro.conf.subcommand("natural")]
    | Annotated[Nonlinear, tyro.conf.subcommand("nonlinear")]
    | Annotated[Calibration, tyro.conf.subcommand("calibration")]
)

if __name__ == "__main__":
    tyro.cli(Command).run()  # type: ignore[arg-type]
