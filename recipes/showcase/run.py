"""The figure and the animation of the front page: three tasks, and the samples of the first task as they emerge.

    python -m recipes.showcase.run --data DATA

Rows of the figure are tasks, with one face each: the first of the test set. Columns are the measurement, three samples, the
standard deviation of sixteen samples, and the truth. The animation has the same columns without the standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import tyro
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from lavps import InverseProblem
from lavps.benchmark.figures import matplotlib_figure, seen
from lavps.benchmark.models import Precision
from lavps.samplers import WienerPIR

from ..common.labels import TITLES
from ..common.pages import write_json
from ..common.study import TASKS, Study


@dataclass(frozen=True)
class Config(Study):
    """Settings of the figure."""

    precision: Precision = "fp32"
    validation_count: int = 1
    test_count: int = 3
    tasks: tuple[str, ...] = TASKS
    """Tasks."""
    evaluations: int = 25
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
    sampler = WienerPIR(config.models(benchmark).prior, num_steps=config.evaluations)
    posterior = sampler.sample(problem, config.samples, seed=0, items=items, batch_size=config.batch_size)
    assert posterior.samples is not None
    drawn = {f"sample {n + 1}": posterior.samples[0, n] for n in range(config.shown)}
    panels = {"measurement": seen(problem)[0]} | drawn
    panels |= {"standard deviation": posterior.std[0].mean(0, keepdim=True)}
    panels |= {"truth": given.images[slice(row, row + 1)].to_tensor()[0]}
    about = {"task": task, "file": given.files[row], "forwards": posterior.trace.forwards}
    return panels, about | {"chi_square": float(problem.chi_square(posterior.samples[:, 0]))}


def frame(images: list[Tensor], side: int = 128, gap: int = 4) -> Image.Image:
    """Return images (C, H, W) in a row."""
    row = Image.new("RGB", (len(images) * (side + gap) - gap, side), "white")
    for number, image in enumerate(images):
        pixels = interpolate(image[None].clamp(-1, 1), size=(side, side))[0].add(1).mul(127.5).round().byte()
        row.paste(Image.fromarray(pixels.permute(1, 2, 0).numpy()), (number * (side + gap), 0))
    return row


def animation(config: Config, problem: InverseProblem, item: int, truth: Tensor) -> list[Image.Image]:
    """Return one frame per step: the measurement, the noisy iterates and at last the samples, the truth."""
    prior = config.models(config.begin("showcase", config.tasks[0])).prior
    torch.manual_seed(0)
    noise = torch.randn(config.shown, *truth.shape)
    left, frames = seen(problem)[0], [frame([seen(problem)[0], *noise, truth])]
    steps = WienerPIR(prior, num_steps=config.evaluations).iterate(
        problem, config.shown, seed=0, items=[item]
    )
    states = [(step.progress.state or {"x_t": step.x_0})["x_t"] for step in steps]
    return frames + [frame([left, *state, truth]) for state in states]


def main(config: Config) -> None:
    """Draw the figure and the animation."""
    given = config.begin("showcase", config.tasks[0]).measurements("test")
    problem, truth = given.problem(slice(0, 1), config.device), given.images[slice(0, 1)].to_tensor()[0]
    frames = animation(config, problem, given.items[0], truth)
    durations = [120] * (len(frames) - 1) + [2500]
    config.pages.mkdir(parents=True, exist_ok=True)
    file = config.pages / "showcase.webp"
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=80)
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
    figure.savefig(config.pages / "showcase.png", dpi=150)
    write_json(config.pages, "showcase", [about for _, about in made])


if __name__ == "__main__":
    main(tyro.cli(Config))
