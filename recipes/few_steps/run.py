"""Few denoiser evaluations on images: the learned schedule for all tasks against samplers tuned for each.

python -m recipes.few_steps.run --data DATA --lpips FILE
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import stdev
from typing import Any, ClassVar, cast

import optuna
import tyro

from lavps.benchmark import Benchmark
from lavps.benchmark.analysis import row_means
from lavps.benchmark.figures import matplotlib_figure, method_grid
from lavps.benchmark.models import Precision
from lavps.benchmark.report import markdown_table
from lavps.evaluation import non_inferiority
from lavps.samplers import UNBOUND, FewStep, FewStepModel, Settings, TunedPIR, Unbound

from ..common.labels import TITLES
from ..common.pages import figures, read, write_json, write_page
from ..common.search import best
from ..common.study import Study

Record = dict[str, Any]
DIFFPIR, DDNM, WIENER = "DiffPIR", "DDNM+", "WienerPIR"
LEARNED, TRAINED = "TunedPIR (universal)", "few-step model"
COLOURS = {DIFFPIR: "#D55E00", DDNM: "#E69F00", WIENER: "#009E73", LEARNED: "#0072B2", TRAINED: "#CC79A7"}
SHOWN = ((DIFFPIR, 8), (DIFFPIR, 25), (LEARNED, 4), (LEARNED, 8), (TRAINED, 4))
NONLINEAR = ("jpeg", "hdr")  # DDNM+ and few-step models are for linear operators
SCORES = {"lpips": "LPIPS", "crps": "CRPS"}


@dataclass(frozen=True)
class Config(Study):
    """Samplers with data steps at few denoiser evaluations."""

    precision: Precision = "fp32"
    validation_count: int = 8
    test_count: int = 48
    tasks: tuple[str, ...] = ("sr4", "motion-blur", "centre-box", "jpeg")
    """Tasks."""
    outside: tuple[str, ...] = ("random-motion-blur-hard", "sr16")
    """Tasks that no training or tuning saw."""
    evaluations: tuple[int, ...] = (4, 8, 25)
    """Numbers of denoiser evaluations of the samplers that are tuned for each task."""
    learned: tuple[int, ...] = (4, 8)
    """Numbers of evaluations of the learned schedules."""
    trials: int = 12
    """Trials for each of these samplers, task and number of evaluations."""
    samples: int = 4
    """Samples per test image."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""

    study: ClassVar[str] = "few_steps"

    def run(self) -> None:
        """Measure, or read what was measured, and write the page."""
        records = read(self.pages, self.study) if self.page_only else self.measure()
        write_json(self.pages, self.study, records)
        self.draw(records)
        write_page(self.pages, self.study, **self.fields(records))

    def measure(self) -> list[Record]:
        """Tune, run all methods on the test images, and draw some."""
        records = []
        for task in self.outside:
            benchmark = self.begin(self.study, task)
            records += self.measured(benchmark, task, self.learned_methods()[::2])
            self.pack(self.study, benchmark, task)
        for task in self.tasks:
            benchmark = self.begin(self.study, task)
            found = self.measured(benchmark, task, self.methods(benchmark, task))
            records += found
            self.pack(self.study, benchmark, task)
            shown = [r for r in found if (r["name"], r["evaluations"]) in SHOWN]
            titles = {
                f"{r['name'].replace(' (', chr(10) + '(')}\n{r['evaluations']} evaluations": r for r in shown
            }
            keys = {title: Settings.from_dict(r["method"]).key for title, r in titles.items()}
            method_grid(benchmark, keys).savefig(self.pages / self.study / f"{task}.png", dpi=130)
        return records

    def measured(
        self, benchmark: Benchmark, task: str, methods: list[tuple[str, int, Settings]]
    ) -> list[Record]:
        """Return the scores of methods on the test images."""
        runner = self.runner(benchmark, "test", keep_images=4, samples=self.samples)
        found = []
        for name, evaluations, method in methods:
            rows = runner.run(method)
            found.append(
                {"task": task, "name": name, "evaluations": evaluations, "method": method.to_dict()}
                | {score: [row[score] for row in rows] for score in (*SCORES, "coverage")}
                | {"nominal": rows[0]["nominal_coverage"], "images": len(rows), "samples": self.samples}
                | {f"mean_{key}": value for key, value in row_means(rows).items()}
            )
        return found

    def methods(self, benchmark: Benchmark, task: str) -> list[tuple[str, int, Settings]]:
        """Return name, number of evaluations and settings of the methods of a task."""
        names = [name for name in (DIFFPIR, DDNM, WIENER) if name != DDNM or task not in NONLINEAR]
        found = [
            (name, count, self.tuned(benchmark, name, count)) for name in names for count in self.evaluations
        ]
        return found + [m for m in self.learned_methods() if m[0] != TRAINED or task not in NONLINEAR]

    def learned_methods(self) -> list[tuple[str, int, Settings]]:
        """Return the learned schedules and the few-step model."""
        found = [(LEARNED, count, Settings(TunedPIR.universal(UNBOUND, count))) for count in self.learned]
        model = Unbound(str(self.zoo / f"{self.prior.name}-4steps"))
        return [*found, (TRAINED, 4, Settings(FewStep(UNBOUND, cast(FewStepModel, model))))]

    def tuned(self, benchmark: Benchmark, name: str, evaluations: int) -> Settings:
        """Return the settings with the lowest LPIPS + CRPS on the validation images; rows are kept, so it resumes."""
        runner = self.runner(benchmark, "validation", samples=2)

        def loss(settings: Settings) -> float:
            rows = runner.run(settings)
            return float(row_means(rows)["lpips"] or 0.0) + mean([row["crps"] for row in rows])

        return best(name, evaluations, self.trials, loss)

    def draw(self, records: list[Record]) -> None:
        """Draw LPIPS and CRPS against the number of evaluations, one column per task."""
        figure = matplotlib_figure(2.6 * len(self.tasks) + 0.4, 4.6)
        axes = figure.subplots(len(SCORES), len(self.tasks), squeeze=False, sharex=True)
        for row, (score, title) in zip(axes, SCORES.items(), strict=True):
            for axis, task in zip(row, self.tasks, strict=True):
                for name, colour in COLOURS.items():
                    points = [r for r in records if r["task"] == task and r["name"] == name]
                    counts = [r["evaluations"] for r in points]
                    axis.plot(counts, [mean(r[score]) for r in points], "o-", color=colour, label=name, ms=4)
                axis.set_xscale("log")
                axis.set_xticks(self.evaluations, [str(count) for count in self.evaluations], minor=False)
                axis.minorticks_off()
                axis.tick_params(labelsize=8)
            row[0].set_ylabel(f"{title} (lower is better)", fontsize=9)
        for axis, task in zip(axes[0], self.tasks, strict=True):
            axis.set_title(TITLES[task], fontsize=10)
        for axis in axes[-1]:
            axis.set_xlabel("denoiser evaluations", fontsize=9)
        axes[0][-1].legend(fontsize=7, frameon=False)
        figure.savefig(self.pages / self.study / "chart.png", dpi=140)

    def fields(self, records: list[Record]) -> dict[str, str]:
        """Return the fields of the page's template."""
        head = ["task", "sampler", "evaluations", "LPIPS", "CRPS", "PSNR", "chi²", "coverage"]
        rows = [
            [
                TITLES[r["task"]],
                r["name"],
                str(r["evaluations"]),
                f"{mean(r['lpips']):.4f}",
                f"{mean(r['crps']):.4f}",
                f"{r['mean_psnr']:.2f}",
                f"{r['mean_chi_square']:.2f}",
                f"{100 * mean(r['coverage']):.0f} %",
            ]
            for r in records
            if r["task"] in self.tasks
        ]
        strange = [
            [
                TITLES[r["task"]],
                r["name"],
                f"{mean(r['lpips']):.4f}",
                f"{mean(r['crps']):.4f}",
                f"{r['mean_chi_square']:.2f}",
                f"{r['mean_forwards']:.2f}",
            ]
            for r in records
            if r["task"] not in self.tasks
        ]
        first = records[0]
        return {
            "answer": self.answer(records),
            "first": markdown_table(*self.first(records)),
            "table": markdown_table(head, rows),
            "outside": markdown_table(
                ["task", "sampler", "LPIPS", "CRPS", "chi²", "evaluations with rejections"], strange
            ),
            "pairs": markdown_table(
                ["task", "comparison", "LPIPS difference", "non-inferior", "CRPS difference"],
                self.pairs(records),
            ),
            "inception": self.inception_table(),
            "images": figures(self.study, {task: TITLES[task] for task in self.tasks}),
            "count": str(first["images"]),
            "samples": str(first["samples"]),
            "nominal": f"{100 * first['nominal']:.0f} %",
            "validation": str(self.validation_count),
            "trials": str(self.trials),
        }

    def inception_table(self) -> str:
        """Return the table of Inception distances, which ``recipes.few_steps.inception`` measures."""
        name = f"{self.study}_inception"
        if not (self.pages / f"{name}.json").exists():
            return "Not measured yet for this version of the model."
        found = {(r["task"], r["name"], r["evaluations"]): r["distance"] for r in read(self.pages, name)}
        head = ["task", *(f"{name}, {evaluations}" for name, evaluations in SHOWN)]
        rows = [
            [TITLES[task], *(with_error(found[(task, *method)]) for method in SHOWN)]
            for task in self.tasks
            if (task, *SHOWN[0]) in found
        ]
        return markdown_table(head, rows)

    def answer(self, records: list[Record]) -> str:
        """Return the sentences that answer the question, each with the tasks for which it holds."""
        found = []
        for name, count, other in ((TRAINED, 4, 25), (LEARNED, 8, 25), (LEARNED, 8, 8), (LEARNED, 4, 4)):
            pairs = [
                (task, find(records, task, name, count), find(records, task, DIFFPIR, other))
                for task in self.tasks
            ]
            both = [(task, ours, theirs) for task, ours, theirs in pairs if ours and theirs]
            near = [t for t, a, b in both if non_inferiority(b["lpips"], a["lpips"]).is_non_inferior]
            lower = [t for t, a, b in both if mean(a["crps"]) < mean(b["crps"])]
            called = f"the {name}" if name == TRAINED else name
            found.append(
                f"With {count} evaluations, {called} has an LPIPS non-inferior to that of DiffPIR with {other}, tuned for each task, on "
                f"{titles(near, len(both))}, and a lower CRPS on {titles(lower, len(both))}."
            )
        summary = f"{found[0]} Non-inferior: by less than 0.003 LPIPS behind, tested over the images."
        return "\n".join([summary, "", *(f"- {sentence}" for sentence in found[1:])])

    def first(self, records: list[Record]) -> tuple[list[str], list[list[str]]]:
        """Return a table of the best sampler for every task, number of evaluations and score."""
        head = ["task", *(f"{title}, {count}" for count in self.evaluations for title in SCORES.values())]
        rows = []
        for task in self.tasks:
            row = [TITLES[task]]
            for count in self.evaluations:
                there = [r for r in records if (r["task"], r["evaluations"]) == (task, count)]
                best_of = {score: min(there, key=lambda r: mean(r[score])) for score in SCORES}
                row += [f"{r['name']} {mean(r[score]):.4f}" for score, r in best_of.items()]
            rows.append(row)
        return head, rows

    def pairs(self, records: list[Record]) -> list[list[str]]:
        """Return the comparisons of our samplers with others at as many and at more evaluations, and with each other."""
        lines = []
        compared = [(LEARNED, own, DIFFPIR, other) for own, other in ((4, 4), (4, 8), (8, 8), (8, 25))]
        compared += [(TRAINED, 4, DIFFPIR, other) for other in (4, 8, 25)]
        compared += [(TRAINED, 4, LEARNED, 4), (TRAINED, 4, LEARNED, 8)]
        compared += [(TRAINED, 4, rival, 25) for rival in (DDNM, WIENER)]
        for task in self.tasks:
            for name, count, rival, other in compared:
                ours, theirs = find(records, task, name, count), find(records, task, rival, other)
                if ours is None or theirs is None:
                    continue
                test = non_inferiority(theirs["lpips"], ours["lpips"])
                difference = [a - b for a, b in zip(ours["crps"], theirs["crps"], strict=True)]
                verdict = "yes" if test.is_non_inferior else "no"
                shown = f"{-test.mean_difference:+.4f} ± {test.standard_error:.4f}"
                what = f"{name} at {count} against {rival} at {other}"
                lines.append([TITLES[task], what, shown, verdict, f"{mean(difference):+.4f}"])
        return lines


def find(records: list[Record], task: str, name: str, evaluations: int) -> Record | None:
    """Return the record of a sampler on a task; None if there is none."""
    wanted = (task, name, evaluations)
    return next((r for r in records if (r["task"], r["name"], r["evaluations"]) == wanted), None)


def titles(tasks: list[str], count: int) -> str:
    """Return the number and the titles of tasks."""
    names = ", ".join(TITLES[task] for task in tasks)
    return f"{len(tasks)} of {count} tasks ({names})" if tasks else f"none of {count} tasks"


def with_error(values: list[float]) -> str:
    """Return the mean of values and its standard error."""
    return f"{mean(values):.2f} ± {stdev(values) / len(values) ** 0.5:.2f}"


def mean(values: list[float]) -> float:
    """Return the mean of some numbers."""
    return sum(values) / len(values)


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    tyro.cli(Config).run()
