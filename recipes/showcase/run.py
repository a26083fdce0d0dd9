"""The figure of the front page: restorations of test images by MGDM and LAVPS at the same cost.

    python -m recipes.showcase.run --data DATA --lpips FILE

Rows are tasks, two faces each. Columns are the measurement, a sample of MGDM (whitened gradient), a sample of LAVPS with
the same NFE, the mean and the standard deviation of LAVPS samples, and the truth. The faces are the first of the test set.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import tyro
from torch import Tensor

from lavps.benchmark import Benchmark
from lavps.benchmark.figures import matplotlib_figure, seen
from lavps.evaluation import LPIPS, ImageBatch
from lavps.guidance import Amortized, Gradient, Linearized, switch
from lavps.minimizers import WhitenedGradient
from lavps.samplers import Settings, Unbound

from ..common.labels import TITLES
from ..common.pages import write_json
from ..common.study import TASKS, Study
from ..common.table import mgdm


@dataclass(frozen=True)
class Config(Study):
    """Settings of the figure."""

    tasks: tuple[str, ...] = TASKS
    """Tasks with an inference model in the zoo."""
    faces: int = 2
    """Number of faces per task."""
    num_steps: int = 50
    """Number of diffusion steps K of LAVPS."""
    samples: int = 16
    """Number of LAVPS samples for mean and standard deviation."""


def draw(config: Config, benchmark: Benchmark, method: Settings, samples: int) -> tuple[Any, float]:
    """Return the posterior of the first test images, and the cost of a sample."""
    models, given, rows = (
        benchmark.models(config.device),
        benchmark.measurements("test"),
        slice(0, config.faces),
    )
    problem = given.problem(rows, config.device, True)
    items = list(given.items[rows])
    posterior = models.sampler(method).sample(
        problem, samples, seed=0, items=items, batch_size=config.batch_size
    )
    price, trace = benchmark.prices(method, models, given), posterior.trace
    counts = {name: getattr(trace, name) for name in ("forwards", "backwards", "model_forwards")}
    return posterior, price.cost([counts])


def columns(config: Config, task: str, lpips: LPIPS) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the images of a task (faces, C, H, W), and their scores."""
    benchmark = config.begin("baselines", task)
    given, rows = benchmark.measurements("test"), slice(0, config.faces)
    guidance = switch(Amortized(Unbound(config.model(task)), 0, safeguard_every=4), Linearized(), at=0.5)
    ours, cost = draw(config, benchmark, mgdm(config.num_steps, guidance), config.samples)
    # A step of MGDM with one gradient costs two forwards and a backward.
    equal = max(4, round(cost / 4) + 2)
    theirs, their_cost = draw(config, benchmark, mgdm(equal, Gradient(1, WhitenedGradient())), 1)
    truth = given.images[rows]
    pictures = {
        "measurement": seen(given.problem(rows, config.device, True)),
        "MGDM": theirs.samples[:, 0],
        "LAVPS": ours.samples[:, 0],
        "mean": ours.mean,
        "uncertainty": ours.std.mean(1, keepdim=True),
        "truth": truth.to_tensor(),
    }
    scores = {
        name: lpips(ImageBatch.from_tensor(pictures[name].clamp(-1, 1)), truth).tolist()
        for name in ("MGDM", "LAVPS")
    }
    about = {
        "task": task,
        "lpips": scores,
        "cost": {"LAVPS": cost, "MGDM": their_cost},
        "num_steps": {"LAVPS": config.num_steps, "MGDM": equal},
    }
    return pictures, about


def main(config: Config) -> None:
    lpips = LPIPS.load(config.lpips, config.device)
    made = {task: columns(config, task, lpips) for task in config.tasks}
    names = list(next(iter(made.values()))[0])
    figure = matplotlib_figure(1.5 * len(names) + 0.3, 1.5 * config.faces * len(made) + 0.4)
    axes = figure.subplots(config.faces * len(made), len(names), squeeze=False)
    for place, (task, (pictures, about)) in enumerate(made.items()):
        for name, column in zip(
            names, axes[place * config.faces : (place + 1) * config.faces].T, strict=True
        ):
            for axis, image in zip(column, pictures[name], strict=True):
                axis.set_xticks([])
                axis.set_yticks([])
                if name == "uncertainty":
                    axis.imshow(image[0].numpy(), cmap="magma", vmin=0, vmax=0.35, interpolation="nearest")
                else:
                    axis.imshow(
                        ((image.clamp(-1, 1) + 1) / 2).permute(1, 2, 0).numpy(), interpolation="nearest"
                    )
            if place == 0:
                column[0].set_title(name, fontsize=10)
        axes[place * config.faces, 0].set_ylabel(TITLES[task], fontsize=9)
        print(json.dumps(about))
    config.pages.mkdir(parents=True, exist_ok=True)
    figure.savefig(config.pages / "showcase.png", dpi=120)
    write_json(config.pages, "showcase", [about for _, about in made.values()])


if __name__ == "__main__":
    main(tyro.cli(Config))
