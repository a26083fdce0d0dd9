"""Warm starts against exact posteriors: what an inference model buys, and what the safeguard keeps.

    python recipes/amortization_oracle.py                    # 8x8 mixture, about a quarter of an hour on one core
    python recipes/amortization_oracle.py --mixtures 8 16    # the 16x16 one too, an hour
    python recipes/amortization_oracle.py --quick --output /tmp/amortization

Writes ``amortization_oracle.json``, its page and its figures into the output folder. Trainings go to ``runs`` and are
resumed from there; a mixture that is in the JSON with the same settings is not run again.
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
import amortization_oracle_safeguard as safeguard
import lavps
from lavps.amortization import ContextSource, InferenceModel, InferenceTask
from lavps.amortization.trainer import TrainerConfig, train
from lavps.evaluation import exact_samples, oracle_mixture, oracle_problem, score
from lavps.initializers import WarmStartModel
from lavps.networks import Conditioning, LikelihoodGradient, MLPConfig, Palette, build_seeded
from lavps.operators.families import FixedOperator, OperatorFamily, RandomPixels
from lavps.samplers import Sampler

Task = Literal["sr4", "inpainting"]
TASKS: tuple[Task, Task] = ("sr4", "inpainting")
STEP_COUNTS = (6, 12, 25, 50, 100)
WHITENED = lavps.WhitenedGradient()
# Components and observations by side of the mixture.
MIXTURES = {8: (4, 8), 16: (8, 4)}


@dataclass(frozen=True)
class Config:
    """Settings of the benchmark."""

    output: Path = Path("benchmarks")
    """Folder for the page, its data and its figures."""
    runs: Path = Path("runs/amortization_oracle")
    """Folder of the trainings."""
    mixtures: tuple[int, ...] = (8,)
    """Sides of the mixtures: 8 (4 components), 16 (8 components)."""
    steps: int = 3000
    """Steps of a training."""
    batch_size: int = 256
    """Contexts a step."""
    samples: int = 128
    """Posterior samples an observation."""
    windows: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
    """Shares of the steps, the last ones, at which the model is asked."""
    threads: int = 1
    """Threads of torch."""
    quick: bool = False
    """A small version, to see that everything runs."""


class Bench:
    """One mixture: its prior, its problems, the models trained for it, and what was measured."""

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
        sampler: lavps.MGDM | lavps.MGPS,
        family: OperatorFamily,
        rollout: int = 0,
        conditioning: tuple[Conditioning, ...] = (Palette(),),
        likelihood_step: bool = True,
    ) -> InferenceModel:
        """Train (or resume, or find trained) the model of this name."""
        channels = InferenceModel.in_channels(1, conditioning, likelihood_step)
        network = MLPConfig(
            self.prior.shape, channels, 2, width=8 * self.size, depth=2, second_time=True
        ).to_dict()
        source = ContextSource(
            sampler, family, lavps.GaussianNoise(0.05), rollout, step_counts=STEP_COUNTS[1:]
        )
        model = InferenceModel(build_seeded(network, 0), conditioning, likelihood_step)
        settings = TrainerConfig(
            self.config.runs / f"{self.size}-{name}", steps=self.config.steps, batch_size=self.config.batch_size,
            learning_rate=2e-3, weight_decay=0.0, warmup_steps=100, ema_decay=0.999, validate_every=1000,
            checkpoint_every=1000, tensorboard=False,
        )  # fmt: skip
        started = time.process_time()
        data = list(self.prior.sample(20_000, seed=1))
        result = train(InferenceTask(model, source), data, settings, list(self.prior.sample(2000, seed=2)))
        self.trainings.append(
            {
                "mixture": self.name, "model": name, "cpu_seconds": time.process_time() - started,
                "parameters": sum(p.numel() for p in model.parameters()),
                "validation": result.validation, "relative_cost": self.relative_cost(model),
            }
        )  # fmt: skip
        return model

    def relative_cost(self, model: WarmStartModel) -> float:
        """Time of a pass of the model over that of the denoiser, at the batch used, interleaved; the median."""
        rows = self.observations * self.config.samples
        family = FixedOperator(self.problems["sr4"].operator)
        context = ContextSource(lavps.MGDM(self.prior), family, lavps.GaussianNoise(0.05)).draw(
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
        compute = trace.forwards + 2 * trace.backwards + cost * trace.model_forwards
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
            group = "MGDM, Adam" if adam else "MGDM, whitened"
            for count in counts:
                for steps in gradients:
                    sampler = lavps.MGDM(
                        self.prior, gradient_steps_start=steps, num_steps=count,
                        minimizer=lavps.Adam() if adam else WHITENED,
                    )  # fmt: skip
                    self.judge(group, f"K={count}, G={steps}", task, sampler)
        long = lavps.MGDM(self.prior, gradient_steps_start=20)
        self.judge("MGDM, Adam", "K=100, G=20", task, long)
        late = lavps.MGDM(self.prior, gradient_steps_start=1, gradient_steps_end=10, r_switch=0.8)
        self.judge("MGDM, Adam", "K=100, G=1, then 10 in the last 20 %", task, late)
        for steps in (1, 3):
            bridged = lavps.MGDM(self.prior, gradient_steps_start=steps, renoise="bridge")
            self.judge("re-noise by bridge", f"MGDM, Adam, K=100, G={steps}", task, bridged)

    def warm(
        self,
        group: str,
        task: Task,
        model: WarmStartModel,
        windows: tuple[float, ...] = (),
        cost: float | None = None,
    ) -> None:
        """LAVPS by window, gradient steps, number of steps and safeguard; default the model trained last."""
        cost = self.trainings[-1]["relative_cost"] if cost is None else cost
        for window in windows:
            for steps in (0, 1):
                sampler = lavps.LAVPS(
                    self.prior, model, gradient_steps_start=1, gradient_steps_end=steps, r_switch=1 - window,
                    minimizer=WHITENED,
                )  # fmt: skip
                name = f"K=100, last {window:.0%}, G={steps}, safeguarded"
                self.judge(group, name, task, sampler, cost)
        for count in STEP_COUNTS:
            for steps in (0, 1):
                free = lavps.LAVPS(
                    self.prior, model, gradient_steps_start=steps, safeguard=False, num_steps=count,
                    minimizer=WHITENED,
                )  # fmt: skip
                self.judge(group, f"K={count}, every step, G={steps}", task, free, cost)


def ablate(bench: Bench, task: Task, mgdm: lavps.MGDM, family: OperatorFamily) -> None:
    """What the model is trained on, and what it is told; the small mixture will do."""
    bench.warm("LAVPS, on-policy contexts", task, bench.model(f"{task}-rollout", mgdm, family, rollout=2))
    plain = bench.model(f"{task}-palette", mgdm, family, likelihood_step=False)
    bench.warm("LAVPS, Palette alone", task, plain)
    told = bench.model(
        f"{task}-gradient",
        mgdm,
        family,
        conditioning=(Palette(), LikelihoodGradient()),
        likelihood_step=False,
    )
    bench.warm("LAVPS, gradient channel", task, told)
    alone = lavps.LikelihoodStep()
    bench.warm("LAVPS, likelihood step alone", task, alone, cost=bench.relative_cost(alone))


def run_task(bench: Bench, task: Task, config: Config) -> InferenceModel:
    """Zero-shot front, then LAVPS and its variants, then MGPS, on one task."""
    family, mgdm = FixedOperator(bench.problems[task].operator), lavps.MGDM(bench.prior)
    bench.zero_shot(task)
    model = bench.model(task, mgdm, family)
    bench.warm("LAVPS", task, model, config.windows)
    bridged = lavps.LAVPS(bench.prior, model, gradient_steps_start=0, safeguard=False, renoise="bridge")
    bench.judge("re-noise by bridge", "LAVPS, K=100, every step, G=0", task, bridged)
    if bench.size == min(MIXTURES):
        ablate(bench, task, mgdm, family)
    mgps = lavps.MGPS(bench.prior, gradient_steps=0, safeguard=False)
    warmed = bench.model(f"{task}-mgps", mgps, family)
    cost = bench.trainings[-1]["relative_cost"]
    for count in STEP_COUNTS[1:]:
        for steps in (0, 1, 2, 3):
            zero = replace(mgps, gradient_steps=steps, num_steps=count)
            if steps > 0:
                bench.judge("MGPS", f"K={count}, G={steps}", task, zero)
            if steps < 2:
                bench.judge("MGPS, warm", f"K={count}, G={steps}", task, replace(zero, model=warmed), cost)
    return model


def run_mixture(size: int, config: Config) -> tuple[Bench, dict[str, list[dict[str, Any]]]]:
    """Everything on one mixture."""
    bench = Bench(size, config)
    models = {task: run_task(bench, task, config) for task in tqdm(TASKS, desc=bench.name)}
    masks = bench.model("masks", lavps.MGDM(bench.prior), RandomPixels(0.4, 0.6))
    bench.warm("LAVPS, family of masks", "inpainting", masks, (1.0,))
    cost = next(training["relative_cost"] for training in bench.trainings if training["model"] == "sr4")
    for label, minimizer in (("Adam", lavps.Adam()), ("whitened", WHITENED)):
        for steps in (1, 3):
            # The model of one task on the other's operator, which it has never seen.
            stranger = lavps.LAVPS(
                bench.prior, models["sr4"], gradient_steps_start=steps, minimizer=minimizer
            )
            name = f"SR4 model, {label}, K=100, G={steps}"
            bench.judge("out of distribution", f"{name}, safeguarded", "inpainting", stranger, cost)
            bench.judge("out of distribution", name, "inpainting", replace(stranger, safeguard=False), cost)
    more = {"verdicts": [safeguard.verdicts(bench.prior, bench.problems, models) | {"mixture": bench.name}]}
    if size == min(MIXTURES):  # its Monte-Carlo reference takes its time
        found = safeguard.nonlinear(bench.prior, models, config.samples)
        more["nonlinear"] = [found | {"mixture": bench.name}]
    return bench, more


def main(config: Config) -> None:
    torch.set_num_threads(config.threads)
    if config.quick:
        config = replace(config, steps=100, samples=32, runs=config.output / "runs", windows=(0.3, 1.0))
    config.output.mkdir(parents=True, exist_ok=True)
    file = config.output / "amortization_oracle.json"
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    settings = {k: str(v) for k, v in asdict(config).items() if k not in ("output", "runs", "mixtures")}
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
            file.write_text(json.dumps(result, indent=1))
    page.write(config.output)


if __name__ == "__main__":
    main(tyro.cli(Config))
