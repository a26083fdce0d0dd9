"""Quality of initializations of the inner problem: objective by time, on three tasks.

    python -m recipes.starts.run --data DATA

The contexts are those of a sampler with K steps on held-out images. The reference solution is the model's prediction
after many whitened gradient steps with fresh noise. All objectives are evaluated under other noise. For the centre box the
error of the mean is reported as well, on measured and on missing pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

import lavps
from lavps.amortization import ContextSource
from lavps.benchmark.figures import matplotlib_figure
from lavps.benchmark.report import markdown_table
from lavps.guidance import Amortized, Linearized
from lavps.minimizers import WhitenedGradient
from lavps.operators.registry import family_from
from lavps.random import NoiseStreams, Purpose
from lavps.training.data import ImageData
from lavps.variational import Context, DiagonalGaussian, Objective

from ..common.labels import TITLES
from ..common.pages import read, span, write_json, write_page
from ..common.study import PRIORS, TASKS

NOISE = lavps.GaussianNoise(0.05)
STARTS = (
    "bridge",
    "bridge, 1 gradient",
    "bridge, 3 gradients",
    "linearized, damped",
    "linearized",
    "model",
    "model, 1 gradient",
)
COLOURS = ("#000000", "#555555", "#999999", "#009E73", "#56B4E9", "#D55E00", "#E69F00")
BINS = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0))


@dataclass(frozen=True)
class Config:
    """Initializations of the inner problem, by time."""

    data: Path = Path("data")
    """Folder of faces64-val.tar."""
    zoo: Path = Path("zoo")
    """Folder of the trained models."""
    pages: Path = Path("benchmarks")
    """Folder of the page."""
    tasks: tuple[str, ...] = TASKS
    """Tasks with an inference model in the zoo."""
    count: int = 96
    """Number of contexts per task."""
    num_steps: int = 50
    """Number of diffusion steps K of the sampler."""
    solve: int = 15
    """Number of gradient steps of the reference solution."""
    batch_size: int = 16
    """Number of contexts per batch."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""


def noise_of(context: Context, items: Sequence[int], seed: int) -> Callable[[int], Tensor]:
    """Return the noise z by its index, a function of (seed, item)."""
    streams = NoiseStreams.from_seed(len(context.x_t), seed, items)
    return lambda index: streams.normal(Purpose.OBJECTIVE, context.x_t.shape[1:], context.x_t, index=index)


def starts(
    prior: lavps.Prior, model: Any, context: Context, items: Sequence[int], solve: int
) -> dict[str, DiagonalGaussian]:
    """Return all initializations of a context, and its solution."""
    objective, descent = Objective(prior, context, noise_of(context, items, 1)), WhitenedGradient()

    def after(q: DiagonalGaussian, steps: int) -> DiagonalGaussian:
        return descent.minimize(objective, q, steps)[0]

    with torch.no_grad():
        warm = model(context)
    found = {
        "bridge": context.bridge,
        "bridge, 1 gradient": after(context.bridge, 1),
        "bridge, 3 gradients": after(context.bridge, 3),
        "linearized, damped": Linearized(data_variance=0.01)(context),
        "linearized": Linearized()(context),
        "model": warm,
        "model, 1 gradient": after(warm, 1),
    }
    return found | {"solved": after(warm, solve)}


def measured(config: Config, task: str) -> list[dict[str, Any]]:
    """Return one record per context: time, excess objective of every initialization, error of its mean."""
    prior = lavps.load_prior(config.zoo / PRIORS["small"])
    model = lavps.load_inference_model(config.zoo / f"{PRIORS['small']}-{task}", prior)
    shape = (3, 64, 64)
    sampler = lavps.MGDM(prior, num_steps=config.num_steps, guidance=Amortized(model, 0))
    source = ContextSource(sampler, family_from(task, shape), NOISE)
    data = ImageData.open(config.data / f"{PRIORS['small']}-val.tar", shape[1:], shape[0], cache=False)
    records: list[dict[str, Any]] = []
    for begin in range(0, config.count, config.batch_size):
        rows = range(begin, min(begin + config.batch_size, config.count))
        items = [-1 - row for row in rows]  # not used in training
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
    """Return means over bins of time."""
    means = []
    for low, high in BINS:
        values = [
            r[quantity][name] for r in records if low <= r["t"] < high and r[quantity][name] is not None
        ]
        means.append(sum(values) / len(values) if values else float("nan"))
    return means


def draw(records: Sequence[dict[str, Any]], tasks: Sequence[str], target: Path) -> None:
    """Draw the excess objective by time, one panel per task."""
    figure = matplotlib_figure(4.4 * len(tasks), 4.2)
    centres = [(low + high) / 2 for low, high in BINS]
    axes = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axis, task in zip(axes, tasks, strict=True):
        own = [r for r in records if r["task"] == task]
        for name, colour in zip(STARTS, COLOURS, strict=True):
            shown = [max(value, 1.0) for value in binned(own, "excess", name)]
            axis.plot(centres, shown, marker="o", ms=4, color=colour, label=name)
        axis.set(xlim=(1, 0), yscale="log", xlabel="time t", title=TITLES[task])
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("excess objective, nats (clipped at 1)")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9
    )
    figure.savefig(target, dpi=130)


def main(config: Config) -> None:
    """Measure, or read what was measured, and write the page."""
    records = (
        read(config.pages, "starts")
        if config.page_only
        else [r for task in config.tasks for r in measured(config, task)]
    )
    write_json(config.pages, "starts", records, indent=None)
    draw(records, config.tasks, config.pages / "starts.png")
    by_task = {task: [r for r in records if r["task"] == task] for task in config.tasks}
    head = ["task", "initialization", *[f"t {low:g} to {high:g}" for low, high in BINS]]
    rows = [
        [TITLES[task], name, *[f"{value:,.0f}" for value in binned(own, "excess", name)]]
        for task, own in by_task.items()
        for name in STARTS
    ]
    offs = [
        [name, where, *[f"{value:.2f}" for value in binned(by_task.get("centre-box", []), quantity, name)]]
        for name in STARTS
        for where, quantity in (("measured", "off_measured"), ("missing", "off_missing"))
    ]
    early = [
        far / near
        for own in by_task.values()
        for far, near in zip(
            binned(own, "excess", "bridge, 3 gradients")[3:], binned(own, "excess", "model")[3:], strict=True
        )
    ]
    write_page(
        config.pages, "starts", count=len(records) // len(config.tasks), steps=config.num_steps, solve=config.solve,
        table=markdown_table(head, rows), box=markdown_table(["initialization", "pixels", *head[2:]], offs), early=span(early),
    )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Config))
