"""The figure of the front page: three tasks at eight denoiser evaluations per sample.

    python -m recipes.showcase.run --data DATA

Rows are tasks, with one face each: the first of the test set. Columns are the measurement, three samples, the standard
deviation of sixteen samples, and the truth. All tasks use the same schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

import tyro
from torch import Tensor

from lavps.benchmark.figures import matplotlib_figure, seen
from lavps.benchmark.models import Precision
from lavps.samplers import TunedPIR

from ..common.labels import TITLES
from ..common.pages import write_json
from ..common.study import TASKS, Study


@dataclass(frozen=True)
class Config(Study):
    """Settings of the figure."""

    prior_name: str = "synthfaces64"
    precision: Precision = "fp32"
    validation_count: int = 1
    test_count: int = 3
    tasks: tuple[str, ...] = TASKS
    """Tasks."""
    evaluations: int = 8
    """Number of denoiser evaluations."""
    samples: int = 16
    """Number of samples for the standard deviation."""
    shown: int = 3
    """Number of samples in the figure."""


def panels(config: Config, task: str, row: int) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Return the images of a task by title, and what was sampled."""
    benchmark = config.begin("showcase", task)
    given = benchmark.measurements("test")
    problem, items = given.problem(slice(row, row + 1), config.device), list(given.items[row : row + 1])
    sampler = TunedPIR.universal(config.models(benchmark).prior, config.evaluations)
    posterior = sampler.sample(problem, config.samples, seed=0, items=items, batch_size=config.batch_size)
    assert posterior.samples is not None
    drawn = {f"sample {n + 1}": posterior.samples[0, n] for n in range(config.shown)}
    panels = {"measurement": seen(problem)[0]} | drawn
    panels |= {"standard deviation": posterior.std[0].mean(0, keepdim=True)}
    panels |= {"truth": given.images[slice(row, row + 1)].to_tensor()[0]}
    about = {"task": task, "file": given.files[row], "forwards": posterior.trace.forwards}
    return panels, about | {"chi_square": float(problem.chi_square(posterior.samples[:, 0]))}


def main(config: Config) -> None:
    """Draw the figure."""
    made = [panels(config, task, row) for row, task in enumerate(config.tasks)]
    names = list(made[0][0])
    figure = matplotlib_figure(1.5 * len(names) + 0.3, 1.5 * len(made) + 0.4)
    axes = figure.subplots(len(made), len(names), squeeze=False)
    for row, (images, about) in zip(axes, made, strict=True):
        for axis, name in zip(row, names, strict=True):
            axis.set_xticks([])
            axis.set_yticks([])
            image = images[name]
            if len(image) == 1:
                axis.imshow(image[0].numpy(), cmap="magma", vmin=0, vmax=0.35, interpolation="nearest")
            else:
                axis.imshow(((image.clamp(-1, 1) + 1) / 2).permute(1, 2, 0).numpy(), interpolation="nearest")
        row[0].set_ylabel(TITLES[str(about["task"])], fontsize=9)
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(name, fontsize=9)
    config.pages.mkdir(parents=True, exist_ok=True)
    figure.savefig(config.pages / "showcase.png", dpi=150)
    write_json(config.pages, "showcase", [about for _, about in made])


if __name__ == "__main__":
    main(tyro.cli(Config))
