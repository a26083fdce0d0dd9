"""Amortized initialization against exact posteriors: gain of an inference model, and effect of the safeguard.

    python -m recipes.amortization_oracle.run                    # 8x8 mixture, about a quarter of an hour on one core
    python -m recipes.amortization_oracle.run --mixtures 8 16    # also the 16x16 mixture, an hour
    python -m recipes.amortization_oracle.run --quick --pages /tmp/amortization

Training runs are kept in ``runs`` and resumed from there. A mixture that is in the JSON file with the same settings is not
run again.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro
from tqdm import tqdm

import lavps
from lavps.amortization import (
    Conditioning,
    ContextSource,
    InferenceModel,
    InferenceTask,
    LikelihoodGradient,
    Palette,
)
from lavps.evaluation import exact_samples, oracle_mixture, oracle_problem, score
from lavps.guidance import Amortized, Gradient, Linearized, MidpointModel, switch
from lavps.nn import MLPConfig, build_seeded
from lavps.operators.families import FixedOperator, OperatorFamily, RandomPixels
from lavps.samplers import Sampler
from lavps.training.trainer import TrainerConfig, train

from ..common.oracle import TASKS, Task
from ..common.pages import read, write_json
from . import page, safeguard

STEP_COUNTS = (6, 12, 25, 50, 100)
WHITENED = lavps.WhitenedGradient()
# Components and observations by side of the mixture.
MIXTURES = {8: (4, 8), 16: (8, 4)}


@dataclass(frozen=True)
class Config:
    """Settings of the benchmark."""

    pages: Path = Path("benchmarks")
    """Folder of the page, its numbers and its figures."""
    runs: Path = Path("runs/amortization_oracle")
    """Folder of the training runs."""
    mixtures: tuple[int, ...] = (8,)
    """Sides of the mixtures: 8 (4 components), 16 (8 components)."""
    steps: int = 3000
    """Number of training steps."""
    batch_size: int = 256
    """Number of contexts per training step."""
    samples: int = 128
    """Number of posterior samples per observation."""
    windows: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
    """Shares of the steps, the last ones, at which the model is evaluated."""
    threads: int = 1
    """Number of torch threads."""
    quick: bool = False
    """Whether to run a small version, as a test."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""


class Bench:
    """One mixture: prior, problems, trained models and results."""

    def __init__(self, size: int, config: Config) -> None:
        self.size, self.config, self.name = size, config, f"{size}x{size}"
        components, observations = MIXTURES[size]
        self.observations = 2 if config.quick else observations
        self.prior = oracle_mixture(size, components)
        self.problems = {task: oracle_problem(self.prior, task, self.observations)[1] for task in TASKS}
        self.exact = {task: lavps.exact_posterior(self.prior, self.problems[task]) for task in TASKS}
        self.rows: list[dict[str, Any]] = []
        self.trainings: list[dict[str, Any]] = []

    def model(
        self,
        name: str,
        family: OperatorFamily,
        sampler: type[lavps.MGDM | lavps.MGPS] = lavps.MGDM,
        rollout: int = 0,
        conditioning: tuple[Conditioning, ...] = (Palette(),),
        likelihood_step: bool = True,
    ) -> InferenceModel:
        """Train (or resume, or find trained) the model of this name."""
        channels = InferenceModel.in_channels(1, conditioning, likelihood_step)
        network = MLPConfig(
            self.prior.shape, channels, 2, width=8 * self.size, depth=2, second_time=True
        ).to_dict()
        model = InferenceModel(build_seeded(network, 0), conditioning, likelihood_step)
        source = ContextSource(
            sampler(self.prior, guidance=unguarded(model)), family, lavps.GaussianNoise(0.05), rollout,
            step_counts=STEP_COUNTS[1:],
        )  # fmt: skip
        settings = TrainerConfig(
            self.config.runs / f"{self.size}-{name}", steps=self.config.steps, batch_size=self.config.batch_size,
            learning_rate=2e-3, weight_decay=0.0, warmup_steps=100, ema_decay=0.999, validate_every=1000,
            checkpoint_every=1000, tensorboard=False,
        )  # fmt: skip
        started = time.process_time()
        data = list(self.prior.sample(20_000, seed=1))
        result = train(InferenceTask(source), data, settings, list(self.prior.sample(2000, seed=2)))
        self.trainings.append(
            {
                "mixture": self.name, "model": name, "cpu_seconds": time.process_time() - started,
                "parameters": sum(p.numel() for p in model.parameters()),
                "validation": result.validation, "relative_cost": self.relative_cost(model),
            }
        )  # fmt: skip
        return model

    def relative_cost(self, model: MidpointModel) -> float:
        """Return the median time of a forward pass of the model relative to the denoiser's, interleaved, at the batch used."""
        rows = self.observations * self.config.samples
        family = FixedOperator(self.problems["sr4"].operator)
        sampler = lavps.MGDM(self.prior, guidance=Amortized(model, 0))
        context = ContextSource(sampler, family, lavps.GaussianNoise(0.05)).draw(
            self.prior.sample(rows), range(rows)
        )
        # In a sampler all rows share their times.
        context = replace(context, s=context.s[0], t=context.t[0])
        ratios = []
        with torch.no_grad():
            for _ in range(40):
                start = time.perf_counter()
                model(context)
                middle = time.perf_counter()
                self.prior.denoise(context.x_t, context.t)
                ratios.append((middle - start) / (time.perf_counter() - middle))
        return float(torch.tensor(ratios[5:]).median())

    def judge(self, group: str, name: str, task: Task, sampler: Sampler, cost: float = 0.0) -> None:
        """Sample, score, record."""
        problem = self.problems[task]
        posterior = sampler.sample(problem, self.config.samples)
        assert posterior.samples is not None
        trace = posterior.trace
        # A linearized step is no forward pass of a model, and has its cost.
        passes = sampler.total_steps if group == "MGDM (linearized)" else trace.model_forwards
        compute = trace.forwards + 2 * trace.backwards + cost * passes
        self.rows.append(
            {
                "mixture": self.name, "task": task, "group": group, "method": name,
                **asdict(score(posterior.samples, problem, self.exact[task])),
                "forwards": trace.forwards, "backwards": trace.backwards, "model_forwards": trace.model_forwards,
                "compute": compute, "acceptance": trace.acceptance,
                "times": trace.times.tolist(), "acceptance_by_step": trace.acceptance_by_step.tolist(),
            }
        )  # fmt: skip

    def zero_shot(self, task: Task) -> None:
        """The floor, then MGDM's own front by optimiser, steps and gradient steps; both ways to re-noise."""
        samples = exact_samples(self.problems[task], self.exact[task], self.config.samples)
        floor = score(samples, self.problems[task], self.exact[task])
        self.rows.append(
            {"mixture": self.name, "task": task, "group": "exact", "method": "exact samples", **asdict(floor)}
        )
        for adam, counts, gradients in ((True, (25, 50, 100), (1, 3)), (False, STEP_COUNTS, (1, 2, 3))):
            group = "MGDM (Adam)" if adam else "MGDM (whitened gradient)"
            for count in counts:
                for steps in gradients:
                    guidance = Gradient(steps, lavps.Adam() if adam else WHITENED)
                    sampler = lavps.MGDM(self.prior, guidance=guidance, num_steps=count)
                    self.judge(group, f"K={count}, G={steps}", task, sampler)
        long = lavps.MGDM(self.prior, guidance=Gradient(20))
        self.judge("MGDM (Adam)", "K=100, G=20", task, long)
        late = lavps.MGDM(self.prior, guidance=switch(Gradient(1), Gradient(10), at=0.2))
        self.judge("MGDM (Adam)", "K=100, G=1, then 10 in the last 20 %", task, late)
        for steps in (1, 3):
            bridged = lavps.MGDM(self.prior, guidance=Gradient(steps), renoise="bridge")
            self.judge("re-noise by bridge", f"MGDM (Adam), K=100, G={steps}", task, bridged)

    def warm(
        self,
        group: str,
        task: Task,
        model: MidpointModel,
        windows: tuple[float, ...] = (),
        cost: float | None = None,
    ) -> None:
        """LAVPS by window, gradient steps, number of steps and safeguard; default the model trained last."""
        cost = self.trainings[-1]["relative_cost"] if cost is None else cost
        for window in windows:
            for steps in (0, 1):
                late = Amortized(model, steps, WHITENED)
                guidance = late if window == 1 else switch(Gradient(1, WHITENED), late, at=window)
                sampler = lavps.MGDM(self.prior, guidance=guidance)
                name = f"K=100, last {window:.0%}, G={steps}, safeguarded"
                self.judge(group, name, task, sampler, cost)
        for count in STEP_COUNTS:
            for steps in (0, 1):
                free = lavps.MGDM(self.prior, guidance=unguarded(model, steps), num_steps=count)
                self.judge(group, f"K={count}, every step, G={steps}", task, free, cost)


def unguarded(model: MidpointModel, steps: int = 0) -> Amortized:
    """Return the guidance that accepts every prediction of a model."""
    return Amortized(model, steps, WHITENED, safeguard_every=None)


def ablate(bench: Bench, task: Task, family: OperatorFamily) -> None:
    """Vary the training contexts and the conditioning of the model, on the small mixture."""
    bench.warm("LAVPS, on-policy contexts", task, bench.model(f"{task}-rollout", family, rollout=2))
    plain = bench.model(f"{task}-palette", family, likelihood_step=False)
    bench.warm("LAVPS, Palette alone", task, plain)
    channels = (Palette(), LikelihoodGradient())
    gradient = bench.model(f"{task}-gradient", family, conditioning=channels, likelihood_step=False)
    bench.warm("LAVPS, gradient channel", task, gradient)
    alone = Linearized()
    bench.warm("MGDM (linearized)", task, alone, cost=bench.relative_cost(alone))


def run_task(bench: Bench, task: Task, config: Config) -> InferenceModel:
    """Zero-shot front, then LAVPS and its variants, then MGPS, on one task."""
    family = FixedOperator(bench.problems[task].operator)
    bench.zero_shot(task)
    model = bench.model(task, family)
    bench.warm("LAVPS", task, model, config.windows)
    bridged = lavps.MGDM(bench.prior, guidance=unguarded(model), renoise="bridge")
    bench.judge("re-noise by bridge", "LAVPS, K=100, every step, G=0", task, bridged)
    if bench.size == min(MIXTURES):
        ablate(bench, task, family)
    warmed = bench.model(f"{task}-mgps", family, lavps.MGPS)
    cost = bench.trainings[-1]["relative_cost"]
    for count in STEP_COUNTS[1:]:
        for steps in (0, 1, 2, 3):
            if steps > 0:
                zero = lavps.MGPS(bench.prior, guidance=Gradient(steps, WHITENED), num_steps=count)
                bench.judge("MGPS", f"K={count}, G={steps}", task, zero)
            if steps < 2:
                warm = lavps.MGPS(bench.prior, guidance=unguarded(warmed, steps), num_steps=count)
                bench.judge("MGPS, warm", f"K={count}, G={steps}", task, warm, cost)
    return model


def run_mixture(size: int, config: Config) -> tuple[Bench, dict[str, list[dict[str, Any]]]]:
    """Everything on one mixture."""
    bench = Bench(size, config)
    models = {task: run_task(bench, task, config) for task in tqdm(TASKS, desc=bench.name)}
    masks = bench.model("masks", RandomPixels(0.4, 0.6))
    bench.warm("LAVPS, family of masks", "inpainting", masks, (1.0,))
    cost = next(training["relative_cost"] for training in bench.trainings if training["model"] == "sr4")
    for label, minimizer in (("Adam", lavps.Adam()), ("whitened", WHITENED)):
        for steps in (1, 3):
            # The model of one task on the operator of the other.
            name = f"SR4 model, {label}, K=100, G={steps}"
            for every, words in ((1, ", safeguarded"), (None, "")):
                stranger = lavps.MGDM(bench.prior, guidance=Amortized(models["sr4"], steps, minimizer, every))
                bench.judge("out of distribution", f"{name}{words}", "inpainting", stranger, cost)
    more = {"verdicts": [safeguard.verdicts(bench.prior, bench.problems, models) | {"mixture": bench.name}]}
    if size == min(MIXTURES):  # its Monte-Carlo reference takes its time
        found = safeguard.nonlinear(bench.prior, models, config.samples)
        more["nonlinear"] = [found | {"mixture": bench.name}]
    return bench, more


def main(config: Config) -> None:
    """Run the mixtures that are not in the JSON file, and write the page."""
    torch.set_num_threads(config.threads)
    if config.quick:
        config = replace(config, steps=100, samples=32, runs=config.pages / "runs", windows=(0.3, 1.0))
    config.pages.mkdir(parents=True, exist_ok=True)
    if config.page_only:
        page.write(config.pages)
        return
    result: dict[str, Any] = read(config.pages, "amortization_oracle", {})
    settings = {
        k: str(v) for k, v in asdict(config).items() if k not in ("pages", "runs", "mixtures", "page_only")
    }
    if result.get("config") != settings:
        result = {"config": settings, "rows": [], "trainings": [], "nonlinear": [], "verdicts": []}
    result["versions"] = {"lavps": lavps.__version__, "torch": torch.__version__}
    known = {row["mixture"] for row in result["rows"]}
    for size in config.mixtures:
        if f"{size}x{size}" not in known:
            bench, more = run_mixture(size, config)
            result["rows"] += bench.rows
            result["trainings"] += bench.trainings
            for name, found in more.items():
                result[name] += found
            write_json(config.pages, "amortization_oracle", result)
    page.write(config.pages)


if __name__ == "__main__":
    main(tyro.cli(Config))
