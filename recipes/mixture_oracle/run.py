"""All samplers against exact posteriors: the oracle benchmark.

python -m recipes.mixture_oracle.run                                 # about half an hour on two cores
python -m recipes.mixture_oracle.run --quick --pages /tmp/oracle     # a small version, about a minute
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor
from tqdm import tqdm

import lavps
from lavps.evaluation import (
    OptimizedStart,
    calibrate,
    exact_samples,
    oracle_mixture,
    oracle_problem,
    random_start,
    score,
)
from lavps.guidance import Amortized, Gradient, Guidance, switch
from lavps.samplers import FractionMidpoint, Sampler
from lavps.samplers.base import Run
from lavps.samplers.collect import Progress

from ..common.oracle import TASKS
from ..common.pages import write_json
from . import page


@dataclass(frozen=True)
class Config:
    """Settings of the benchmark."""

    pages: Path = Path("benchmarks")
    """Folder of the page, its numbers and its figures."""
    samples: int = 128
    """Number of posterior samples per observation."""
    observations: int = 8
    """Number of observations of the 8x8 mixture."""
    hard_observations: int = 3
    """Number of observations of the 16x16 mixture."""
    solver_observations: int = 2
    """Number of observations of the solved initialization, which takes hundreds of gradients per step."""
    calibration_observations: int = 256
    """Number of simulated observations of the calibration."""
    threads: int = 2
    """Number of torch threads."""
    quick: bool = False
    """Whether to run a small version, as a test."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""


def samplers(prior: lavps.GaussianMixturePrior) -> dict[str, Sampler]:
    """Return the samplers; the learning rate of Adam is 0.03, the larger one of the paper."""
    whitened = lavps.WhitenedGradient()

    def mgdm(guidance: Guidance, **options: Any) -> lavps.MGDM:
        return lavps.MGDM(prior, guidance=guidance, **options)

    def mgps(guidance: Guidance, **options: Any) -> lavps.MGPS:
        return lavps.MGPS(prior, guidance=guidance, **options)

    return {
        "MGDM (Adam), G=1": mgdm(Gradient(1)),
        "MGDM (Adam), G=1, bridge re-noise": mgdm(Gradient(1), renoise="bridge"),
        "MGDM (Adam), G=3": mgdm(Gradient(3)),
        "MGDM (Adam), G=3, bridge re-noise": mgdm(Gradient(3), renoise="bridge"),
        "MGDM (Adam), G=20": mgdm(Gradient(20)),
        "MGDM (Adam), G_start=1, G_end=10 (last 20 %)": mgdm(switch(Gradient(1), Gradient(10), at=0.2)),
        "MGDM (whitened gradient), G=1": mgdm(Gradient(1, whitened)),
        "MGDM (whitened gradient), G=2": mgdm(Gradient(2, whitened)),
        "MGDM (whitened gradient), G=3": mgdm(Gradient(3, whitened)),
        "MGDM (whitened gradient), G=1, K=50": mgdm(Gradient(1, whitened), num_steps=50),
        "MGDM (solved), 200 Adam steps": mgdm(Amortized(OptimizedStart(prior, 200), 0, safeguard_every=None)),
        "MGDM (solved), 60 whitened steps": mgdm(
            Amortized(OptimizedStart(prior, 60, whitened), 0, safeguard_every=None)
        ),
        "MGDM (random initialization), Adam, G=3, safeguard": mgdm(Amortized(random_start, 3)),
        "MGPS (whitened gradient), G=1": mgps(Gradient(1, whitened)),
        "MGPS (whitened gradient), G=3": mgps(Gradient(3, whitened)),
        "MGPS (Adam), G=10": mgps(Gradient(10), midpoint=FractionMidpoint(0.75)),
        "DPS, K=100": lavps.DPS(prior, num_steps=100),
        "DPS, K=1000, step size 0.3": lavps.DPS(prior, num_steps=1000, step_size=0.3),
        "MMPS": lavps.MMPS(prior),
        "MMPS, grid power 2": lavps.MMPS(prior, grid_power=2.0),
    }


def run_mixture(size: int, components: int, observations: int, config: Config) -> list[dict[str, Any]]:
    """All samplers on both tasks of one mixture."""
    prior = oracle_mixture(size, components)
    rows = []
    for task in TASKS:
        _, problem = oracle_problem(prior, task, observations)
        exact = lavps.exact_posterior(prior, problem)

        def record(name: str, samples: Tensor, **costs: float) -> None:
            part = problem.select(torch.arange(len(samples)))  # noqa: B023 - called within the iteration
            result = asdict(score(samples, part, exact[: len(samples)]))  # noqa: B023
            rows.append({"mixture": f"{size}x{size}", "task": task, "method": name, **result, **costs})  # noqa: B023

        record("exact posterior (floor)", exact_samples(problem, exact, config.samples))
        started = time.process_time()
        drawn = [
            lavps.DDIM(posterior).sample(lavps.Unconditional(prior.shape), config.samples, items=[item])
            for item, posterior in enumerate(exact)
        ]
        record(
            "DDIM on the exact posterior's denoiser",
            torch.cat([posterior.samples for posterior in drawn if posterior.samples is not None]),
            forwards=drawn[0].trace.forwards,
            backwards=0.0,
            cpu_seconds=time.process_time() - started,
        )
        for name, sampler in tqdm(samplers(prior).items(), desc=f"{size}x{size} {task}"):
            long = "G=20" in name or "solved" in name
            if (long and size > 8) or (config.quick and (long or "K=1000" in name)):
                continue
            count = config.solver_observations if "solved" in name else observations
            started = time.process_time()
            posterior = sampler.sample(problem.select(torch.arange(count)), config.samples)
            assert posterior.samples is not None
            record(
                name,
                posterior.samples,
                forwards=posterior.trace.forwards,
                backwards=posterior.trace.backwards,
                cpu_seconds=time.process_time() - started,
                acceptance=posterior.trace.acceptance,
            )
    return rows


def run_spread(config: Config) -> list[dict[str, Any]]:
    """Three samplers on ten draws of the 8x8 mixture: how much depends on the mixture."""
    rows = []
    for seed in tqdm(range(10), desc="ten mixtures"):
        prior = oracle_mixture(seed=seed)
        judged = {
            "MGDM (Adam), G=3": lavps.MGDM(prior, guidance=Gradient()),
            "MGDM (whitened gradient), G=2": lavps.MGDM(
                prior, guidance=Gradient(2, lavps.WhitenedGradient())
            ),
            "MMPS": lavps.MMPS(prior),
        }
        for task in TASKS:
            _, problem = oracle_problem(prior, task, config.observations)
            exact = lavps.exact_posterior(prior, problem)
            row: dict[str, Any] = {"seed": seed, "task": task}
            row["floor"] = score(exact_samples(problem, exact, config.samples), problem, exact).sw2
            row["ambiguous"] = sum(float(posterior.weights.max()) < 0.95 for posterior in exact)
            for name, sampler in judged.items():
                samples = sampler.sample(problem, config.samples).samples
                assert samples is not None
                row[name] = score(samples, problem, exact).sw2
            rows.append(row)
    return rows


def features(x: Tensor) -> Tensor:
    """Six scalars of an 8x8 image: four pixels, the mean, a difference across the middle."""
    pixels = [x[:, 0, i, j] for i, j in ((1, 1), (2, 5), (5, 2), (6, 6))]
    return torch.stack([*pixels, x.flatten(1).mean(1), x[:, 0, 4, 4] - x[:, 0, 4, 3]], dim=1)


FEATURES = ("pixel 1,1", "pixel 2,5", "pixel 5,2", "pixel 6,6", "mean", "difference")


class ExactSampler(Sampler):
    """The exact posterior as a sampler: the control of the calibration test itself."""

    def __init__(self, prior: lavps.GaussianMixturePrior) -> None:
        self.prior: lavps.GaussianMixturePrior = prior

    @property
    def total_steps(self) -> int:
        """A single step."""
        return 1

    def steps(self, run: Run) -> Iterator[Progress]:
        """Draw every row from its own exact posterior."""
        cache: dict[int, Tensor] = {}
        rows = []
        for row, (item, sample) in enumerate(zip(run.noise.items, run.noise.samples, strict=True)):
            if item not in cache:
                cache[item] = lavps.exact_posterior(self.prior, run.measured[row])[0].sample(64, seed=item)
            rows.append(cache[item][sample])
        yield Progress(torch.zeros(()), torch.stack(rows).to(run.problem.like))


def run_calibration(config: Config) -> list[dict[str, Any]]:
    """Simulation-based calibration of MGDM on the 8x8 mixture."""
    prior = oracle_mixture()
    judged: dict[str, Sampler] = {
        "exact posterior (control)": ExactSampler(prior),
        "MGDM (Adam), G=3": lavps.MGDM(prior, guidance=Gradient()),
        "MGDM (whitened gradient), G=2": lavps.MGDM(prior, guidance=Gradient(2, lavps.WhitenedGradient())),
        "MMPS, grid power 2": lavps.MMPS(prior, grid_power=2.0),
    }
    rows = []
    for task in TASKS:
        truth, problem = oracle_problem(prior, task, config.calibration_observations, seed=7)
        for name, sampler in judged.items():
            report = calibrate(
                sampler, truth, problem, features, num_samples=63, batch_size=4096, progress=True
            )
            rows.append(
                {
                    "task": task,
                    "method": name,
                    "features": FEATURES,
                    "num_samples": report.num_samples,
                    "ranks": report.ranks.T.tolist(),
                    "levels": report.levels,
                    "coverage": report.coverage.tolist(),
                    "deviation": report.deviation.tolist(),
                    "band": report.band,
                }
            )
    return rows


def main(config: Config) -> None:
    """Run all parts of the benchmark, and write the page."""
    torch.set_num_threads(config.threads)
    if config.page_only:
        page.write(config.pages)
        return
    observations = (2, 2) if config.quick else (config.observations, config.hard_observations)
    mixtures = run_mixture(8, 4, observations[0], config)
    if not config.quick:
        mixtures += run_mixture(16, 8, observations[1], config)
    result = {
        "quick": config.quick,
        "versions": {"lavps": lavps.__version__, "torch": torch.__version__},
        "samples": config.samples,
        "observations": observations,
        "mixtures": mixtures,
        "spread": [] if config.quick else run_spread(config),
        "calibration": run_calibration(config if not config.quick else Config(calibration_observations=32)),
    }
    write_json(config.pages, "mixture_oracle", result)
    page.write(config.pages)


if __name__ == "__main__":
    main(tyro.cli(Config))
