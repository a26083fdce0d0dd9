"""Samplers of deepinv and azula, which must be installed, by their own code, with our prior and measurements.

python -m recipes.peers.run --data DATA --lpips FILE
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
import torch
import tyro
from torch import Tensor, nn

import lavps
from lavps.benchmark.report import markdown_table
from lavps.evaluation import LPIPS, crps
from lavps.operators.registry import family_from
from lavps.priors import AzulaDenoiser, CountingPrior, DeepinvDenoiser
from lavps.samplers import Sampler
from lavps.training.data import ImageData

from ..common.labels import TITLES
from ..common.pages import read, write_json, write_page
from ..common.study import TASKS

Record = dict[str, Any]
Values = dict[str, float]
STUDY, NOISE = "peers", 0.05
LAST_TIME = 0.99  # of azula's samplers: the noise level of the prior's schedule is infinite at 1
SEEDS = {"val": 0, "test": 1}


@dataclass(frozen=True)
class Peer:
    """A sampler of another library.

    Attributes:
        draw: Function of the prior, a problem, the number of evaluations and its fields that draws one sample per item.
        space: Its fields with their lowest and highest value, searched logarithmically; the first trial has the defaults.
        defaults: Defaults of these fields in its library.
    """

    draw: Callable[[lavps.Prior, lavps.InverseProblem, int, Values], Tensor]
    space: dict[str, tuple[float, float]]
    defaults: Values


def in_0_1(problem: lavps.InverseProblem) -> tuple[Any, Tensor]:
    """Return deepinv's physics and measurement of the same images in [0, 1]."""
    physics = importlib.import_module("deepinv").physics
    operator = problem.operator
    y = (problem.y + operator(torch.ones(len(problem.y), *problem.image_shape))) / 2
    noise = physics.GaussianNoise(NOISE / 2)
    return physics.LinearPhysics(A=operator, A_adjoint=operator.adjoint, noise_model=noise), y


def deepinv_diffpir(prior: lavps.Prior, problem: lavps.InverseProblem, count: int, values: Values) -> Tensor:
    """DiffPIR of deepinv."""
    deepinv = importlib.import_module("deepinv")
    physics, y = in_0_1(problem)
    settings = {"sigma": NOISE / 2, "max_iter": count} | values
    return (
        2 * deepinv.sampling.DiffPIR(DeepinvDenoiser(prior), deepinv.optim.L2(), **settings)(y, physics) - 1
    )


def azula_sampler(
    prior: lavps.Prior, problem: lavps.InverseProblem, count: int, eta: float, guided: Callable[..., Any]
) -> Tensor:
    """DDIM of azula with a guided denoiser."""
    samples = importlib.import_module("azula.sample")
    shape = problem.image_shape

    def forward(x: Tensor) -> Tensor:
        return problem.operator(x.unflatten(1, shape)).flatten(1)

    denoiser = guided(Flat(prior, shape), problem.y.flatten(1), forward)
    sampler = samples.DDIMSampler(denoiser, eta=eta, start=LAST_TIME, steps=count, silent=True)
    x: Tensor = sampler(sampler.init((len(problem.y), torch.Size(shape).numel())))
    return x.unflatten(1, shape)


class Flat(nn.Module):
    """A prior as an azula denoiser of vectors."""

    def __init__(self, prior: lavps.Prior, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.denoiser, self.shape = AzulaDenoiser(prior), shape

    def schedule(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return (alpha_t, sigma_t)."""
        return self.denoiser.schedule(t)

    def forward(self, x_t: Tensor, t: Tensor) -> Any:
        """Return an object whose ``mean`` is the denoised vector."""
        found = self.denoiser(x_t.unflatten(1, self.shape), t)
        return type(found)(found.mean.flatten(1))


def azula_diffpir(prior: lavps.Prior, problem: lavps.InverseProblem, count: int, values: Values) -> Tensor:
    """DiffPIR of azula."""
    guidance = importlib.import_module("azula.guidance")

    def guided(denoiser: nn.Module, y: Tensor, forward: Callable[[Tensor], Tensor]) -> Any:
        return guidance.DiffPIRDenoiser(
            denoiser, y, forward, NOISE**2, values["lmbda"], solver="cg", iterations=10
        )

    return azula_sampler(prior, problem, count, values["eta"], guided)


def azula_mmps(prior: lavps.Prior, problem: lavps.InverseProblem, count: int, values: Values) -> Tensor:
    """MMPS of azula, with one solver iteration."""
    guidance = importlib.import_module("azula.guidance")
    covariance = importlib.import_module("azula.linalg.covariance")

    def guided(denoiser: nn.Module, y: Tensor, forward: Callable[[Tensor], Tensor]) -> Any:
        return guidance.MMPSDenoiser(
            denoiser, y, forward, covariance.IsotropicCovariance(torch.tensor(NOISE**2))
        )

    return azula_sampler(prior, problem, count, values["eta"], guided)


PEERS = {
    "deepinv DiffPIR": Peer(
        deepinv_diffpir, {"zeta": (0.03, 1.0), "lambda_": (0.3, 30.0)}, {"zeta": 0.1, "lambda_": 7.0}
    ),
    "azula DiffPIR": Peer(
        azula_diffpir, {"lmbda": (0.1, 30.0), "eta": (0.03, 1.0)}, {"lmbda": 10.0, "eta": 1.0}
    ),
    "azula MMPS": Peer(azula_mmps, {"eta": (0.03, 1.0)}, {"eta": 1.0}),
}


@dataclass(frozen=True)
class Config:
    """Input, size and output of the study."""

    data: Path = Path("data")
    """Folder of synthfaces64-val.tar and synthfaces64-test.tar."""
    lpips: Path | None = None
    """File of the LPIPS weights; the default is the environment variable LAVPS_LPIPS."""
    prior: Path = Path("zoo/synthfaces64")
    """Folder of the prior."""
    pages: Path = Path("benchmarks")
    """Folder of the page; what was measured is not measured again."""
    tasks: tuple[str, ...] = TASKS
    """Tasks."""
    evaluations: int = 25
    """Number of denoiser evaluations of the other libraries' samplers."""
    validation_count: int = 4
    """Number of validation images."""
    test_count: int = 24
    """Number of test images."""
    samples: int = 2
    """Samples per test image."""
    trials: int = 12
    """Trials for each sampler of the other libraries and task."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""

    def run(self) -> None:
        """Measure what is missing, and write the page."""
        records: list[Record] = read(self.pages, STUDY, [])
        if not self.page_only:
            declared = declare_torchvision()  # lives as long as this object
            study = Study(self)
            size = {"images": self.test_count, "samples": self.samples, "trials": self.trials}
            size |= {"validation": self.validation_count}
            records = [r for r in records if size.items() <= r.items()]
            done = {(r["task"], r["name"]) for r in records}
            for task in self.tasks:
                for name in (*PEERS, *study.ours):
                    if (task, name) not in done:
                        records.append(study.measure(task, name))
                        write_json(self.pages, STUDY, records)
            del declared
        write_page(self.pages, STUDY, **fields(read(self.pages, STUDY)))


def declare_torchvision() -> torch.library.Library:
    """Declare two operators of torchvision that importing the libraries needs, if they are missing."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        with suppress(RuntimeError):  # it is there
            library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    return library


class Study:
    """Prior, images and scores."""

    def __init__(self, config: Config) -> None:
        self.config, self.prior = config, lavps.load_prior(config.prior)
        self.lpips = LPIPS.load(config.lpips, "cpu")
        self.shape = tuple(self.prior.image_shape)  # type: ignore[attr-defined]

    @cached_property
    def ours(self) -> dict[str, Sampler]:
        """Our samplers, none of them tuned for a task."""
        model = lavps.load_few_step(f"{self.config.prior}-4steps", self.prior)
        return {
            "WienerPIR, defaults": lavps.WienerPIR(self.prior, num_steps=self.config.evaluations),
            "TunedPIR (universal)": lavps.TunedPIR.universal(self.prior, 8),
            "few-step model": lavps.FewStep(self.prior, model),
        }

    def problem(self, split: str, task: str) -> tuple[Tensor, lavps.InverseProblem]:
        """Return the images and measurements of a split."""
        config = self.config
        count = config.validation_count if split == "val" else config.test_count
        items = list(range(count))
        data = ImageData.open(
            config.data / f"{config.prior.name}-{split}.tar", self.shape[1:], self.shape[0], cache=False
        )
        x = data.draw(items, items)
        operator = family_from(task, self.shape).draw(items, self.shape, SEEDS[split])
        noise = lavps.GaussianNoise(NOISE)
        return x, lavps.InverseProblem.simulate(x, operator, noise, SEEDS[split], items)

    def scores(self, x: Tensor, problem: lavps.InverseProblem, samples: Tensor) -> Record:
        """Return the scores of samples (N, S, C, H, W), one value per image."""
        found = {
            "lpips": self.lpips(samples[:, 0], x),
            "crps": crps(samples, x),
            "chi_square": problem.chi_square(samples[:, 0]),
        }
        return {name: [round(float(v), 5) for v in values] for name, values in found.items()}

    def measure(self, task: str, name: str) -> Record:
        """Tune a sampler of another library and run it on the test images; ours are run as they are."""
        x, problem = self.problem("test", task)
        chosen: Values = {}
        if name in self.ours:
            posterior = self.ours[name].sample(problem, self.config.samples, seed=SEEDS["test"])
            assert posterior.samples is not None
            samples, forwards = posterior.samples, posterior.trace.forwards
        else:
            chosen = self.tuned(task, name)
            counted = CountingPrior(self.prior)
            parts = [
                self.draw(PEERS[name], counted, problem, chosen, seed) for seed in range(self.config.samples)
            ]
            samples = torch.stack(parts, dim=1)
            forwards = counted.forwards / (len(x) * self.config.samples)
        record = {"task": task, "name": name, "forwards": forwards, "settings": chosen, "images": len(x)}
        record |= {"trials": self.config.trials, "validation": self.config.validation_count}
        print(task, name, chosen, flush=True)
        return record | {"samples": self.config.samples} | self.scores(x, problem, samples)

    def tuned(self, task: str, name: str) -> Values:
        """Return the fields with the lowest sum of LPIPS and CRPS on the validation images."""
        (x, problem), peer = self.problem("val", task), PEERS[name]
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
        study.enqueue_trial(peer.defaults)

        def loss(trial: optuna.Trial) -> float:
            values = {name: trial.suggest_float(name, *ends, log=True) for name, ends in peer.space.items()}
            parts = [self.draw(peer, self.prior, problem, values, seed) for seed in range(2)]
            found = self.scores(x, problem, torch.stack(parts, dim=1))
            return fmean(found["lpips"]) + fmean(found["crps"])

        study.optimize(loss, n_trials=self.config.trials)
        return {field: float(f"{value:.3g}") for field, value in study.best_params.items()}

    def draw(
        self, peer: Peer, prior: lavps.Prior, problem: lavps.InverseProblem, values: Values, seed: int
    ) -> Tensor:
        """Draw one sample per item."""
        torch.manual_seed(seed)
        with torch.no_grad():
            return peer.draw(prior, problem, self.config.evaluations, values).detach()


def fields(records: list[Record]) -> dict[str, str]:
    """Return the tables, and the numbers of the prose."""
    tables, firsts = [], []
    for task in dict.fromkeys(r["task"] for r in records):
        here = [r for r in records if r["task"] == task]
        rows = [
            [
                r["name"],
                f"{r['forwards']:g}",
                *(f"{fmean(r[score]):.4f}" for score in ("lpips", "crps")),
                f"{fmean(r['chi_square']):.2f}",
                ", ".join(f"{name.strip('_')} {value}" for name, value in r["settings"].items()) or "-",
            ]
            for r in here
        ]
        head = ["sampler", "evaluations", "LPIPS", "CRPS", "chi²", "fields found by the tuning"]
        tables.append(f"**{TITLES[task]}**\n\n{markdown_table(head, rows)}")
        best = {score: min(here, key=lambda r: fmean(r[score]))["name"] for score in ("lpips", "crps")}
        firsts.append(f"{TITLES[task]}: {best['lpips']} (LPIPS), {best['crps']} (CRPS)")
    first = records[0]
    return {
        "answer": f"First in the mean, {'; '.join(firsts)}.",
        "tables": "\n\n".join(tables),
        "count": str(first["images"]),
        "samples": str(first["samples"]),
        "trials": str(first["trials"]),
        "validation": str(first["validation"]),
    }


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    tyro.cli(Config).run()
