"""How much faster is LAVPS at equal quality? The paper's speed-up table and Pareto fronts, on three tasks.

    python recipes/speedup.py --data path/to/data --lpips path/to/lpips_alex.safetensors
    python recipes/speedup.py --scale paper --device cuda ...      # FFHQ at 256 x 256, the paper's sizes

For every task: measure once; try settings on 32 validation images (the paper's grid for MGDM with Adam at K = 100; then
MGDM and LAVPS with everything free, the same number of trials for both); measure the fronts again on 300 test images;
time what matches at batch 1, taking turns. Two comparisons follow: (a) against the paper's MGDM, (b) best against best.
Settings are first tried on 8 images; those clearly behind stop there. Stopped at any point, the same command goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import tyro

from image_study import TASKS, Study
from lavps.evaluation.benchmark import Benchmark, Method, Sweep, conclude, fronts, paper_grid, paper_subset
from lavps.evaluation.benchmark.methods import GENTLE_STEP, LIKELIHOOD_STEP
from lavps.evaluation.benchmark.protocol import Results
from lavps.evaluation.benchmark.report import write_report
from lavps.evaluation.benchmark.timing import Timer
from speedup_page import write_page

PAPER, BEST = "MGDM, Adam, K=100", "MGDM"
# Settings of a front that are measured on the test images, spread evenly in cost.
MOST = {PAPER: 2, BEST: 4, "LAVPS": 7, "Likelihood step": 5}
STEPS = (12, 25, 50, 75, 100)
Stage = Literal["measure", "adam", "mgdm", "lavps", "test", "time", "page"]


@dataclass(frozen=True)
class Config(Study):
    """Speed-up at equal quality."""

    tasks: tuple[str, ...] = TASKS
    """Tasks, each with an inference model in the zoo."""
    stages: tuple[Stage, ...] = ("measure", "adam", "mgdm", "lavps", "test", "time", "page")
    """What to do."""
    grid: Literal["subset", "whole"] = "subset"
    """The paper's grid: 32 well-spread points of it, or all 96."""
    screen: int = 8
    """Images a setting is first tried on."""
    trials: int = 8
    """Of the free searches of MGDM and of LAVPS, besides the designed settings."""
    within: float = 0.03
    """A front's settings that are this much worse than its best, in LPIPS, are left out."""
    first: int | None = None
    """Test on this many of the test images only; a later run without this goes on to all."""
    fewest: int | None = None
    """Show also settings that were tested on this many images; default ``first``, or all."""
    turns: int = 6
    """Images to time."""
    dear_first: bool = False
    """Test the dearest settings first: for a second process beside the first."""


def designed(model: str | None) -> list[Method]:
    """Settings that theory suggests, for MGDM or, with a model, for LAVPS: levels of guidance at every K."""
    levels: list[dict[str, Any]]
    if model is None:
        levels = [
            {"gradient_steps_start": 1, "minimizer": "whitened"},
            {"gradient_steps_start": 1, "minimizer": "whitened", "learning_rate": 0.6},
            {"gradient_steps_start": 2, "minimizer": "whitened"},
            {"gradient_steps_start": 1, "gradient_steps_end": 2, "r_switch": 0.7, "minimizer": "whitened"},
            {"gradient_steps_start": 0, "gradient_steps_end": 1, "r_switch": 0.3, "minimizer": "whitened"},
            {"gradient_steps_start": 1, "gradient_steps_end": 3, "r_switch": 0.8},
        ]
        return [Method("mgdm", num_steps=k, **level) for k, level in product(STEPS, levels)]
    # A model at every step, or first and then a likelihood step; with gradients in the last steps, or in the first.
    then: dict[str, Any] = {"safeguard": False, "r_step": 0.5}
    last = then | {"gradient_steps_end": 1, "r_model": 0.0, "minimizer": "whitened"}
    first = last | {"gradient_steps_start": 1, "gradient_steps_end": 0}
    levels = [
        {"safeguard": False},
        then,
        then | {"r_step": 0.65},
        last | {"r_switch": 0.9},
        last | {"r_switch": 0.7},
        {"probe_every": 4, "r_step": 0.5},
        first | {"r_switch": 0.5},
        first | {"r_switch": 0.7, "r_step": 0.7},
    ]
    return [
        Method("lavps", num_steps=k, model=model, **{"gradient_steps_start": 0} | level)
        for k, level in product(STEPS, levels)
    ]


def windowed(model: str) -> list[Method]:
    """As the paper has it: gradients first, then a model in the last steps, here without more gradients there."""
    levels: list[dict[str, Any]] = [
        {"num_steps": 50, "gradient_steps_start": 2, "minimizer": "whitened"},
        {"num_steps": 100, "gradient_steps_start": 2, "minimizer": "whitened"},
        {"num_steps": 100, "gradient_steps_start": 1, "learning_rate": 0.01},
    ]
    return [
        Method("lavps", gradient_steps_end=0, r_switch=0.7, probe_every=4, model=model, **level)
        for level in levels
    ]


def untrained() -> list[Method]:
    """No model: likelihood steps under a safeguard; after nothing, after gentle ones, or after MGDM's gradients."""
    after = {"safeguard": False, "r_model": 1.0, "r_step": 0.5, "model": LIKELIHOOD_STEP}
    levels: list[dict[str, Any]] = [
        {"gradient_steps_start": 0, "probe_every": 4, "model": LIKELIHOOD_STEP},
        after | {"gradient_steps_start": 0, "r_step": 0.2},
        after | {"gradient_steps_start": 0, "r_model": 0.0, "model": GENTLE_STEP},
        after | {"gradient_steps_end": 0, "r_switch": 0.5, "minimizer": "whitened"},
        after | {"gradient_steps_end": 0, "r_switch": 0.7, "r_step": 0.7, "minimizer": "whitened"},
    ]
    return [Method("lavps", num_steps=k, **level) for k, level in product(STEPS, levels)]


def sweep(config: Config, benchmark: Benchmark, task: str, stage: Stage) -> None:
    """Settings tried on the validation images."""
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
    """The fronts again, on the test images; the cheap ones first."""
    runner = config.runner(benchmark, "test", keep_images=16)
    found = [fronts(benchmark, most, [group], config.within)[group] for group, most in MOST.items()]
    chosen = {method.key: method for methods in found for method in methods}.values()
    ordered = sorted(chosen, key=lambda method: method.num_steps * (1 + 3 * method.gradient_steps_start))
    for method in reversed(ordered) if config.dear_first else ordered:
        runner.run(method, config.first)


def time(config: Config, benchmark: Benchmark) -> None:
    """What matches in either comparison, at batch 1."""
    given = benchmark.measurements("test")
    matches = [
        match
        for baseline in (PAPER, BEST)
        for match in conclude(benchmark, baseline, fewest=config.fewest or config.first).matches
    ]
    keys = sorted({match[name] for match in matches for name in ("reference", "candidate") if match[name]})
    tested = benchmark.runs("test").methods(config.fewest or config.first or len(given), len(given))
    methods = {method.key: method for method in tested}
    timer = Timer(benchmark.path / "timing", given, config.models(benchmark), benchmark.settings.seed)
    timer.run([methods[key] for key in keys], config.turns)


def main(config: Config) -> None:
    paper: dict[str, Results] = {}
    best: dict[str, Results] = {}
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
                best[task] = conclude(benchmark, BEST, fewest=config.fewest or config.first)
                paper[task] = conclude(benchmark, PAPER, fewest=config.fewest or config.first)
                write_report(benchmark)
            if stage != "measure":
                config.pack("speedup", benchmark, task)
    if paper:
        print(write_page(config, command(config), paper, best))


def command(config: Config) -> str:
    """What makes the page, but for the places of files."""
    words = ["python recipes/speedup.py"]
    words += [] if config.tasks == TASKS else ["--tasks", *config.tasks]
    words += [] if config.grid == "subset" else ["--grid", config.grid]
    numbers = {"--first": config.first, "--fewest": config.fewest}
    return " ".join(words + [f"{name} {number}" for name, number in numbers.items() if number is not None])


if __name__ == "__main__":
    main(tyro.cli(Config))
