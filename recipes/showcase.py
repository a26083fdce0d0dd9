"""The picture of the front page: real restorations of faces nobody trained on, MGDM and LAVPS at equal cost.

    python recipes/showcase.py --data path/to/data --lpips path/to/lpips_alex.safetensors

Rows are tasks, two faces each: the measurement, a sample of MGDM (whitened gradient) and one of LAVPS for the same number of
denoiser forwards (a backward counts two, a pass of the model its measured share), mean and standard deviation of LAVPS's
samples, the truth. The faces are the first of the test set; nothing is selected.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import tyro
from torch import Tensor

from image_study import TASKS, TITLES, Study
from lavps.evaluation import LPIPS, ImageBatch
from lavps.evaluation.benchmark import Benchmark, Method
from lavps.evaluation.benchmark.figures import matplotlib_figure, seen


@dataclass(frozen=True)
class Config(Study):
    """The picture."""

    tasks: tuple[str, ...] = TASKS
    """Tasks with an inference model in the zoo."""
    faces: int = 2
    """Of every task."""
    num_steps: int = 50
    """K of LAVPS."""
    samples: int = 16
    """Of LAVPS, for mean and standard deviation."""


def draw(config: Config, benchmark: Benchmark, method: Method, samples: int) -> tuple[Any, float]:
    """Posterior of the first test images, and the cost of a sample."""
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
    """The pictures of a task (faces, C, H, W), and what they score."""
    benchmark = config.begin("rivals", task)
    given, rows = benchmark.measurements("test"), slice(0, config.faces)
    ours, cost = draw(
        config, benchmark,
        Method("lavps", num_steps=config.num_steps, gradient_steps_start=0, probe_every=4, r_step=0.5, model=config.model(task)),
        config.samples,
    )  # fmt: skip
    # A step of MGDM with one gradient costs two forwards and a backward.
    equal = max(4, round(cost / 4) + 2)
    theirs, their_cost = draw(config, benchmark, Method("mgdm", num_steps=equal, minimizer="whitened"), 1)
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
        axes[place * config.faces, 0].set_ylabel(TITLES.get(task, task), fontsize=9)
        print(json.dumps(about))
    config.pages.mkdir(parents=True, exist_ok=True)
    figure.savefig(config.pages / "showcase.png", dpi=120)
    (config.pages / "showcase.json").write_text(
        json.dumps([about for _, about in made.values()], indent=1) + "\n"
    )


if __name__ == "__main__":
    main(tyro.cli(Config))
