"""Speed-up of LAVPS over MGDM at non-inferior LPIPS: the paper's speed-up table and Pareto fronts, on three tasks.

    python -m recipes.speedup.run --data DATA --lpips FILE
    python -m recipes.speedup.run --scale paper --device cuda ...      # FFHQ at 256 x 256, the paper's sizes

For every task: measure once; try settings on 32 validation images (the paper's grid for MGDM with Adam at K = 100, then
MGDM and LAVPS with all settings free, the same number of trials for both); evaluate the fronts on 300 test images; time
the matching methods at batch 1, interleaved. There are two comparisons: (a) against the paper's MGDM, (b) against the
best settings of MGDM. Settings are screened on 8 images, and those clearly worse stop there. If the process is stopped, the
same command continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

import tyro

from lavps.benchmark import Benchmark, Sweep, Timer, analyze, fronts, paper_grid, paper_subset
from lavps.benchmark.analysis import Results
from lavps.benchmark.report import write_report
from lavps.guidance import Amortized, Gradient, Guidance, Linearized, switch
from lavps.minimizers import Adam, WhitenedGradient
from lavps.samplers import LAVPS, MGDM, UNBOUND, Settings, Unbound

from ..common.study import TASKS, Study
from .page import AMORTIZED, LINEARIZED, stored, write_page

PAPER, BEST = "MGDM (Adam), K=100", "MGDM (Adam) or MGDM (whitened gradient)"
GROUPS = (*BEST.split(" or "), AMORTIZED, LINEARIZED)
# Number of settings per front that are evaluated on the test images, spread evenly in cost.
MOST = {PAPER: 2, BEST: 4, AMORTIZED: 7, LINEARIZED: 5}
STEPS = (12, 25, 50, 75, 100)
Stage = Literal["measure", "adam", "mgdm", "lavps", "test", "time", "page"]


@dataclass(frozen=True)
class Config(Study):
    """Speed-up at non-inferior LPIPS."""

    tasks: tuple[str, ...] = TASKS
    """Tasks, each with an inference model in the zoo."""
    stages: tuple[Stage, ...] = ("measure", "adam", "mgdm", "lavps", "test", "time", "page")
    """Stages to run."""
    grid: Literal["subset", "whole"] = "subset"
    """Points of the paper's grid: a spread subset of 32, or all 96."""
    screen: int = 8
    """Number of images of the screening."""
    trials: int = 8
    """Number of trials of the free searches of MGDM and of LAVPS, besides the designed settings."""
    within: float = 0.03
    """Largest LPIPS above the best of a front; worse settings are left out."""
    first: int | None = None
    """Number of test images of an interim evaluation; a later run without this option continues to all."""
    fewest: int | None = None
    """Smallest number of test images of a setting on the page; the default is ``first``, or all."""
    turns: int = 6
    """Number of timed images."""
    expensive_first: bool = False
    """Whether to test the most expensive settings first, for a second process that shares the work."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""


def by_steps(guidances: list[Guidance]) -> list[Settings]:
    """Return MGDM with every guidance for every K, without parts that the grid does not reach."""
    methods = [Settings(MGDM(UNBOUND, guidance=guidance)) for guidance in guidances]
    return [method.with_num_steps(k) for k, method in product(STEPS, methods)]


def designed(model: str | None) -> list[Settings]:
    """Return settings suggested by theory, for MGDM or, with a model, for LAVPS: levels of guidance for every K."""
    whitened, late = WhitenedGradient(), Linearized()
    none, one, two = (Gradient(steps, whitened) for steps in (0, 1, 2))
    if model is None:
        return by_steps(
            [
                one,
                Gradient(1, WhitenedGradient(0.6)),
                two,
                switch(one, two, at=0.3),
                switch(none, one, at=0.7),
                switch(Gradient(1), Gradient(3), at=0.2),
            ]
        )
    # A model at every step, or first and then a linearized step; with gradients in the last steps, or in the first.
    network = Unbound(model)
    free, descent = (Amortized(network, steps, whitened, None) for steps in (0, 1))
    last = Amortized(late, 1, whitened, None)
    return by_steps(
        [
            free,
            switch(free, late, at=0.5),
            switch(free, late, at=0.35),
            switch(free, switch(late, last, at=0.1), at=0.5),
            switch(free, switch(late, last, at=0.3), at=0.5),
            switch(Amortized(network, 0, safeguard_every=4), late, at=0.5),
            switch(descent, late, at=0.5),
            switch(descent, late, at=0.3),
        ]
    )


def windowed(model: str) -> list[Settings]:
    """Return settings of the paper's form: gradients first, then a model in the last steps, without gradients there."""
    levels = ((50, 2, WhitenedGradient()), (100, 2, WhitenedGradient()), (100, 1, Adam(0.01)))
    return [
        Settings(
            LAVPS(
                UNBOUND, Unbound(model), num_steps=k, gradient_steps_start=steps, gradient_steps_end=0, r_switch=0.7,
                minimizer=minimizer, safeguard_every=4,
            )
        )
        for k, steps, minimizer in levels
    ]  # fmt: skip


def untrained() -> list[Settings]:
    """Return settings without a trained model: linearized steps, after unguided steps, damped steps or gradients."""
    late, descent = Linearized(), Gradient(1, WhitenedGradient())
    return by_steps(
        [
            Amortized(late, 0, safeguard_every=4),
            switch(Gradient(0), late, at=0.8),
            switch(Linearized(data_variance=0.01), late, at=0.5),
            switch(descent, late, at=0.5),
            switch(descent, late, at=0.3),
        ]
    )


def sweep(config: Config, benchmark: Benchmark, task: str, stage: Stage) -> None:
    """Try settings on the validation images."""
    runner = config.runner(benchmark, "validation")

    def study(name: str) -> Sweep:
        return Sweep(benchmark, runner, name, screen=config.screen, slack=0.004)

    if stage == "adam":
        study("paper's grid").grid(paper_subset("mgdm") if config.grid == "subset" else paper_grid("mgdm"))
        return
    model = config.model(task) if stage == "lavps" else None
    if model is not None:
        study("untrained").grid(untrained())
        study("windowed").grid(windowed(config.window_model(task)))
    sampler: Literal["mgdm", "lavps"] = "mgdm" if model is None else "lavps"
    study(f"designed {sampler}").grid(designed(model))
    study(f"free {sampler}").search(sampler, model, config.trials)


def test(config: Config, benchmark: Benchmark) -> None:
    """Evaluate the fronts on the test images, cheap settings first."""
    runner = config.runner(benchmark, "test", keep_images=16)
    found = [fronts(benchmark, most, [group], config.within)[group] for group, most in MOST.items()]
    chosen = {method.key: method for methods in found for method in methods}.values()
    ordered = sorted(chosen, key=lambda method: method.counts.forwards + 2 * method.counts.backwards)
    for method in reversed(ordered) if config.expensive_first else ordered:
        runner.run(method, config.first)


def compare(config: Config, benchmark: Benchmark, baseline: str) -> Results:
    """Compare LAVPS and MGDM with linearized steps with a baseline."""
    return analyze(benchmark, baseline, fewest=config.fewest or config.first, groups=GROUPS)


def time(config: Config, benchmark: Benchmark) -> None:
    """Time the matches of both comparisons at batch 1."""
    given = benchmark.measurements("test")
    matches = [match for baseline in (PAPER, BEST) for match in compare(config, benchmark, baseline).matches]
    keys = sorted({match[name] for match in matches for name in ("reference", "candidate") if match[name]})
    tested = benchmark.runs("test").methods(config.fewest or config.first or len(given), len(given))
    methods = {method.key: method for method in tested}
    timer = Timer(benchmark.path / "timing", given, config.models(benchmark), benchmark.settings.seed)
    timer.run([methods[key] for key in keys], config.turns)


def main(config: Config) -> None:
    """Run the stages of every task, and write the page."""
    paper: dict[str, Results] = {}
    best: dict[str, Results] = {}
    if config.page_only:
        found = {task: stored(config, task) for task in config.tasks}
        write_page(
            config, command(config), *({task: pair[i] for task, pair in found.items()} for i in (0, 1))
        )
        return
    for task in config.tasks:
        benchmark = config.begin("speedup", task)
        for stage in config.stages:
            print(f"{task}: {stage}", flush=True)
            if stage in ("adam", "mgdm", "lavps"):
                sweep(config, benchmark, task, stage)
            elif stage == "test":
                test(config, benchmark)
            elif stage == "time":
                time(config, benchmark)
            elif stage == "page":
                best[task] = compare(config, benchmark, BEST)
                paper[task] = compare(config, benchmark, PAPER)
                write_report(benchmark)
            if stage != "measure":
                config.pack("speedup", benchmark, task)
    if paper:
        write_page(config, command(config), paper, best)


def command(config: Config) -> str:
    """Return the command of the page, without paths."""
    words = ["python -m recipes.speedup.run"]
    words += [] if config.tasks == TASKS else ["--tasks", *config.tasks]
    words += [] if config.grid == "subset" else ["--grid", config.grid]
    numbers = {"--first": config.first, "--fewest": config.fewest}
    return " ".join(words + [f"{name} {number}" for name, number in numbers.items() if number is not None])


if __name__ == "__main__":
    main(tyro.cli(Config))
