"""One family of samplers against exact posteriors, at 8 and 25 denoiser evaluations.

python -m recipes.sampler_family.run                                      # about five minutes on one core
python -m recipes.sampler_family.run --seeds 0 --observations 1 --pages /tmp/family
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

import lavps
from lavps.benchmark.report import markdown_table
from lavps.data_step import Isotropic, Stationary
from lavps.evaluation import exact_samples, oracle_mixture, oracle_problem, score
from lavps.guidance import Linearized
from lavps.samplers import Sampler

from ..common.labels import TITLES
from ..common.oracle import TASKS, standard_error
from ..common.pages import read, versions_of, write_json, write_page

FLOOR = "exact posterior (floor)"


@dataclass(frozen=True)
class Config:
    """Settings of the study."""

    pages: Path = Path("benchmarks")
    """Folder of the page and its numbers."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of the means of the mixtures."""
    observations: int = 4
    """Number of observations per mixture and task."""
    samples: int = 128
    """Number of posterior samples per observation."""
    evaluations: tuple[int, ...] = (8, 25)
    """Numbers of denoiser evaluations."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""


def family(prior: lavps.GaussianMixturePrior, evaluations: int) -> dict[str, Sampler]:
    """Return the samplers, with as many denoiser evaluations or one less."""
    images = prior.sample(512, seed=9)
    bounded = Isotropic(variance=float(images.var(0).mean()))
    return {
        "DDIM (no measurement)": lavps.DDIM(prior, num_steps=evaluations),
        "DiffPIR": lavps.DiffPIR(prior, num_steps=evaluations),
        "WienerPIR": lavps.WienerPIR(prior, num_steps=evaluations, covariance=Stationary.fit(images)),
        "DDNM+": lavps.DDNM(prior, num_steps=evaluations),
        "Pi-GDM": lavps.PiGDM(prior, num_steps=evaluations),
        "MMPS": lavps.MMPS(prior, num_steps=evaluations),
        "DAPS": lavps.DAPS(prior, num_steps=evaluations // 2),
        "DAPS, bounded variance": lavps.DAPS(prior, num_steps=evaluations // 2, covariance=bounded),
        "MGDM (linearized)": lavps.MGDM(prior, num_steps=evaluations + 1, guidance=Linearized()),
    }


def measure(config: Config) -> list[dict[str, Any]]:
    """Score every sampler on all mixtures; one row per task, number of evaluations and method."""
    rows: dict[tuple[str, int, str], dict[str, Any]] = {}
    for seed in config.seeds:
        prior = oracle_mixture(seed=seed)
        for task in TASKS:
            _, problem = oracle_problem(prior, task, config.observations, seed=seed)
            exact = lavps.exact_posterior(prior, problem)
            floor = score(exact_samples(problem, exact, config.samples), problem, exact)
            for evaluations in config.evaluations:
                results = {FLOOR: (floor, 0.0, 0.0)}
                for name, sampler in family(prior, evaluations).items():
                    posterior = sampler.sample(problem, config.samples)
                    found, trace = score(posterior.samples, problem, exact), posterior.trace
                    results[name] = (found, trace.forwards, trace.backwards)
                for name, (found, forwards, backwards) in results.items():
                    empty = {"task": task, "evaluations": evaluations, "method": name, "sw2_by_item": []}
                    row = rows.setdefault((task, evaluations, name), empty)
                    row["sw2_by_item"] += found.sw2_by_item
                    row.setdefault("std_ratio_by_mixture", []).append(found.std_ratio)
                    row |= {"forwards": forwards, "backwards": backwards}
        print(f"mixture {seed} done", flush=True)
    return list(rows.values())


def table(rows: list[dict[str, Any]], counts: list[int]) -> str:
    """Return the distances of one task, a column per number of evaluations."""
    head, lines = ["method"], []
    for count in counts:
        head += [f"SW2 at {count}", "std ratio", "forward, backward passes"]
    for name in dict.fromkeys(row["method"] for row in rows):
        line = [name]
        for count in counts:
            row = next(r for r in rows if r["method"] == name and r["evaluations"] == count)
            values, ratios = row["sw2_by_item"], row["std_ratio_by_mixture"]
            line += [f"{sum(values) / len(values):.3f} ± {standard_error(row):.3f}"]
            line += [f"{sum(ratios) / len(ratios):.2f}", f"{row['forwards']:.0f}, {row['backwards']:.0f}"]
        lines.append(line)
    return markdown_table(head, lines)


def main(config: Config) -> None:
    """Measure, unless only the page is wanted, and write the page."""
    torch.set_num_threads(1)
    if not config.page_only:
        result = {
            "versions": {"lavps": lavps.__version__, "torch": torch.__version__},
            "mixtures": len(config.seeds),
            "observations": config.observations,
            "samples": config.samples,
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
        count=result["mixtures"] * result["observations"],
        samples=result["samples"],
        tables="\n\n".join(tables),
    )


if __name__ == "__main__":
    main(tyro.cli(Config))
