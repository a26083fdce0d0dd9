"""The same comparison on crops of photographs, with the prior of patches.

python -m recipes.few_steps.photos --data DATA --lpips FILE
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import optuna
import tyro

from lavps.benchmark import Benchmark
from lavps.restoration.presets import read_fronts
from lavps.samplers import UNBOUND, DiffPIR, Settings, TunedPIR, WienerPIR
from lavps.training.crops import RandomCrops

from ..common.pages import write_json
from ..common.scored import Method
from . import run
from .page import DIFFPIR, PHOTOS, PRESET, WIENER


@dataclass(frozen=True)
class Config(run.Config):
    """DiffPIR, WienerPIR, the learned schedules and the few-step model on the central crops of photographs."""

    test_count: int = 32
    tasks: tuple[str, ...] = ("sr4", "motion-blur", "centre-box", "jpeg")
    samplers: tuple[str, ...] = (DIFFPIR, WIENER)
    evaluations: tuple[int, ...] = (8, 25)

    study: ClassVar[str] = PHOTOS
    budgets: ClassVar[dict[str, tuple[int, ...]]] = {DIFFPIR: (8, 25), WIENER: (8,)}
    left_out: ClassVar[tuple[tuple[str, int], ...]] = (("jpeg", 25),)  # its data steps are slow

    @property
    def prior(self) -> Path:
        """Return the folder of the prior."""
        return self.zoo / "photos64"

    def images(self, file: Path, shape: tuple[int, ...]) -> RandomCrops:
        """Open the photographs of a split."""
        return RandomCrops.open(file, (shape[1], shape[2]), shape[0], cache=self.work / self.study)

    def methods(self, benchmark: Benchmark, task: str) -> list[Method]:
        """Return the methods of a task, with the schedule of the prior's presets if it has one of its own."""
        presets = [
            (PRESET, round(entry.forwards), entry.settings)
            for entry in read_fronts(self.prior, task)
            if isinstance(entry.settings.template, TunedPIR)
            and entry.forwards in self.evaluations
            and entry.settings != Settings(TunedPIR.universal(UNBOUND, round(entry.forwards)))
        ]
        return super().methods(benchmark, task) + presets

    def learned_methods(self, task: str) -> list[Method]:
        """Return what is not tuned, and the defaults of samplers that are otherwise tuned."""
        names = {DIFFPIR: DiffPIR, WIENER: WienerPIR}
        defaults = [
            (f"{name} (defaults)", count, Settings(sampler(UNBOUND, num_steps=count)))
            for name, sampler in names.items()
            for count in self.evaluations
        ]
        return super().learned_methods(task) + defaults

    def run(self) -> None:
        """Measure; ``recipes.few_steps.run --page-only`` puts the tables on its page."""
        records = self.strange()
        for task in self.tasks:
            benchmark = self.begin(self.study, task)
            found = self.measured(benchmark, task, self.methods(benchmark, task))
            records += found
            self.pack(self.study, benchmark, task)
            self.grid(benchmark, found).savefig(self.pages / self.study / f"{task}.png", dpi=130)
            write_json(self.pages, self.study, records)


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    tyro.cli(Config).run()
