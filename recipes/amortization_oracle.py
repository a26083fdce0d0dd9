"""Warm starts against exact posteriors: what an inference model buys, and what the safeguard keeps.

    python recipes/amortization_oracle.py                    # 8x8 mixture, about half an hour on two cores
    python recipes/amortization_oracle.py --mixtures 8 16    # the 16x16 one too
    python recipes/amortization_oracle.py --quick --output /tmp/amortization

Writes ``amortization_oracle.json``, its page and its figures into the output folder; trainings go to ``runs`` and
are resumed from there.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from tqdm import tqdm

import amortization_oracle_page as page
import lavps
from lavps.amortization import ContextSource, InferenceModel, InferenceTask
from lavps.amortization.trainer import TrainerConfig, train
from lavps.evaluation import oracle_mixture, oracle_problem, score
from lavps.networks import MLPConfig, Palette, build_seeded
from lavps.operators import HDRClip
from lavps.operators.families import FixedOperator, OperatorFamily, RandomPixels
from lavps.samplers import Sampler

Task = Literal["sr4", "inpainting"]
TASKS: tuple[Task, Task] = ("sr4", "inpainting")
CONDITIONING = (Palette(),)


@dataclass(frozen=True)
class Config:
    """Settings of the benchmark."""

    output: Path = Path("benchmarks")
    """Folder for the page, its data and its figures."""
    runs: Path = Path("runs/amortization_oracle")
    """Folder of the trainings."""
    mixtures: tuple[int, ...] = (8,)
    """Sides of the mixtures: 8 (4 components), 16 (8 components)."""
    steps: int = 4000
    """Steps of a training."""
    batch_size: int = 256
    """Contexts a step."""
    observations: int = 8
    """Observations of every task."""
    samples: int = 128
    """Posterior samples an observation."""
    threads: int = 2
    """Threads of torch."""
    quick: bool = False
    """A small version, to see that everything runs."""


class Bench:
    """One mixture: its prior, its problems, and the models trained for it."""

    def __init__(self, size: int, config: Config) -> None:
        self.size, self.config = size, config
        self.prior = oracle_mixture(size, 4 if size == 8 else 8)
        self.problems = {task: oracle_problem(self.prior, task, config.observations)[1] for task in TASKS}
        self.exact = {task: lavps.exact_posterior(self.prior, self.problems[task]) for task in TASKS}
        self.rows: list[dict[str, Any]] = []
        self.trainings: list[dict[str, Any]] = []

    def model(
        self, name: str, sampler: lavps.MGDM | lavps.MGPS, family: OperatorFamily, rollout: int = 0
    ) -> InferenceModel:
        """Train (or resume, or find trained) the model of this name."""
        shape = self.prior.shape
        network = MLPConfig(
            shape,
            InferenceModel.in_channels(1, CONDITIONING),
            2,
            width=4 * self.size**2,
            depth=3,
            second_time=True,
        )
        source = ContextSource(sampler, family, lavps.GaussianNoise(0.05), rollout)
        task = InferenceTask(InferenceModel(build_seeded(network.to_dict(), 0), CONDITIONING), source)
        settings = TrainerConfig(
            self.config.runs / f"{self.size}-{name}", steps=self.config.steps, batch_size=self.config.batch_size,
            learning_rate=1e-3, weight_decay=0.0, warmup_steps=100, ema_decay=0.999, validate_every=1000,
            checkpoint_every=1000, tensorboard=False,
        )  # fmt: skip
        started = time.process_time()
        data = list(self.prior.sample(20_000, seed=1))
        result = train(task, data, settings, list(self.prior.sample(2000, seed=2)))
        model = task.network
        assert isinstance(model, InferenceModel)
        row = {
            "mixture": f"{self.size}x{self.size}",
            "model": name,
            "cpu_seconds": time.process_time() - started,
        }
        self.trainings.append(
            row | {"validation": result.validation, "relative_cost": self.relative_cost(model)}
        )
        return model

    def relative_cost(self, model: InferenceModel) -> float:
        """Time of a pass of the model over that of the denoiser, one row, interleaved; the median of 200."""
        source = ContextSource(
            lavps.MGDM(self.prior), FixedOperator(self.problems["sr4"].operator), lavps.GaussianNoise(0.05)
        )
        context = source.draw(self.prior.sample(1), [0])
        ratios = []
        with torch.no_grad():
            for _ in range(200):
                start = time.perf_counter()
                model(context)
                middle = time.perf_counter()
                self.prior.denoise(context.x_t, context.t)
                ratios.append((middle - start) / (time.perf_counter() - middle))
        return float(torch.tensor(ratios).median())

    def judge(self, group: str, name: str, task: Task, sampler: Sampler, cost: float = 0.0) -> None:
        """Sample, score, record."""
        problem = self.problems[task]
        posterior = sampler.sample(problem, self.config.samples)
        assert posterior.samples is not None
        trace = posterior.trace
        compute = trace.forwards + 2 * trace.backwards + cost * trace.model_forwards
        self.rows.append(
            {
                "mixture": f"{self.size}x{self.size}", "task": task, "group": group, "method": name,
                **asdict(score(posterior.samples, problem, self.exact[task])),
                "forwards": trace.forwards, "backwards": trace.backwards, "model_forwards": trace.model_forwards,
                "compute": compute, "acceptance": trace.acceptance,
                "times": trace.times.tolist(), "acceptance_by_step": trace.acceptance_by_step.tolist(),
            }
        )  # fmt: skip

    def zero_shot(self, task: Task) -> None:
        """MGDM's own front."""
        whitened = lavps.WhitenedGradient()
        for steps in (1, 3, 20):
            self.judge("MGDM, Adam", f"G={steps}", task, lavps.MGDM(self.prior, gradient_steps_start=steps))
        for steps in (1, 2, 3):
            sampler = lavps.MGDM(self.prior, gradient_steps_start=steps, minimizer=whitened)
            self.judge("MGDM, whitened", f"G={steps}", task, sampler)
            for few in (25, 50):
                self.judge("MGDM, whitened", f"G={steps}, K={few}", task, replace(sampler, num_steps=few))

    def warm(self, group: str, task: Task, model: InferenceModel, windows: tuple[float, ...]) -> None:
        """LAVPS by window, gradient steps and safeguard."""
        cost, whitened = self.trainings[-1]["relative_cost"], lavps.WhitenedGradient()
        for window in windows:
            for steps in (0, 1):
                sampler = lavps.LAVPS(
                    self.prior, model, gradient_steps_start=1, gradient_steps_end=steps, r_switch=1 - window,
                    minimizer=whitened,
                )  # fmt: skip
                for guarded in (False, True):
                    name = f"last {window:.0%}, G={steps}" + (", safeguarded" if guarded else "")
                    self.judge(group, name, task, replace(sampler, safeguard=guarded), cost)
        free = lavps.LAVPS(self.prior, model, gradient_steps_start=0, safeguard=False)
        for few in (12, 25, 50):
            self.judge(group, f"last 100%, G=0, K={few}", task, replace(free, num_steps=few), cost)


def run_mixture(size: int, config: Config) -> Bench:
    """Everything on one mixture."""
    bench = Bench(size, config)
    windows = (1.0,) if config.quick else (0.1, 0.3, 0.5, 0.7, 1.0)
    mgdm, models = lavps.MGDM(bench.prior), {}
    for task in tqdm(TASKS, desc=f"{size}x{size}"):
        family = FixedOperator(bench.problems[task].operator)
        bench.zero_shot(task)
        models[task] = bench.model(task, mgdm, family)
        bench.warm("LAVPS", task, models[task], windows)
        rolled = bench.model(f"{task}-rollout", mgdm, family, rollout=2)
        bench.warm("LAVPS, on-policy contexts", task, rolled, (1.0,))
        mgps = lavps.MGPS(bench.prior, gradient_steps=0, safeguard=False)
        warmed = bench.model(f"{task}-mgps", mgps, family)
        cost = bench.trainings[-1]["relative_cost"]
        for steps in (0, 1, 3):
            plain = replace(mgps, gradient_steps=steps)
            bench.judge("MGPS", f"G={steps}", task, plain)
            bench.judge("MGPS, warm", f"G={steps}", task, replace(plain, model=warmed), cost)
    several = bench.model("masks", mgdm, RandomPixels(0.4, 0.6))
    bench.warm("LAVPS, family of masks", "inpainting", several, (1.0,))
    for steps in (1, 3):
        # The model of one task on the other's operator, which it has never seen.
        stranger = lavps.LAVPS(bench.prior, models["sr4"], gradient_steps_start=steps)
        bench.judge("out of distribution", f"SR4 model, G={steps}, safeguarded", "inpainting", stranger)
        unguarded = replace(stranger, safeguard=False)
        bench.judge("out of distribution", f"SR4 model, G={steps}", "inpainting", unguarded)
    return bench


def nonlinear(bench: Bench) -> dict[str, Any]:
    """The inpainting model on a nonlinear operator: misfit and acceptance beside MGDM's."""
    truth = bench.prior.sample(bench.config.observations, seed=3)
    problem = lavps.InverseProblem.simulate(truth, HDRClip(2.0), lavps.GaussianNoise(0.05))
    model = bench.model(
        "inpainting", lavps.MGDM(bench.prior), FixedOperator(bench.problems["inpainting"].operator)
    )
    result = {}
    for name, sampler in {
        "MGDM, Adam, G=3": lavps.MGDM(bench.prior),
        "inpainting model, G=3, safeguarded": lavps.LAVPS(bench.prior, model, gradient_steps_start=3),
    }.items():
        posterior = sampler.sample(problem, 32)
        assert posterior.samples is not None
        error = (posterior.mean - truth).square().mean().sqrt()
        chi = problem.repeat(32).chi_square(posterior.samples.flatten(0, 1)).mean()
        result[name] = {
            "error": float(error),
            "chi_square": float(chi),
            "acceptance": posterior.trace.acceptance,
        }
    return result


def main(config: Config) -> None:
    torch.set_num_threads(config.threads)
    if config.quick:
        config = replace(config, steps=150, observations=2, samples=64, runs=config.output / "runs")
    config.output.mkdir(parents=True, exist_ok=True)
    benches = [run_mixture(size, config) for size in config.mixtures]
    result = {
        "command": "python recipes/amortization_oracle.py",
        "versions": {"lavps": lavps.__version__, "torch": torch.__version__},
        "config": {name: str(value) for name, value in asdict(config).items()},
        "rows": [row for bench in benches for row in bench.rows],
        "trainings": [row for bench in benches for row in bench.trainings],
        "nonlinear": nonlinear(benches[0]),
    }
    (config.output / "amortization_oracle.json").write_text(json.dumps(result, indent=1))
    page.write(config.output)


if __name__ == "__main__":
    main(tyro.cli(Config))
