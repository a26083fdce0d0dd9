"""Samplers with gradients through the denoiser, and a supervised network, beside samplers without either.

python -m recipes.baselines.run --data DATA --lpips FILE

A supervised network is trained for each task by ``lavps train conditional`` if ``--runs`` does not have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import optuna
import tyro

from lavps.benchmark import Benchmark
from lavps.benchmark.figures import matplotlib_figure
from lavps.benchmark.models import Precision
from lavps.benchmark.report import markdown_table
from lavps.cli import main as command_line
from lavps.samplers import Sampler, Settings, Unbound

from ..common.cells import HEAD, VERDICTS, difference, scores_of, standard_error, verdicts
from ..common.labels import TITLES
from ..common.pages import read, write_json, write_page
from ..common.scored import SCORES, Method, Record, Scored
from ..common.study import SHIFTS, TASKS

TRAINED, SUPERVISED = "few-step model", "supervised network"
# Samplers that are tuned for each task, and their number of denoiser evaluations.
BUDGETS = {"DiffPIR": 25, "Pi-GDM": 25, "DPS": 25, "MMPS": 8, SUPERVISED: 25}
COLOURS = dict(
    zip((*BUDGETS, TRAINED), ("#D55E00", "#E69F00", "#999999", "#009E73", "#0072B2", "#CC79A7"), strict=True)
)
SHIFTED = ("DiffPIR", SUPERVISED, TRAINED)
BATCH, NOISE = 32, 0.05
TRAINING = {
    "noise": NOISE, "network": "recipes/zoo/hdit.json", "times": "logit-normal", "batch-size": BATCH, "learning-rate": 4e-4,
    "warmup-steps": 30, "cooldown-steps": 300, "ema-decay": "0.98 0.995", "compile": "", "weights": "bfloat16",
    "validation-images": 128, "validate-every": 300, "checkpoint-every": 100, "preview-every": 600, "log-every": 20, "cpu": "",
}  # fmt: skip


@dataclass(frozen=True)
class Config(Scored):
    """Samplers with gradients, and supervised networks."""

    precision: Precision = "fp32"
    validation_count: int = 4
    test_count: int = 24
    tasks: tuple[str, ...] = ("sr4", "motion-blur")
    """Tasks, each with a supervised network of its own."""
    runs: Path = Path("runs")
    """Folder of the supervised networks."""
    steps: int = 615
    """Training steps of a supervised network."""

    study: ClassVar[str] = "baselines"

    def run(self) -> None:
        """Measure, or read what was measured, and write the page."""
        found = read(self.pages, self.study, [])
        if not self.page_only:  # records of other tasks stay
            again = {*self.tasks, *(SHIFTS[task] for task in self.tasks)}
            found = [r for r in found if r["task"] not in again] + self.measure()
        write_json(self.pages, self.study, found)
        self.draw(found)
        write_page(self.pages, self.study, **self.fields(found))

    def draw(self, records: list[Record]) -> None:
        """Draw CRPS against LPIPS, one column per task."""
        tasks = [task for task in TASKS if any(r["task"] == task for r in records)]
        figure = matplotlib_figure(max(3.4 * len(tasks), 5.2) + 0.4, 3.6)
        for axis, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
            for r in (r for r in records if r["task"] == task):
                axis.errorbar(
                    fmean(r["lpips"]), fmean(r["crps"]), standard_error(r["crps"]), standard_error(r["lpips"]),
                    color=COLOURS[r["name"]], marker="o", ms=6, capsize=2, lw=1, linestyle="",
                    label=f"{r['name']}, {r['evaluations']} evaluations",
                )  # fmt: skip
            axis.set(title=TITLES[task], xlabel="LPIPS (lower is better)")
            axis.locator_params(nbins=5)
            axis.spines[["top", "right"]].set_visible(False)
        figure.axes[0].set_ylabel("CRPS (lower is better)")
        handles, names = figure.axes[0].get_legend_handles_labels()
        columns = len(tasks) + 1
        figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
        figure.savefig(self.pages / self.study / "chart.png", dpi=130)

    def measure(self) -> list[Record]:
        """Train the supervised networks that are missing; tune and run all methods."""
        records = []
        for task in self.tasks:
            benchmark = self.begin(self.study, task)
            methods = self.methods(benchmark, task)
            records += self.measured(benchmark, task, methods)
            self.pack(self.study, benchmark, task)
            other = self.begin(self.study, SHIFTS[task])
            records += self.measured(other, SHIFTS[task], [m for m in methods if m[0] in SHIFTED])
            self.pack(self.study, other, SHIFTS[task])
        return records

    def methods(self, benchmark: Benchmark, task: str) -> list[Method]:
        """Return the methods of a task, tuned where they have something to tune."""
        network = self.supervised(task)
        bound: dict[str, Callable[[Settings], Settings]] = {
            SUPERVISED: lambda settings: with_denoiser(settings, network)
        }
        found = [
            (name, count, self.tuned(benchmark, name, count, bound.get(name, lambda settings: settings)))
            for name, count in BUDGETS.items()
        ]
        return found + [(TRAINED, method.num_steps, method) for method in self.few_step()]

    def supervised(self, task: str) -> Path:
        """Return the folder of the supervised network of a task; train it first if there is none."""
        run = self.runs / f"{self.prior.name}-{task}-supervised"
        if not (run / "model").exists():
            options = {
                "data": self.data / f"{self.prior.name}-train",
                "validation": self.data / f"{self.prior.name}-val.tar",
                "output": run,
                "task": task,
                "init-from": self.prior,
                "size": 64,
                "steps": self.steps,
            }
            words = [word for k, v in (options | TRAINING).items() for word in (f"--{k}", *str(v).split())]
            command_line(["train", "conditional", *words])
        return run / "model"

    def fields(self, records: list[Record]) -> dict[str, str]:
        """Return the tables and numbers of the page."""
        trained = [task for task in TASKS if any(r["task"] == task for r in records)]
        rows, ahead = [], []
        for task in trained:
            ours = self.find(records, task, TRAINED)
            for r in (r for r in records if r["task"] == task):
                apart = [difference(ours[score], r[score]) for score in SCORES]
                rows.append([TITLES[task], *scores_of(r), *(["", ""] if r is ours else apart)])
                if r is not ours:
                    ahead.append((r["name"], *verdicts(ours, r)))
        shifted = [
            [TITLES[task], TITLES[SHIFTS[task]], *scores_of(r)]
            for task in trained
            for r in records
            if r["task"] == SHIFTS[task]
        ]
        names = [name for name in BUDGETS if any(row[0] == name for row in ahead)]
        shares = [
            [
                name,
                *(f"{sum(row[i] for row in ahead if row[0] == name)} of {len(trained)}" for i in range(1, 5)),
            ]
            for name in names
        ]
        best = "; ".join(
            f"{TITLES[task]}: {' and '.join(dict.fromkeys(self.first(records, task, score) for score in SCORES))}"
            for task in trained
        )
        near, lower, higher = (sum(row[i] for row in ahead) for i in (1, 3, 4))
        images = self.steps * BATCH
        first = records[0]
        return {
            "answer": f"On {' and '.join(TITLES[task] for task in trained)}, the few-step model with 4 evaluations is non-inferior in LPIPS in {near} of {len(ahead)} comparisons with "
            f"tuned baselines; its CRPS is lower in {lower}, and higher in {higher}. First in the mean of LPIPS and of CRPS: {best}.",
            "verdicts": markdown_table(["few-step model against", *VERDICTS], shares),
            "table": markdown_table(["task", *HEAD, *(f"{title} of the few-step model minus this one" for title in SCORES.values())], rows),
            "shifted": markdown_table(["trained on", "measured", *HEAD], shifted),
            "images": f"{images:,}",
            "passes": f"{3 * images:,}",
            "count": str(first["images"]),
            "samples": str(first["samples"]),
            "nominal": f"{100 * first['nominal']:.0f} %",
            "trials": str(self.trials),
            "validation": str(self.validation_count),
        }  # fmt: skip

    def first(self, records: Sequence[Record], task: str, score: str) -> str:
        """Return the sampler with the lowest mean score on a task."""
        return str(min((r for r in records if r["task"] == task), key=lambda r: fmean(r[score]))["name"])

    def find(self, records: Sequence[Record], task: str, name: str) -> Record:
        """Return the record of a sampler on a task."""
        return next(r for r in records if (r["task"], r["name"]) == (task, name))


def with_denoiser(settings: Settings, folder: Path) -> Settings:
    """Return settings with the supervised network of a folder."""
    sampler: Any = settings.template
    found: Sampler = replace(sampler, denoiser=Unbound(str(folder)))
    return Settings(found)


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    tyro.cli(Config).run()
