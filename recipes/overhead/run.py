"""Overhead of the samplers: their CPU time relative to the same evaluations of the network alone.

    python -m recipes.overhead.run          # about ten minutes on one core

Every step of a sampler is followed by the same number of evaluations of the network (forward, or forward and gradient in the
input), so that other load on the machine affects both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

import lavps
from lavps.benchmark.report import markdown_table
from lavps.operators.registry import family_from
from lavps.priors.precision import Precision
from lavps.samplers import FewStep, Sampler

from ..common.labels import TITLES
from ..common.pages import read, span, versions_of, write_json, write_page
from ..common.study import TASKS

STUDY = "overhead"
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


@dataclass(frozen=True)
class Config:
    """Settings of the measurement."""

    pages: Path = Path("benchmarks")
    """Folder of the page and its numbers."""
    prior: Path = Path("zoo/synthfaces64")
    """Folder of the prior; its few-step model is beside it, with -4steps in its name."""
    tasks: tuple[str, ...] = TASKS
    """Tasks."""
    batches: tuple[int, ...] = (1, 16)
    """Batch sizes."""
    images: int = 16
    """Number of images of every sampler, task and batch size."""
    precision: Precision = "fp32"
    """Precision of the network."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without measuring."""

    def run(self) -> None:
        """Measure, or read what was measured, and write the page."""
        torch.set_num_threads(1)
        data = read(self.pages, STUDY) if self.page_only else self.measure()
        write_json(self.pages, STUDY, data)
        rows = [
            [r["sampler"], TITLES[r["task"]], str(r["batch"]), f"{r['seconds']:.2f}", f"{r['ratio']:.3f}",
             f"{r['forwards']:.0f}", f"{r['backwards']:.0f}"]
            for r in data["results"]
        ]  # fmt: skip
        head = [
            "sampler",
            "task",
            "batch",
            "CPU seconds per image",
            "ratio",
            "forward passes",
            "backward passes",
        ]
        precisions = [
            [str(r["batch"]), *(f"{r[name]:.3f}" for name in PRECISIONS), f"{r['bf16'] / r['fp32']:.2f}"]
            for r in data["networks"]
        ]
        ratios: dict[str, list[float]] = {}
        for r in data["results"]:
            what = "a reflecting blur" if r["task"] == "motion-blur" else "block means and masks"
            ratios.setdefault(f"{what} at batch {r['batch']}", []).append(r["ratio"])
        write_page(
            self.pages,
            STUDY,
            versions=versions_of(data),
            precision=data["precision"],
            images=data["images"],
            table=markdown_table(head, rows),
            precisions=markdown_table(
                ["batch", *(f"{name}, seconds" for name in PRECISIONS), "ratio"], precisions
            ),
            processor="with AMX" if data["amx"] else "without AMX, the matrix instructions for bf16",
            answer="; ".join(f"{name}: {span(found, 2)}" for name, found in ratios.items()),
        )

    def measure(self) -> dict[str, Any]:
        """Run every sampler on every task."""
        prior: Any = lavps.load_prior(self.prior, precision=self.precision)
        model = lavps.load_few_step(f"{self.prior}-4steps", prior)
        samplers = {
            "DiffPIR": lavps.DiffPIR(prior, num_steps=8),
            "WienerPIR": lavps.WienerPIR(prior, num_steps=8),
            "TunedPIR (universal)": lavps.TunedPIR.universal(prior, 8),
            "few-step model": FewStep(prior, model),
            "MGDM": lavps.MGDM(prior, num_steps=8),
        }
        sheet = lavps.io.read_image(self.prior / "samples.png").pixels  # samples of the prior, side by side
        height, width = prior.image_shape[1:]
        truth = sheet.unfold(1, height, height).unfold(2, width, width).flatten(1, 2).transpose(0, 1)
        results = [
            asdict(self.timed(name, sampler, prior, task, truth, batch))
            for task in self.tasks
            for name, sampler in samplers.items()
            for batch in self.batches
        ]
        versions = {"lavps": lavps.__version__, "torch": torch.__version__}
        about = {"versions": versions, "precision": self.precision, "images": self.images}
        return about | {"results": results} | self.networks()

    def networks(self) -> dict[str, Any]:
        """Measure an evaluation of the network alone in both precisions, in turns."""
        priors: dict[str, Any] = {name: lavps.load_prior(self.prior, precision=name) for name in PRECISIONS}
        shape = tuple(priors["fp32"].image_shape)
        found = []
        for batch in self.batches:
            x = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0))
            seconds, turns = dict.fromkeys(PRECISIONS, 0.0), max(self.images // batch, 4)
            for prior in priors.values():  # the first evaluation prepares the network
                passes(prior.denoise, x, 0, 1)
            for _, (name, prior) in product(range(turns), priors.items()):
                start = time.process_time()
                passes(prior.denoise, x, 0, 1)
                seconds[name] += time.process_time() - start
            found.append({"batch": batch} | {name: v / (turns * batch) for name, v in seconds.items()})
        cpu = Path("/proc/cpuinfo")
        return {"networks": found, "amx": cpu.exists() and "amx_bf16" in cpu.read_text()}

    def timed(self, name: str, sampler: Sampler, prior: Any, task: str, truth: Tensor, batch: int) -> Result:
        """Alternate steps of a sampler and the same evaluations of its network."""
        shape = tuple(prior.image_shape)
        network = (
            model.prior if isinstance(model := getattr(sampler, "model", None), lavps.FewStepModel) else prior
        )
        x = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0))
        passes(network.denoise, x, 1, 1)
        ours = bare = forwards = backwards = 0.0
        for first in range(0, self.images, batch):
            items = list(range(first, first + batch))
            operator = family_from(task, shape).draw(items, shape, 0)
            problem = lavps.InverseProblem.simulate(
                truth[items], operator, lavps.GaussianNoise(0.05), 0, items
            )
            steps = sampler.iterate(problem, seed=0, items=items)
            for _ in range(sampler.total_steps):
                start = time.process_time()
                step = next(steps)
                middle = time.process_time()
                passes(network.denoise, x, int(step.backwards), int(step.forwards - step.backwards))
                ours, bare = ours + middle - start, bare + time.process_time() - middle
                forwards, backwards = forwards + step.forwards, backwards + step.backwards
        runs = self.images / batch
        found = Result(name, task, batch, ours / self.images, ours / bare, forwards / runs, backwards / runs)
        print(found, flush=True)
        return found


@dataclass(frozen=True)
class Result:
    """Time per image, its ratio to that of the network alone, and passes per sample."""

    sampler: str
    task: str
    batch: int
    seconds: float
    ratio: float
    forwards: float
    backwards: float


def passes(denoise: Callable[[Tensor, Tensor], Tensor], x: Tensor, with_gradient: int, without: int) -> None:
    """Evaluate the denoiser, some times with its gradient."""
    t = torch.tensor(0.5, dtype=torch.float64)
    for _ in range(with_gradient):
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            output = denoise(leaf, t)
        torch.autograd.grad(output, leaf, x)
    with torch.no_grad():
        for _ in range(without):
            denoise(x, t)


if __name__ == "__main__":
    tyro.cli(Config).run()
