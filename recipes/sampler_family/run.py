"""One family of samplers against exact posteriors, each tuned for the prior, at few denoiser evaluations.

python -m recipes.sampler_family.run                                      # about an hour on one core
python -m recipes.sampler_family.run --seeds 0 --observations 1 --trials 2 --evaluations 8 --pages /tmp/family
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
import torch
import tyro
from torch import Tensor

import lavps
from lavps.benchmark.report import markdown_table
from lavps.data_step import Stationary
from lavps.evaluation import exact_samples, non_inferiority, oracle_mixture, oracle_problem, score
from lavps.operators.families import FixedOperator
from lavps.samplers import DDIM, Settings
from lavps.training.tuning import TuningConfig, tune

from ..common.cells import difference
from ..common.labels import TITLES
from ..common.oracle import TASKS, Task, sw2_error
from ..common.pages import read, versions_of, write_json, write_page
from ..common.search import SPACES, best

FLOOR, UNGUIDED, LEARNED = "exact posterior (floor)", "DDIM (no measurement)", "TunedPIR (learned schedule)"
MARGIN = 0.003
OURS = (LEARNED, "WienerPIR", "MGDM (linearized)")
TUNING_SEED, TUNING_OBSERVATIONS = 100, 4  # of the observations on which samplers are tuned


@dataclass(frozen=True)
class Config:
    """Settings of the study."""

    pages: Path = Path("benchmarks")
    """Folder of the page and its numbers."""
    work: Path = Path("runs/studies/sampler_family")
    """Working folder; results found there are used."""
    seeds: tuple[int, ...] = (0, 1)
    """Seeds of the means of the mixtures."""
    observations: int = 8
    """Number of observations per mixture and task."""
    samples: int = 128
    """Number of posterior samples per observation."""
    evaluations: tuple[int, ...] = (8, 12, 25, 50, 100)
    """Numbers of denoiser evaluations."""
    learned: tuple[int, ...] = (8, 12, 25)
    """Numbers of evaluations of the learned schedules."""
    trials: int = 12
    """Settings of each sampler that are tried for each mixture, task and number of evaluations."""
    iterations: int = 300
    """Optimizer steps of a learned schedule."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""


def tuned(
    config: Config, prior: lavps.GaussianMixturePrior, task: Task, evaluations: int
) -> dict[str, Settings]:
    """Return every sampler with its best settings on observations of their own."""
    _, problem = oracle_problem(prior, task, TUNING_OBSERVATIONS, seed=TUNING_SEED)
    exact = lavps.exact_posterior(prior, problem)

    def loss(settings: Settings) -> float:
        samples = settings.sampler(prior).sample(problem, config.samples // 4).samples
        return score(samples, problem, exact).sw2

    found = {name: best(name, evaluations, config.trials, loss) for name in SPACES}
    if evaluations in config.learned:
        found[LEARNED] = learned(config, prior, problem, evaluations)
    return {UNGUIDED: Settings(DDIM(prior, num_steps=evaluations))} | found


def learned(
    config: Config, prior: lavps.GaussianMixturePrior, problem: lavps.InverseProblem, evaluations: int
) -> Settings:
    """Return a schedule learned on samples of a mixture."""
    images, std = prior.sample(4096, seed=77), float(problem.noise.std)  # type: ignore[attr-defined]

    def drawn(items: Sequence[int]) -> Tensor:
        return images[[item % len(images) for item in items]]

    result = tune(
        lavps.WienerPIR(prior, num_steps=evaluations, covariance=Stationary.fit(prior.sample(512, seed=9))),
        drawn,
        prior.sample(64, seed=5),
        FixedOperator(problem.operator),
        (std, std),
        TuningConfig(iterations=config.iterations, batch_size=16),
    )
    return Settings(result.sampler)


def measure(config: Config) -> list[dict[str, Any]]:
    """Tune every sampler and score it on all mixtures; one row per task, number of evaluations and method."""
    rows: dict[tuple[str, int, str], dict[str, Any]] = {}
    for seed, task, evaluations in product(config.seeds, TASKS, config.evaluations):
        size = f"{config.observations}-{config.samples}-{config.trials}-{config.iterations}"
        file = config.work / f"{seed}-{task}-{evaluations}-{size}.json"
        if not file.exists():
            found = measured(config, seed, task, evaluations)
            config.work.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found))
        for name, cell in json.loads(file.read_text()).items():
            empty = {"task": task, "evaluations": evaluations, "method": name, "sw2_by_item": []}
            row = rows.setdefault((task, evaluations, name), empty)
            row["sw2_by_item"] += cell["sw2_by_item"]
            row.setdefault("std_ratio_by_mixture", []).append(cell["std_ratio"])
            row.setdefault("settings_by_mixture", []).append(cell["settings"])
            row |= {count: cell[count] for count in ("forwards", "backwards")}
    return list(rows.values())


def measured(config: Config, seed: int, task: Task, evaluations: int) -> dict[str, dict[str, Any]]:
    """Tune every sampler for one mixture, task and number of evaluations, and score it."""
    prior = oracle_mixture(seed=seed)
    _, problem = oracle_problem(prior, task, config.observations, seed=seed)
    exact = lavps.exact_posterior(prior, problem)
    floor = score(exact_samples(problem, exact, config.samples), problem, exact)
    results = {FLOOR: (floor, 0.0, 0.0, None)}
    for name, settings in tuned(config, prior, task, evaluations).items():
        posterior = settings.sampler(prior).sample(problem, config.samples)
        found, trace = score(posterior.samples, problem, exact), posterior.trace
        results[name] = (found, trace.forwards, trace.backwards, settings.to_dict())
        print(seed, task, evaluations, name, round(found.sw2, 4), flush=True)
    return {
        name: {
            "sw2_by_item": found.sw2_by_item,
            "std_ratio": found.std_ratio,
            "settings": settings,
            "forwards": forwards,
            "backwards": backwards,
        }
        for name, (found, forwards, backwards, settings) in results.items()
    }


def table(rows: list[dict[str, Any]], counts: list[int]) -> str:
    """Return the distances of one task, a column per number of evaluations."""
    shown = 25 if 25 in counts else counts[-1]
    head = ["method", *(f"SW2 at {count}" for count in counts)]
    head += [f"std ratio at {shown}", f"backward passes at {shown}"]
    lines = []
    for name in dict.fromkeys(row["method"] for row in rows):
        found = {row["evaluations"]: row for row in rows if row["method"] == name}
        cells = [
            f"{fmean(found[count]['sw2_by_item']):.3f} ± {sw2_error(found[count]):.3f}"
            if count in found
            else "-"
            for count in counts
        ]
        middle = found.get(shown, list(found.values())[-1])
        ratio, backwards = fmean(middle["std_ratio_by_mixture"]), middle["backwards"]
        lines.append([name, *cells, f"{ratio:.2f}", f"{backwards:.0f}"])
    return markdown_table(head, lines)


def leaders(rows: list[dict[str, Any]]) -> list[tuple[str, int, dict[str, Any], dict[str, Any]]]:
    """Return, for each task and number of evaluations, the best of our samplers and the best of the others."""
    found = []
    for task, count in dict.fromkeys((row["task"], row["evaluations"]) for row in rows):
        here = [row for row in rows if (row["task"], row["evaluations"]) == (task, count)]
        ours, other = (
            min(
                (r for r in here if r["method"] != FLOOR and (r["method"] in OURS) == own),
                key=lambda row: fmean(row["sw2_by_item"]),
            )
            for own in (True, False)
        )
        found.append((task, count, ours, other))
    return found


def first(rows: list[dict[str, Any]]) -> str:
    """Return a table of the best of our samplers beside the best of the others."""
    lines = []
    for task, count, ours, other in leaders(rows):
        names = [
            f"{row['method']}: {fmean(row['sw2_by_item']):.3f}, {row['backwards']:.0f} backward passes"
            for row in (ours, other)
        ]
        lines.append(
            [TITLES[task], str(count), *names, difference(ours["sw2_by_item"], other["sw2_by_item"], 3)]
        )
    return markdown_table(["task", "evaluations", "best of ours", "best of the others", "difference"], lines)


def answer(rows: list[dict[str, Any]]) -> str:
    """Return the sentence that says where ours are the closest, and where not."""
    found, margins = leaders(rows), (0.0, MARGIN)
    closer, near = (
        sum(non_inferiority(b["sw2_by_item"], a["sw2_by_item"], m).is_non_inferior for *_, a, b in found)
        for m in margins
    )
    behind = [
        f"{TITLES[task]} at {count} ({theirs['method']}, by {difference(ours['sw2_by_item'], theirs['sw2_by_item'], 3)})"
        for task, count, ours, theirs in found
        if non_inferiority(ours["sw2_by_item"], theirs["sw2_by_item"], 0.0).is_non_inferior
    ]
    text = (
        f"For {closer} of {len(found)} tasks and numbers of evaluations, one of our samplers without gradients is closer to the exact "
        f"posterior than every baseline; for {near} it is at most {MARGIN} farther (paired tests over the observations, at level 0.05)."
    )
    return text + (f" Behind: {'; '.join(behind)}." if behind else "")


def main(config: Config) -> None:
    """Measure, unless only the page is wanted, and write the page."""
    torch.set_num_threads(1)
    if not config.page_only:
        result = {
            "versions": {"lavps": lavps.__version__, "torch": torch.__version__},
            "mixtures": len(config.seeds),
            "observations": config.observations,
            "samples": config.samples,
            "trials": config.trials,
            "iterations": config.iterations,
            "rows": measure(config),
        }
        write_json(config.pages, "sampler_family", result)
    result = read(config.pages, "sampler_family")
    rows = result["rows"]
    counts = list(dict.fromkeys(row["evaluations"] for row in rows))
    tables = [
        f"**{TITLES[task]}**\n\n{table([row for row in rows if row['task'] == task], counts)}"
        for task in TASKS
    ]
    write_page(
        config.pages,
        "sampler_family",
        versions=versions_of(result),
        mixtures=result["mixtures"],
        observations=result["observations"],
        tuning=TUNING_OBSERVATIONS,
        count=result["mixtures"] * result["observations"],
        samples=result["samples"],
        trials=result["trials"],
        iterations=result["iterations"],
        answer=answer(rows),
        first=first(rows),
        tables="\n\n".join(tables),
    )


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    main(tyro.cli(Config))
