"""How far are the samplers' defaults from their best settings at the same cost?

python -m recipes.defaults.run --data DATA --lpips FILE
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import product
from typing import Any, ClassVar

import tyro

from lavps.benchmark import baseline_grid
from lavps.benchmark.analysis import row_means
from lavps.benchmark.methods import label
from lavps.benchmark.models import Precision
from lavps.benchmark.report import markdown_table
from lavps.data_step import Isotropic
from lavps.guidance import Gradient, switch
from lavps.minimizers import Adam, WhitenedGradient
from lavps.samplers import (
    DAPS,
    DDNM,
    DPS,
    MGDM,
    MGPS,
    MMPS,
    UNBOUND,
    DiffPIR,
    PiGDM,
    Sampler,
    Settings,
    WienerPIR,
)

from ..common.labels import TITLES
from ..common.pages import read, write_json, write_page
from ..common.study import TASKS, Study

Record = dict[str, Any]


def gradients() -> list[Settings]:
    """Return settings of MGDM with 100 diffusion steps and one gradient step for each, and some with more."""
    guidances = [Gradient(1, Adam(rate)) for rate in (0.01, 0.02, 0.03, 0.05)]
    guidances += [switch(Gradient(1, Adam(0.03)), Gradient(1, Adam(0.01)), at=0.2)]
    guidances += [switch(Gradient(1, Adam(0.03)), Gradient(0), at=0.2)]
    guidances += [Gradient(1, WhitenedGradient(size)) for size in (1.0, 1.5, 1.75, 1.9)]
    return [Settings(MGDM(UNBOUND, guidance=guidance)) for guidance in guidances]


def grids() -> dict[str, list[Settings]]:
    """Return the settings that are tried, by sampler: all of a sampler's have about the same cost."""
    whitened = [(1.0, 1), (1.5, 1), (1.9, 1), (0.5, 3), (1.0, 3), (1.5, 3)]  # step size, steps
    return {
        "DiffPIR": baseline_grid("diffpir"),
        "WienerPIR": baseline_grid("wienerpir"),
        "DDNM": baseline_grid("ddnm"),
        "PiGDM": baseline_grid("pigdm"),
        "DAPS": baseline_grid("daps"),
        "MMPS": [
            Settings(MMPS(UNBOUND, num_steps=25, grid_power=power, eta=eta))
            for power, eta in product((1.0, 1.5, 2.0), (0.5, 1.0))
        ],
        "MGDM": gradients(),
        "DPS": [Settings(DPS(UNBOUND, num_steps=100, step_size=size)) for size in (0.1, 0.3, 1.0, 3.0)],
        "MGPS": [
            Settings(MGPS(UNBOUND, num_steps=50, guidance=Gradient(steps, WhitenedGradient(size))))
            for size, steps in whitened
        ],
    }


MARGIN = 0.005
# Fields that the grids vary, with their names on the page.
TUNED = {
    "covariance": "strength",
    "zeta": "zeta",
    "eta": "eta",
    "grid_power": "power",
    "last_time": "last",
    "denoising_steps": "M",
    "step_size": "step",
}
DEFAULTS: dict[str, Sampler] = {
    sampler.__name__: sampler(UNBOUND)
    for sampler in (DiffPIR, WienerPIR, DDNM, PiGDM, DAPS, MMPS, MGDM, DPS, MGPS)
}


def is_default(settings: Settings) -> bool:
    """Return whether all fields but the number of steps have their defaults."""
    default = Settings(DEFAULTS[type(settings.template).__name__])
    return settings == default.with_num_steps(settings.num_steps)


def described(settings: Settings) -> str:
    """Return the fields of a sampler that differ between the settings tried."""
    sampler = settings.template
    if isinstance(sampler, MGDM | MGPS):
        return label(settings)
    parts = []
    for field in fields(sampler):
        if field.name in TUNED:
            value = getattr(sampler, field.name)
            if isinstance(value, Isotropic) and value.variance is not None:
                parts.append(f"variance {value.variance}")
            elif field.name != "covariance" or isinstance(value, Isotropic):
                parts.append(f"{TUNED[field.name]} {getattr(value, 'strength', value)}")
    return ", ".join(parts)


@dataclass(frozen=True)
class Config(Study):
    """Defaults and other settings of every sampler without training."""

    precision: Precision = "fp32"
    validation_count: int = 8
    test_count: int = 1
    tasks: tuple[str, ...] = TASKS
    """Tasks."""
    samplers: tuple[str, ...] = tuple(name for name in DEFAULTS if name != "MGPS")
    """Samplers; also MGPS, which takes 10 minutes more on one core."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""

    study: ClassVar[str] = "defaults"

    def run(self) -> None:
        """Measure, or read what was measured, and write the page."""
        records = read(self.pages, self.study) if self.page_only else self.measure()
        write_json(self.pages, self.study, records)
        write_page(self.pages, self.study, **self.fields(records))

    def measure(self) -> list[Record]:
        """Run all settings on the validation images; rows are kept, so it resumes."""
        benchmarks = {task: self.begin(self.study, task) for task in self.tasks}
        runners = {task: self.runner(benchmark, "validation") for task, benchmark in benchmarks.items()}
        records = []
        for name in self.samplers:
            for settings in grids()[name]:
                record = {"sampler": name, "label": described(settings)}
                record |= {"method": settings.to_dict(), "images": self.validation_count}
                for task, runner in runners.items():
                    means = row_means(runner.run(settings))
                    record[task] = {
                        key: means[key] for key in ("lpips", "psnr", "chi_square", "forwards", "backwards")
                    }
                records.append(record)
                print(
                    name,
                    record["label"],
                    [round(record[task]["lpips"], 4) for task in self.tasks],
                    flush=True,
                )
        for task, benchmark in benchmarks.items():
            self.pack(self.study, benchmark, task)
        return records

    def fields(self, records: list[Record]) -> dict[str, str]:
        """Return the fields of the page's template."""
        rows, gaps = self.table(records)
        far = {name: gap for name, gap in gaps.items() if gap > MARGIN}
        within = [name for name in gaps if name not in far]
        answer = f"Those of {', '.join(within)} are within {MARGIN} LPIPS of the best setting on every task."
        if far:
            named = ", ".join(f"{name} (up to {gap:.4f})" for name, gap in far.items())
            answer += f" Further away: {named}."
        tried = [
            f"- **{name}**: {'; '.join(dict.fromkeys(r['label'] for r in self.of(records, name)))}"
            for name in gaps
        ]
        head = [
            "sampler",
            "task",
            "default",
            "best",
            "difference",
            "best setting",
            "chi² of the default",
            "forward, backward passes",
        ]
        return {
            "table": markdown_table(head, rows),
            "answer": answer,
            "tried": "\n".join(tried),
            "images": str(records[0]["images"]),
            "step_size": self.step_size(records),
        }

    def step_size(self, records: list[Record]) -> str:
        """Return why DPS keeps its step size; nothing if it was not measured."""
        if not (tried := self.of(records, "DPS")):
            return ""
        fits = ", ".join(f"{tried[-1][task]['chi_square']:.2f} ({TITLES[task]})" for task in self.tasks)
        return (
            f"DPS keeps a step size of 1. With 3 its LPIPS is lower on super-resolution and motion blur, but it fits the noise: chi² is {fits}. On mixture priors it is "
            "also further from the exact posterior of inpainting (`tests/oracle/test_exact_posteriors.py`).\n\n"
        )

    def of(self, records: list[Record], name: str) -> list[Record]:
        """Return the records of a sampler."""
        return [r for r in records if r["sampler"] == name]

    def table(self, records: list[Record]) -> tuple[list[list[str]], dict[str, float]]:
        """Return, for each sampler and task, LPIPS of the default and of the best setting; and the largest gaps."""
        rows, gaps = [], {}
        for name in dict.fromkeys(r["sampler"] for r in records):
            tried = self.of(records, name)
            default = next(r for r in tried if is_default(Settings.from_dict(r["method"])))
            for task in self.tasks:
                found = min(tried, key=lambda r: float(r[task]["lpips"]))
                gap = default[task]["lpips"] - found[task]["lpips"]
                gaps[name] = max(gaps.get(name, 0.0), gap)
                passes = f"{default[task]['forwards']:.0f}, {default[task]['backwards']:.0f}"
                shown = [f"{r[task]['lpips']:.4f}" for r in (default, found)]
                misfit = f"{default[task]['chi_square']:.2f}"
                rows.append([name, TITLES[task], *shown, f"{gap:.4f}", found["label"], misfit, passes])
        return rows, gaps


if __name__ == "__main__":
    tyro.cli(Config).run()
