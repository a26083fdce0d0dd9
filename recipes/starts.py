"""How near to the solution of the inner problem does every start begin? The objective by time, on three tasks.

    python recipes/starts.py --data path/to/data

Contexts as a sampler of K steps meets them, from held-out images. "Solved" is the model's start after many whitened
gradients with fresh noise; all are compared with it under noise that none of them was fitted to. For the centre box also how far
the mean is off, in units of the bridge's spread, where the image was measured and where it was not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

import lavps
from image_study import PRIORS, TASKS, TITLES
from lavps.amortization import ContextSource
from lavps.amortization.data import ImageData
from lavps.evaluation.benchmark.figures import matplotlib_figure
from lavps.evaluation.benchmark.report import markdown_table
from lavps.minimizers import WhitenedGradient
from lavps.operators.named import family_from
from lavps.random import NoiseStreams, Purpose
from lavps.variational import Context, DiagonalGaussian, Objective

HERE = Path(__file__).parent
NOISE = lavps.GaussianNoise(0.05)
STARTS = (
    "bridge",
    "bridge, 1 gradient",
    "bridge, 3 gradients",
    "gentle step",
    "likelihood step",
    "model",
    "model, 1 gradient",
)
COLOURS = ("#000000", "#555555", "#999999", "#009E73", "#56B4E9", "#D55E00", "#E69F00")
BINS = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0))


@dataclass(frozen=True)
class Config:
    """Starts of the inner problem, by time."""

    data: Path = Path("data")
    """Folder of faces64-val.tar."""
    zoo: Path = Path("zoo")
    """Folder of the trained models."""
    pages: Path = Path("benchmarks")
    """Folder of the page."""
    tasks: tuple[str, ...] = TASKS
    """Tasks with an inference model in the zoo."""
    count: int = 96
    """Contexts of every task."""
    num_steps: int = 50
    """K of the sampler that meets them."""
    solve: int = 15
    """Gradients until the problem counts as solved."""
    batch_size: int = 16
    """Contexts at a time."""


def noise_of(context: Context, items: Sequence[int], seed: int) -> Callable[[int], Tensor]:
    """z number g, a function of (seed, item)."""
    streams = NoiseStreams.of(len(context.x_t), seed, items)
    return lambda index: streams.normal(Purpose.OBJECTIVE, context.x_t.shape[1:], context.x_t, index=index)


def starts(
    prior: lavps.Prior, model: Any, context: Context, items: Sequence[int], solve: int
) -> dict[str, DiagonalGaussian]:
    """All starts of a context, and its solution."""
    objective, descent = Objective(prior, context, noise_of(context, items, 1)), WhitenedGradient()

    def after(q: DiagonalGaussian, steps: int) -> DiagonalGaussian:
        return descent.minimize(objective, q, steps)[0]

    with torch.no_grad():
        warm = model(context)
    found = {
        "bridge": context.bridge,
        "bridge, 1 gradient": after(context.bridge, 1),
        "bridge, 3 gradients": after(context.bridge, 3),
        "gentle step": lavps.LikelihoodStep.gentle()(context),
        "likelihood step": lavps.LikelihoodStep()(context),
        "model": warm,
        "model, 1 gradient": after(warm, 1),
    }
    return found | {"solved": after(warm, solve)}


def measured(config: Config, task: str) -> list[dict[str, Any]]:
    """A record a context: its time, the excess of every start over the solution, and how far its mean is off."""
    prior = lavps.load_prior(config.zoo / PRIORS["small"])
    model = lavps.load_inference_model(config.zoo / f"{PRIORS['small']}-{task}", prior)
    shape = (3, 64, 64)
    sampler = lavps.MGDM(prior, num_steps=config.num_steps)
    source = ContextSource(sampler, family_from(task, shape), NOISE, step_counts=(config.num_steps,))
    data = ImageData.open(config.data / f"{PRIORS['small']}-val.tar", shape[1:], shape[0], cache=False)
    records: list[dict[str, Any]] = []
    for begin in range(0, config.count, config.batch_size):
        rows = range(begin, min(begin + config.batch_size, config.count))
        items = [-1 - row for row in rows]  # never met in training
        images = torch.stack([data[row] for row in rows])
        with torch.autocast("cpu", torch.bfloat16):
            context = source.draw(images, items)
            found = starts(prior, model, context, items, config.solve)
            judge = Objective(prior, context, noise_of(context, items, 2))
            with torch.no_grad():
                losses = {name: judge.evaluate(q).loss for name, q in found.items()}
        spread = context.bridge.log_std.exp()
        seen = context.problem.operator.adjoint(torch.ones_like(context.problem.y)) > 0
        for row in range(len(rows)):
            off = {name: ((q.mean - found["solved"].mean) / spread)[row] for name, q in found.items()}
            records.append(
                {
                    "task": task,
                    "t": float(context.t[row]),
                    "excess": {name: float(losses[name][row] - losses["solved"][row]) for name in STARTS},
                    "off_measured": {name: _rms(off[name][seen[row]]) for name in STARTS},
                    "off_missing": {name: _rms(off[name][~seen[row]]) for name in STARTS},
                }
            )
        print(f"{task}: {len(records)} of {config.count}", flush=True)
    return records


def _rms(values: Tensor) -> float | None:
    return float(values.square().mean().sqrt()) if len(values) else None


def binned(records: Sequence[dict[str, Any]], quantity: str, name: str) -> list[float]:
    """Means over bins of time."""
    means = []
    for low, high in BINS:
        values = [
            r[quantity][name] for r in records if low <= r["t"] < high and r[quantity][name] is not None
        ]
        means.append(sum(values) / len(values) if values else float("nan"))
    return means


def draw(records: Sequence[dict[str, Any]], tasks: Sequence[str], target: Path) -> None:
    """Excess by time, a panel a task."""
    figure = matplotlib_figure(4.4 * len(tasks), 4.2)
    centres = [(low + high) / 2 for low, high in BINS]
    axes = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axis, task in zip(axes, tasks, strict=True):
        own = [r for r in records if r["task"] == task]
        for name, colour in zip(STARTS, COLOURS, strict=True):
            shown = [max(value, 1.0) for value in binned(own, "excess", name)]
            axis.plot(centres, shown, marker="o", ms=4, color=colour, label=name)
        axis.set(xlim=(1, 0), yscale="log", xlabel="time t", title=TITLES.get(task, task))
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("objective above the solution's, nats (at least 1)")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9
    )
    figure.savefig(target, dpi=130)


def main(config: Config) -> None:
    records = [record for task in config.tasks for record in measured(config, task)]
    config.pages.mkdir(parents=True, exist_ok=True)
    (config.pages / "starts.json").write_text(json.dumps(records) + "\n")
    draw(records, config.tasks, config.pages / "starts.png")
    head = ["task", "start", *[f"t {low:g} to {high:g}" for low, high in BINS]]
    rows = []
    for task in config.tasks:
        own = [r for r in records if r["task"] == task]
        rows += [
            [TITLES.get(task, task), name, *[f"{value:,.0f}" for value in binned(own, "excess", name)]]
            for name in STARTS
        ]
    box = [r for r in records if r["task"] == "centre-box"]
    offs = [
        [name, where, *[f"{value:.2f}" for value in binned(box, quantity, name)]]
        for name in STARTS
        for where, quantity in (("measured", "off_measured"), ("missing", "off_missing"))
    ]
    page = (HERE / "starts_page.md").read_text()
    page = page.format(
        count=config.count, steps=config.num_steps, solve=config.solve, table=markdown_table(head, rows),
        box=markdown_table(["start", "pixels", *head[2:]], offs),
    )  # fmt: skip
    (config.pages / "starts.md").write_text(page)
    print(config.pages / "starts.md")


if __name__ == "__main__":
    main(tyro.cli(Config))
