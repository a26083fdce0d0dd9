"""Models of a family of operators where they were trained and where they were not: tables, acceptance, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from image_table import Table, compared, error, figures, find
from lavps.evaluation.benchmark import Method
from lavps.evaluation.benchmark.figures import matplotlib_figure
from lavps.evaluation.benchmark.report import markdown_table
from zoo import add_measured

STUDY = "out_of_distribution"
PLAIN = " without shortcut"
Curve = tuple[list[float], list[float]]
SHIFTS = (
    ("random-motion-blur", "random-motion-blur", "random-motion-blur-hard"),
    ("random-rectangle", "random-rectangle", "random-pixels"),
)
TITLES = {
    "random-motion-blur": "motion blur as trained",
    "random-motion-blur-hard": "stronger motion blur",
    "random-rectangle": "rectangles as trained",
    "random-pixels": "80 to 85 % of the pixels missing",
}


@dataclass(frozen=True)
class OutOfDistribution(Table):
    """Models of a family of operators where they were trained and where they were not."""

    count: int = 32
    steps: tuple[int, ...] = (25, 50)
    """Budgets: K."""
    runs: Path = Path("runs")
    """Folder of the trainings of recipes/zoo.py: PRIOR-FAMILY-supervised and PRIOR-FAMILY-plain are compared where they are there."""

    def run(self) -> None:
        """Write out_of_distribution.md."""
        records: list[dict[str, Any]] = []
        acceptance: dict[str, dict[str, Curve]] = {}
        for trained, *tasks in SHIFTS:
            for task in tasks:
                records += self.measured(STUDY, task, self.methods(trained))
                models = {"": self.model(trained), PLAIN: self.trained(trained, "plain")}
                acceptance[task] = {
                    name: self.acceptance(task, model) for name, model in models.items() if model
                }
                self.pictures(STUDY, task, records, self.shown)
        self.draw(acceptance)
        head = [
            "measurement",
            "method",
            "LPIPS",
            "PSNR",
            "chi²",
            "cost",
            "kept",
            "minus MGDM's like; within .003",
        ]
        rows = [self.row(records, record) for record in records]
        kept = [
            {"task": task, "name": f"kept by time{name}", "times": times, "kept": shares}
            for task, curves in acceptance.items()
            for name, (times, shares) in curves.items()
        ]
        for trained, *_ in SHIFTS:
            told = [r for r in records if r["method"].get("model") == self.model(trained)]
            numbers = [
                [
                    TITLES[r["task"]],
                    r["name"],
                    f"{r['lpips']:.4f} ± {error(r):.4f}",
                    f"{r['psnr']:.2f}",
                    f"{r['cost']:.0f}",
                ]
                for r in told
            ]
            add_measured(
                Path(self.model(trained)),
                f"{STUDY}.md",
                ["measurement", "settings", "LPIPS", "PSNR", "cost"],
                numbers,
            )
        self.publish(STUDY, records + kept, table=markdown_table(head, rows), pictures=figures(STUDY, TITLES))

    @property
    def shown(self) -> list[str]:
        """Methods whose images are shown."""
        k = self.steps[-1]
        ends = (f"MGDM, K={k}", f"LAVPS, K={k}, G=1", f"LAVPS, K={k}, G=0, then likelihood steps")
        return [*ends, "supervised"]

    def methods(self, trained: str) -> dict[str, Method]:
        """MGDM, and LAVPS with the same settings and with fewer gradients, at every budget; the supervised network."""
        methods: dict[str, Method] = {}
        model = self.model(trained)
        for k in self.steps:
            descent: dict[str, Any] = {"num_steps": k, "minimizer": "whitened"}
            step: dict[str, Any] = {"r_step": 0.5}
            halves: dict[str, Any] = descent | step | {"gradient_steps_end": 0, "r_switch": 0.5}
            none: dict[str, Any] = {"num_steps": k, "gradient_steps_start": 0, "model": model}
            methods |= {
                f"MGDM, K={k}": Method("mgdm", **descent),
                f"MGDM, K={k}, then likelihood steps": Method(
                    "lavps", safeguard=False, r_model=1.0, model="likelihood-step", **halves
                ),
                f"LAVPS, K={k}, G=1": Method("lavps", model=model, **descent),
                f"LAVPS, K={k}, G=0": Method("lavps", **none),
                f"LAVPS, K={k}, G=1, then likelihood steps": Method(
                    "lavps", r_model=0.0, model=model, **halves
                ),
                f"LAVPS, K={k}, G=0, then likelihood steps": Method("lavps", **none | step),
            }
        methods[f"LAVPS, K={self.steps[-1]}, G=0, no safeguard"] = Method(
            "lavps", num_steps=self.steps[-1], gradient_steps_start=0, safeguard=False, model=model
        )
        if plain := self.trained(trained, "plain"):
            methods |= {
                f"LAVPS{PLAIN}, K={k}, G=1": Method("lavps", model=plain, num_steps=k, minimizer="whitened")
                for k in self.steps
            }
        if supervised := self.trained(trained, "supervised"):
            methods["supervised"] = Method("supervised", num_steps=50, model=supervised)
        return methods

    def trained(self, task: str, kind: str) -> str | None:
        """The folder of a model that only this study asks for, if it was trained."""
        folder = self.runs / f"{self.prior.name}-{task}-{kind}" / "model"
        return str(folder) if folder.exists() else None

    def acceptance(self, task: str, model: str) -> Curve:
        """Times of the steps, and the share of warm starts that the safeguard keeps there; 8 images."""
        benchmark = self.begin(STUDY, task)
        given = benchmark.measurements("test")
        method = Method("lavps", num_steps=50, gradient_steps_start=0, model=model)
        problem = given.problem(slice(0, 8), self.device, True)
        trace = self.models(benchmark).sample(method, problem, 0, list(given.items[slice(0, 8)])).trace
        return trace.times.tolist(), trace.acceptance_by_step.tolist()

    def draw(self, acceptance: dict[str, dict[str, Curve]]) -> None:
        """Acceptance by time step, a panel a model."""
        figure = matplotlib_figure(9.0, 4.0)
        for axis, (_, *tasks) in zip(figure.subplots(1, 2, sharey=True), SHIFTS, strict=True):
            for task, colour in zip(tasks, ("#0072B2", "#D55E00"), strict=True):
                for name, (times, kept) in acceptance[task].items():
                    axis.plot(
                        times,
                        [100 * share for share in kept],
                        "--" if name else ".-",
                        color=colour,
                        label=f"{TITLES[task]}{name and ','}{name}",
                    )
            axis.set(xlabel="time t of the step", xlim=(1, 0), ylim=(-3, 103))
            axis.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        figure.axes[0].set_ylabel("warm starts kept, %")
        figure.savefig(self.pages / STUDY / "acceptance.png", dpi=130)

    def row(self, records: Sequence[dict[str, Any]], record: dict[str, Any]) -> list[str]:
        """A line of the table; LAVPS is compared with MGDM of the same K that takes likelihood steps where it does."""
        steps = ", then likelihood steps" if "likelihood steps" in record["name"] else ""
        reference = find(records, record["task"], f"MGDM, K={record['method']['num_steps']}{steps}")
        kept = "" if record["acceptance"] is None else f"{record['acceptance']:.0%}"
        return [
            TITLES[record["task"]],
            record["name"],
            f"{record['lpips']:.4f} ± {error(record):.4f}",
            f"{record['psnr']:.2f}",
            f"{record['chi_square']:.2f}",
            f"{record['cost']:.0f}",
            kept,
            "" if record["name"].startswith("MGDM") else compared(reference, record),
        ]
