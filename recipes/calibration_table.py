"""Posterior intervals on real images against the truth: coverage, and what a sample, the mean and the spread look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from image_study import TITLES
from image_table import Table, figures
from lavps.evaluation import ImageBatch, crps, pixel_coverage, psnr
from lavps.evaluation.benchmark import Benchmark, Method
from lavps.evaluation.benchmark.figures import image_grid, seen
from lavps.evaluation.benchmark.report import markdown_table

SHOWN = 4  # images


@dataclass(frozen=True)
class Calibration(Table):
    """Posterior intervals of pixels against the truth."""

    count: int = 12
    samples: int = 8
    """Of every image."""

    @property
    def levels(self) -> tuple[float, ...]:
        """Those of intervals between samples: N samples divide the line into N + 1 parts, of which these are the middle ones."""
        return tuple((self.samples - left) / (self.samples + 1) for left in (3, 1))

    def methods(self, task: str) -> dict[str, Method]:
        """What is judged."""
        then = {"gradient_steps_start": 0, "probe_every": 4, "r_step": 0.5}
        return {
            "MGDM, whitened, K=50": Method("mgdm", num_steps=50, minimizer="whitened"),
            "LAVPS, K=50": Method("lavps", num_steps=50, model=self.model(task), **then),  # type: ignore[arg-type]
        }

    def run(self) -> None:
        """Write image_calibration.md."""
        records = []
        for task in self.tasks:
            benchmark = self.begin("rivals", task)
            given = benchmark.measurements("test")
            columns = {"measurement": seen(given.problem(slice(0, SHOWN)))}
            for name, method in self.methods(task).items():
                draws = self.draws(benchmark, method)
                columns |= self.columns(name.split(",")[0], draws)
                about = {"task": task, "name": name, "method": method.settings()}
                records.append(about | self.calibrate(benchmark, draws))
            columns["truth"] = given.images[slice(0, SHOWN)].to_tensor()
            (self.pages / "image_calibration").mkdir(parents=True, exist_ok=True)
            image_grid(columns).savefig(self.pages / "image_calibration" / f"{task}.png", dpi=130)
        self.page(records)

    def page(self, records: list[dict[str, Any]]) -> None:
        """The table of what was measured."""
        head = ["task", "method", *[f"{level:.1%} interval covers" for level in self.levels]]
        head += ["CRPS", "spread", "error of the mean", "PSNR of a sample", "PSNR of the mean"]
        rows = [
            [r["task"], r["name"], *[f"{c:.1%}" for c in r["coverage"]], f"{r['crps']:.4f}", f"{r['spread']:.4f}",
             f"{r['rmse']:.4f}", f"{r['psnr_sample']:.2f}", f"{r['psnr_mean']:.2f}"]
            for r in records
        ]  # fmt: skip
        self.publish(
            "image_calibration", records, table=markdown_table(head, rows), samples=str(self.samples),
            pictures=figures("image_calibration", {task: TITLES[task] for task in self.tasks}),
        )  # fmt: skip

    def columns(self, name: str, draws: torch.Tensor) -> dict[str, torch.Tensor]:
        """A sample, the mean and the spread of the first images; a spread of .5, on [-1, 1], is white."""
        few, spread = draws[:SHOWN], draws[:SHOWN].std(1).mean(1, keepdim=True)
        return {
            f"{name}\nsample": few[:, 0].clamp(-1, 1),
            f"{name}\nmean": few.mean(1).clamp(-1, 1),
            f"{name}\nstd": (4 * spread - 1).clamp(-1, 1),
        }

    def draws(self, benchmark: Benchmark, method: Method) -> torch.Tensor:
        """Posterior samples (N, samples, C, H, W)."""
        models, given = benchmark.models(self.device), benchmark.measurements("test")
        samples = []
        for start in range(0, self.count, 4):
            rows = slice(start, min(start + 4, self.count))
            problem = given.problem(rows, self.device, True)
            posterior = models.sampler(method).sample(
                problem, self.samples, seed=0, items=list(given.items[rows]), batch_size=self.batch_size
            )
            assert posterior.samples is not None
            samples.append(posterior.samples.cpu())
        return torch.cat(samples)

    def calibrate(self, benchmark: Benchmark, draws: torch.Tensor) -> dict[str, Any]:
        """Coverage, CRPS, spread and errors, over all pixels and images."""
        given = benchmark.measurements("test")
        images = given.images[slice(0, self.count)]
        truth, mean = images.to_tensor(), draws.mean(1)
        return {
            "levels": list(self.levels),
            "coverage": [float(c) for c in pixel_coverage(draws, truth, self.levels).mean(0)],
            "crps": float(crps(draws, truth).mean()),
            "spread": float(draws.var(1).mean().sqrt()),
            "rmse": float((mean - truth).square().mean().sqrt()),
            "psnr_sample": float(psnr(ImageBatch.from_tensor(draws[:, 0].clamp(-1, 1)), images).mean()),
            "psnr_mean": float(psnr(ImageBatch.from_tensor(mean.clamp(-1, 1)), images).mean()),
        }
