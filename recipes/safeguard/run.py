"""Does the safeguard of a few-step model reject what it should, and nothing else?

python -m recipes.safeguard.run --data DATA --lpips FILE
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
import tyro
from torch import Tensor

import lavps
from lavps.benchmark.figures import matplotlib_figure
from lavps.benchmark.report import markdown_table
from lavps.evaluation import LPIPS
from lavps.operators.registry import family_from
from lavps.priors import CountingPrior
from lavps.random import NoiseStreams
from lavps.samplers.base import Run
from lavps.samplers.few_step import JudgedModel
from lavps.training.crops import RandomCrops
from lavps.training.data import ImageData

from ..common.labels import TITLES
from ..common.pages import read, write_json, write_page

Record = dict[str, Any]
Images = Literal["faces", "faces upside down", "photographs"]
STUDY, SEED = "safeguard", 1
DAMAGES = (0.2, 0.4, 0.8)


@dataclass(frozen=True)
class Setting:
    """A task, its images, and the damage of the model's weights."""

    task: str
    noise: float = 0.05
    images: Images = "faces"
    true_noise: float | None = None
    damage: float = 0.0

    @property
    def title(self) -> str:
        """Words for the page."""
        words = [TITLES.get(self.task, self.task)]
        if self.noise != 0.05:
            words.append(f"noise {self.noise}")
        if self.true_noise is not None:
            words.append(f"true noise {self.true_noise}, stated {self.noise}")
        if self.images != "faces":
            words.append(self.images)
        if self.damage:
            words.append(f"weights damaged by {self.damage}")
        return ", ".join(words)


SETTINGS = {
    "as in the training": (Setting("sr4"), Setting("motion-blur"), Setting("centre-box")),
    "another operator": (Setting("random-motion-blur-hard"), Setting("sr16"), Setting("half-pixels")),
    "another noise": (
        Setting("sr4", noise=0.5),
        Setting("motion-blur", noise=0.001),
        Setting("sr4", true_noise=0.2),
    ),
    "other images": (
        Setting("sr4", images="photographs"),
        Setting("centre-box", images="photographs"),
        Setting("centre-box", images="faces upside down"),
    ),
    "a damaged model": tuple(
        Setting(task, damage=damage) for damage in DAMAGES for task in ("sr4", "motion-blur", "centre-box")
    ),
}


@dataclass(frozen=True)
class Config:
    """Input, size and output of the study."""

    data: Path = Path("data")
    """Folder of synthfaces64-test.tar and photos64-test.tar."""
    lpips: Path | None = None
    """File of the LPIPS weights; the default is the environment variable LAVPS_LPIPS."""
    prior: Path = Path("zoo/synthfaces64")
    """Folder of the prior."""
    work: Path = Path("runs/studies/safeguard")
    """Folder of decoded photographs."""
    pages: Path = Path("benchmarks")
    """Folder of the page."""
    count: int = 24
    """Number of test images of every setting."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""

    def run(self) -> None:
        """Measure what is missing, and write the page."""
        records: list[Record] = read(self.pages, STUDY, [])
        if not self.page_only:
            study = Study(self)
            for group, settings in SETTINGS.items():
                for setting in settings:
                    if any(r["setting"] == setting.title and r["images"] == self.count for r in records):
                        continue
                    records = [r for r in records if r["setting"] != setting.title]
                    records.append({"group": group} | study.measure(setting))
                    write_json(self.pages, STUDY, records, indent=None)
                    print(setting.title, flush=True)
        draw(records, self.pages / f"{STUDY}.png")
        write_page(self.pages, STUDY, **fields(read(self.pages, STUDY)))


class Study:
    """Prior, model and images."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.prior = lavps.load_prior(config.prior)
        self.model = lavps.load_few_step(f"{config.prior}-4steps", self.prior)
        self.lpips = LPIPS.load(config.lpips, "cpu")
        self.items = list(range(config.count))
        self.size = tuple(self.prior.image_shape)[1:]  # type: ignore[attr-defined]

    @cached_property
    def faces(self) -> Tensor:
        """Test faces."""
        data = ImageData.open(
            self.config.data / f"{self.config.prior.name}-test.tar", self.size, 3, cache=False
        )
        return data.draw(self.items, self.items)

    def images(self, kind: Images) -> Tensor:
        """Return the images of a setting."""
        if kind == "photographs":
            data = RandomCrops.open(
                self.config.data / "photos64-test.tar", self.size, 3, cache=self.config.work
            )
            return data.draw(self.items, self.items)
        return self.faces.flip(2) if kind == "faces upside down" else self.faces

    def damaged(self, scale: float) -> lavps.FewStepModel:
        """Return the model with noise on its weights, relative to the spread of each tensor."""
        denoiser = copy.deepcopy(self.model.prior)
        generator = torch.Generator().manual_seed(SEED)
        with torch.no_grad():
            for weight in denoiser.network.parameters():  # type: ignore[attr-defined]
                weight.add_(scale * weight.std(correction=0) * torch.randn(weight.shape, generator=generator))
        return replace(self.model, prior=denoiser)

    @torch.no_grad()
    def measure(self, setting: Setting) -> Record:
        """Return LPIPS of model, safeguarded model and prior for each image, and the residuals of the model."""
        x, shape = self.images(setting.images), (3, *self.size)
        operator = family_from(setting.task, shape).draw(self.items, shape, SEED)
        true = lavps.GaussianNoise(setting.true_noise or setting.noise)
        y = lavps.InverseProblem.simulate(x, operator, true, SEED, self.items).y
        problem = lavps.InverseProblem(y, operator, lavps.GaussianNoise(setting.noise))
        model = self.damaged(setting.damage) if setting.damage else self.model
        run = Run(CountingPrior(self.prior), problem, NoiseStreams.from_seed(len(x), SEED, self.items))
        judged = JudgedModel(run, model)
        *_, last = model.sampler_for(self.prior).steps(replace(run, prior=judged))
        samples = {"model": last.x_0}
        guarded = lavps.FewStep(self.prior, model).sample(problem, seed=SEED, items=self.items)
        plain = lavps.TunedPIR.universal(self.prior, len(model.limits)).sample(
            problem, seed=SEED, items=self.items
        )
        for name, posterior in (("safeguarded", guarded), ("prior", plain)):
            assert posterior.samples is not None
            samples[name] = posterior.samples[:, 0]
        relative = torch.stack([p / limit for p, limit in zip(judged.powers, model.limits, strict=True)])
        found = {name: self.lpips(sample, x).tolist() for name, sample in samples.items()}
        rounded = {name: [round(value, 5) for value in values] for name, values in found.items()}
        largest = [round(value, 4) for value in relative.amax(0).tolist()]
        return {"setting": setting.title, "images": len(x), "power": largest} | rounded


def points(records: list[Record]) -> tuple[list[float], list[bool]]:
    """Return, for all images, the largest power over its limit, and whether the model is worse than the prior."""
    powers = [power for record in records for power in record["power"]]
    worse = [a > b for record in records for a, b in zip(record["model"], record["prior"], strict=True)]
    return powers, worse


def curve(records: list[Record]) -> list[tuple[float, float]]:
    """Return the shares of rejected images among those where the model is better, and where it is worse."""
    powers, worse = points(records)
    bad = max(sum(worse), 1)
    good = max(len(worse) - sum(worse), 1)
    found = [(0.0, 0.0)]
    for limit in sorted(set(powers), reverse=True):
        rejected = [power >= limit for power in powers]
        false = sum(r and not w for r, w in zip(rejected, worse, strict=True)) / good
        found.append((false, sum(r and w for r, w in zip(rejected, worse, strict=True)) / bad))
    return found


def area(records: list[Record]) -> float:
    """Return the area under the curve."""
    found = curve(records)
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(found))


def draw(records: list[Record], file: Path) -> None:
    """Draw the curve of all images, with the limits of the model marked."""
    figure = matplotlib_figure(4.2, 4.0)
    axis = figure.subplots()
    x, y = zip(*curve(records), strict=True)
    axis.plot([0, 1], [0, 1], color="#BBBBBB", lw=1, ls="--")
    axis.plot(x, y, color="#0072B2", lw=2)
    powers, worse = points(records)
    rates = [
        sum(p > 1 for p, w in zip(powers, worse, strict=True) if w == kind) / max(worse.count(kind), 1)
        for kind in (False, True)
    ]
    axis.plot(*rates, "o", color="#D55E00", label="limits of the model")
    axis.set_xlabel("rejected where the model is better")
    axis.set_ylabel("rejected where the model is worse")
    axis.legend(loc="lower right")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)


def fields(records: list[Record]) -> dict[str, str]:
    """Return the table, and the numbers of the prose."""
    rows = []
    for record in records:
        scores = [f"{fmean(record[name]):.4f}" for name in ("model", "safeguarded", "prior")]
        worse = sum(a > b for a, b in zip(record["model"], record["prior"], strict=True))
        rejected = sum(power > 1 for power in record["power"])
        count = record["images"]
        rows.append(
            [record["group"], record["setting"], *scores, f"{worse} of {count}", f"{rejected} of {count}"]
        )
    sound = [r for r in records if "damaged" not in r["setting"]]
    behind = [r["setting"] for r in sound if fmean(r["safeguarded"]) > fmean(r["prior"]) + 0.003]
    rejected = sum(power > 1 for r in sound for power in r["power"])
    worse_sound = sum(a > b for r in sound for a, b in zip(r["model"], r["prior"], strict=True))
    damaged = [
        f"{sum(power > 1 for r in found for power in r['power'])} of {sum(r['images'] for r in found)} at {damage}"
        for damage in DAMAGES
        if (found := [r for r in records if r["setting"].endswith(f"damaged by {damage}")])
    ]
    head = ["", "setting", "model", "safeguarded", "prior", "model worse", "rejected"]
    lower = sum(fmean(r["model"]) < fmean(r["prior"]) for r in sound)
    higher = (
        f"higher by more than 0.003 in {len(behind)} ({'; '.join(behind)})" if behind else "level elsewhere"
    )
    return {
        "table": markdown_table(head, rows),
        "answer": f"It detects gross failures only. Of the undamaged model's samples, {rejected} of {sum(r['images'] for r in sound)} were rejected, with "
        f"unseen operators, noise levels and images among them; {worse_sound} of them are worse than the prior's. The model's LPIPS is lower than the prior's in {lower} of {len(sound)} "
        f"settings, and {higher}. Of models with damaged weights only the worst were rejected: {', '.join(damaged)}.",
        "area": f"{area(records):.2f}",
        "sound_area": f"{area(sound):.2f}",
        "count": str(records[0]["images"]),
    }


if __name__ == "__main__":
    tyro.cli(Config).run()
