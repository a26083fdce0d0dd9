"""Operators that a model was not trained on, and supervised networks on the same operators.

python -m recipes.out_of_distribution.run --data DATA --lpips FILE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import tyro

from lavps.benchmark.figures import matplotlib_figure
from lavps.benchmark.methods import model_name
from lavps.benchmark.report import markdown_table
from lavps.checkpoints.folder import read_config
from lavps.guidance import Amortized, Gradient, Linearized, switch
from lavps.minimizers import WhitenedGradient
from lavps.samplers import Settings, Supervised, Unbound

from ..common.labels import TITLES
from ..common.pages import add_measured, figures, span
from ..common.table import COSTS, Record, Table, compared, costs, find, lpips, mgdm, of, settings

PLAIN = " without shortcut"
SHIFTS = (
    ("random-motion-blur", "random-motion-blur", "random-motion-blur-hard"),
    ("random-rectangle", "random-rectangle", "random-pixels"),
)
SHIFTED = [task for _, *tasks in SHIFTS for task in tasks]


@dataclass(frozen=True)
class Config(Table):
    """Models of a family of operators, on operators of this family and of another one."""

    count: int = 32
    steps: tuple[int, ...] = (25, 50)
    """Numbers of diffusion steps K."""
    runs: Path = Path("runs")
    """Folder of the runs of recipes.zoo.run; PRIOR-FAMILY-supervised and PRIOR-FAMILY-plain are compared if present."""

    study: ClassVar[str] = "out_of_distribution"

    def measure(self) -> list[Record]:
        """Run the methods of every family on both of its tasks, and record acceptance rates by time."""
        records: list[Record] = []
        acceptance = []
        for trained, *tasks in SHIFTS:
            for task in tasks:
                found = self.measured(task, self.methods(trained))
                models = {"": self.model(trained), PLAIN: self.trained(trained, "plain")}
                acceptance += [self.acceptance(task, name, model) for name, model in models.items() if model]
                self.draw_images(task, [r for r in map(with_model, found) if self.shown(r["name"])])
                records += found
        return records + acceptance

    def shown(self, name: str) -> bool:
        """Return whether the images of a method are shown."""
        k = self.steps[-1]
        names = (f"MGDM (whitened gradient), K={k}, G=1", f"LAVPS, K={k}, G=1, whitened")
        return name in (*names, f"LAVPS, K={k}, G=0, linearized for t ≤ 0.5") or name.startswith("Supervised")

    def fields(self, records: list[Record]) -> dict[str, str]:
        """Draw acceptance rates by time, write the cards of the models, return the table and the numbers of the prose."""
        found = [with_model(r) for r in records if "method" in r]
        self.draw([r for r in records if "kept" in r])
        head = [
            "measurement",
            "method",
            "LPIPS",
            "PSNR",
            "chi²",
            *COSTS,
            "acceptance rate",
            "ΔLPIPS to MGDM; non-inferior",
        ]
        for trained, *_ in SHIFTS:
            own = [r for r in found if model_name(settings(r)) == self.model(trained)]
            rows = [
                [TITLES[r["task"]], r["name"], lpips(r), f"{r['psnr']:.2f}", f"{r['cost']:.0f}"] for r in own
            ]
            add_measured(
                Path(self.model(trained)),
                f"{self.study}.md",
                ["measurement", "method", "LPIPS", "PSNR", "NFE"],
                rows,
            )
        return {
            "table": markdown_table(head, [self.row(found, record) for record in found]),
            "images": figures(self.study, {task: TITLES[task] for task in SHIFTED}),
            **self.numbers(found),
        }

    def numbers(self, found: Sequence[Record]) -> dict[str, str]:
        """Return the ranges that the prose names."""

        def rates(plain: bool, tasks: Sequence[str] = SHIFTED) -> str:
            kept = [
                100 * r["acceptance"]
                for r in found
                if r["acceptance"] is not None and r["task"] in tasks and (PLAIN in r["name"]) == plain
            ]
            return f"{span(kept)} %"

        def score(group: str) -> str:
            return f"{find(found, masks, group)['lpips']:.3f}"

        plain = [r for r in found if PLAIN in r["name"]]
        training = {name: read_config(self.zoo / f"faces64-{name}").training for _, name, _ in SHIFTS}
        masks, baseline = "random-pixels", f"MGDM (whitened gradient), K={self.steps[-1]}"
        return {
            "kept": rates(False),
            "plain_in": rates(True, ["random-rectangle"]),
            "plain_out": rates(True, [masks]),
            "plain_lpips": span([r["lpips"] for r in plain if r["task"] == "random-rectangle"], 3),
            "mgdm_lpips": span([r["lpips"] for r in of(found, "random-rectangle", "MGDM (whitened gradient)")], 3),
            "plain_nfe": f"{find(plain, masks, f'K={self.steps[-1]}')['cost']:.0f}",
            "mgdm_nfe": f"{find(found, masks, baseline)['cost']:.0f}",
            "supervised_masks": score("Supervised"),
            "mgdm_masks": score(baseline),
            "steps": " and ".join(map(str, self.steps)),
            "seen": span([int(t["steps"]) * int(t["batch_size"]) for t in training.values()]),
        }  # fmt: skip

    def methods(self, trained: str) -> list[Settings]:
        """Return MGDM, LAVPS with the same settings and with fewer gradients for every K, and the supervised network."""
        model, whitened, late = Unbound(self.model(trained)), WhitenedGradient(), Linearized()
        descent, warm, first = Gradient(1, whitened), Amortized(model, 1, whitened), Amortized(model, 0)
        halves = [switch(early, late, at=0.5) for early in (descent, warm, first)]
        guidances = (descent, halves[0], warm, first, *halves[1:])
        methods = [mgdm(k, guidance) for k in self.steps for guidance in guidances]
        methods.append(mgdm(self.steps[-1], Amortized(model, 0, safeguard_every=None)))
        if plain := self.trained(trained, "plain"):
            methods += [mgdm(k, Amortized(Unbound(plain), 1, whitened)) for k in self.steps]
        if supervised := self.trained(trained, "supervised"):
            methods.append(Settings(Supervised(Unbound(supervised), num_steps=50)))
        return methods

    def trained(self, task: str, kind: str) -> str | None:
        """Return the folder of a model that only this study uses, if it was trained."""
        folder = self.runs / f"{self.prior.name}-{task}-{kind}" / "model"
        return str(folder) if folder.exists() else None

    def acceptance(self, task: str, name: str, model: str) -> Record:
        """Return the acceptance rate of the safeguard by time step, on 8 images."""
        benchmark = self.begin(self.study, task)
        given = benchmark.measurements("test")
        method = mgdm(50, Amortized(Unbound(model), 0))
        problem = given.problem(slice(0, 8), self.device, True)
        trace = self.models(benchmark).sample(method, problem, 0, list(given.items[slice(0, 8)])).trace
        about = {"task": task, "name": f"acceptance rate by time{name}"}
        return about | {"times": trace.times.tolist(), "kept": trace.acceptance_by_step.tolist()}

    def draw(self, curves: Sequence[Record]) -> None:
        """Draw the acceptance rate by time step, one panel per model."""
        figure = matplotlib_figure(9.0, 4.0)
        for axis, (_, *tasks) in zip(figure.subplots(1, 2, sharey=True), SHIFTS, strict=True):
            for task, colour in zip(tasks, ("#0072B2", "#D55E00"), strict=True):
                for curve in [curve for curve in curves if curve["task"] == task]:
                    plain = curve["name"].endswith(PLAIN)
                    axis.plot(
                        curve["times"],
                        [100 * share for share in curve["kept"]],
                        "--" if plain else ".-",
                        color=colour,
                        label=f"{TITLES[task]}{f',{PLAIN}' if plain else ''}",
                    )
            axis.set(xlabel="time t of the step", xlim=(1, 0), ylim=(-3, 103))
            axis.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        figure.axes[0].set_ylabel("acceptance rate of the safeguard, %")
        figure.savefig(self.pages / self.study / "acceptance.png", dpi=130)

    def row(self, records: Sequence[Record], record: Record) -> list[str]:
        """Return a line of the table; the reference has the same K, and linearized steps where the method has them."""
        group = "MGDM, linearized" if record["linearized_steps"] else "MGDM (whitened gradient)"
        reference = find(records, record["task"], f"{group}, K={record['method']['num_steps']}")
        rate = "" if record["acceptance"] is None else f"{record['acceptance']:.0%}"
        gap = compared(reference, record) if record["name"].startswith(("LAVPS", "Supervised")) else ""
        quality = [lpips(record), f"{record['psnr']:.2f}", f"{record['chi_square']:.2f}"]
        return [TITLES[record["task"]], record["name"], *quality, *costs(record), rate, gap]


def with_model(record: Record) -> Record:
    """Return a record whose name states that its model has no shortcut, where it has none."""
    if (model_name(settings(record)) or "").endswith("plain/model"):
        return record | {"name": record["name"].replace("LAVPS", f"LAVPS{PLAIN}")}
    return record


if __name__ == "__main__":
    tyro.cli(Config).run()
