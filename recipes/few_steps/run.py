"""Few denoiser evaluations on images: the learned schedule for all tasks against samplers tuned for each.

python -m recipes.few_steps.run --data DATA --lpips FILE
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import optuna
import tyro

from lavps.benchmark import Benchmark
from lavps.benchmark.figures import image_grid, seen
from lavps.benchmark.models import Precision
from lavps.samplers import (
    UNBOUND,
    DiffPIR,
    FusedPIR,
    Settings,
    TunedPIR,
    WienerPIR,
)

from ..common.pages import read, write_json, write_page
from ..common.scored import Method, Record, Scored
from .page import (
    BUDGETS,
    DIFFPIR,
    FUSED,
    LEARNED,
    LINEAR_ONLY,
    NONLINEAR,
    PAPER,
    PHASE,
    SHARP,
    SHOWN,
    STUDY,
    TRAINED,
    WIENER,
    Page,
)


@dataclass(frozen=True)
class Config(Scored):
    """Samplers with data steps at few denoiser evaluations."""

    precision: Precision = "fp32"
    validation_count: int = 8
    test_count: int = 48
    tasks: tuple[str, ...] = ("sr4", "motion-blur", "centre-box", "jpeg", "hdr")
    """Tasks."""
    outside: tuple[str, ...] = ("random-motion-blur-hard", "sr16")
    """Tasks that no training or tuning saw."""
    samplers: tuple[str, ...] = tuple(BUDGETS)
    """Samplers that are tuned for each task."""
    evaluations: tuple[int, ...] = (4, 8, 12, 25, 50)
    """Numbers of denoiser evaluations."""
    learned: tuple[int, ...] = (4, 8)
    """Numbers of evaluations of the learned schedules."""
    fused: tuple[int, ...] = (4, 8, 25)
    """Numbers of evaluations of FusedPIR, which is not tuned."""

    study: ClassVar[str] = STUDY
    budgets: ClassVar[dict[str, tuple[int, ...]]] = BUDGETS
    left_out: ClassVar[tuple[tuple[str, int], ...]] = ()

    def run(self) -> None:
        """Measure, or read what was measured, and write the page."""
        records = read(self.pages, self.study) if self.page_only else self.measure()
        write_json(self.pages, self.study, records)
        page = Page(self.pages, self.tasks, self.evaluations, records)
        page.draw()
        write_page(
            self.pages,
            self.study,
            validation=str(self.validation_count),
            trials=str(self.trials),
            **page.fields(),
        )

    def measure(self) -> list[Record]:
        """Tune, run all methods on the test images, and draw some."""
        records = []
        records += self.strange()
        few = replace(self, test_count=min(self.test_count, 8))  # its data steps are slow
        benchmark = few.begin(self.study, PHASE)
        defaults = [(DIFFPIR, 25, Settings(DiffPIR(UNBOUND))), (WIENER, 25, Settings(WienerPIR(UNBOUND)))]
        records += few.measured(benchmark, PHASE, defaults)
        self.pack(self.study, benchmark, PHASE)
        for task in self.tasks:
            benchmark = self.begin(self.study, task)
            found = self.measured(benchmark, task, self.methods(benchmark, task))
            found += replace(self, compiled=False).measured(benchmark, task, self.paper_methods(task))
            records += found
            self.pack(self.study, benchmark, task)
            self.grid(benchmark, found).savefig(self.pages / self.study / f"{task}.png", dpi=130)
        return records

    def strange(self) -> list[Record]:
        """Run the learned methods with four evaluations on tasks that they were not trained on."""
        records = []
        for task in self.outside:
            benchmark = self.begin(self.study, task)
            methods = [method for method in self.learned_methods(task) if method[1] == 4]
            records += self.measured(benchmark, task, methods)
            self.pack(self.study, benchmark, task)
        return records

    def grid(self, benchmark: Benchmark, records: list[Record], count: int = 4) -> Any:
        """Draw the first measurements, one sample of the methods of ``SHOWN``, and the truth."""
        given = self.runner(benchmark, "test").measurements
        problem, items = given.problem(slice(0, count)), list(given.items[:count])
        columns = {"measurement": seen(problem)}
        for record in (r for r in records if (r["name"], r["evaluations"]) in SHOWN):
            method = Settings.from_dict(record["method"])
            samples = self.models(benchmark).sample(method, problem, 0, items).samples
            assert samples is not None
            name = record["name"].replace(" (", "\n(")
            columns[f"{name}\n{record['evaluations']} evaluations"] = samples[:, 0]
        return image_grid(columns | {"truth": given.images[slice(0, count)].to_tensor()})

    def methods(self, benchmark: Benchmark, task: str) -> list[Method]:
        """Return name, number of evaluations and settings of the methods of a task."""
        names = [
            (name, count)
            for name in self.samplers
            for count in self.budgets[name]
            if count in self.evaluations
        ]

        def able(name: str, count: int) -> bool:
            return (task, count) not in self.left_out and (name not in LINEAR_ONLY or task not in NONLINEAR)

        found = [
            (name, count, self.tuned(benchmark, name, count)) for name, count in names if able(name, count)
        ]
        return found + [method for method in self.learned_methods(task) if able(*method[:2])]

    def paper_methods(self, task: str) -> list[Method]:
        """Return the paper's MGDM with Adam, with the settings of its lowest LPIPS in the study of the paper."""
        stored = read(self.pages, "paper", [])
        found = [r for r in stored if (r["task"], r["family"]) == (task, PAPER)]
        methods = [Settings.from_dict(min(found, key=lambda r: r["lpips"])["method"])] if found else []
        return [(PAPER, int(method.counts.forwards), method) for method in methods]

    def learned_methods(self, task: str) -> list[Method]:
        """Return what is not tuned for a task: learned schedules, the few-step model of the prior, FusedPIR."""
        found = [(LEARNED, count, Settings(TunedPIR.universal(UNBOUND, count))) for count in self.learned]
        found += [(TRAINED, method.num_steps, method) for method in self.few_step()]
        fused = [(FUSED, count, Settings(FusedPIR(UNBOUND, num_steps=count))) for count in self.fused]
        return found + fused * (task in SHARP)


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    tyro.cli(Config).run()
