"""Coverage of posterior intervals on real images, with a sample, the mean and the standard deviation of each image.

python -m recipes.image_calibration.run --data DATA --lpips FILE
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import tyro

from lavps.benchmark import Benchmark
from lavps.benchmark.figures import image_grid, seen
from lavps.benchmark.methods import family
from lavps.benchmark.report import markdown_table
from lavps.evaluation import ImageBatch, crps, pixel_coverage, psnr
from lavps.guidance import Amortized, Gradient, Linearized, switch
from lavps.minimizers import WhitenedGradient
from lavps.samplers import Settings, Unbound

from ..common.labels import TITLES
from ..common.pages import figures, span
from ..common.table import Record, Table, find, mgdm, named

SHOWN = 4  # images


@dataclass(frozen=True)
class Config(Table):
    """Posterior intervals of pixels against the truth."""

    count: int = 12
    samples: int = 8
    """Number of samples per image."""

    study: ClassVar[str] = "image_calibration"

    @property
    def levels(self) -> tuple[float, ...]:
        """Return the levels of central intervals between samples: N samples divide the line into N + 1 parts."""
        return tuple((self.samples - left) / (self.samples + 1) for left in (3, 1))

    def methods(self, task: str) -> list[Settings]:
        """Return MGDM and LAVPS at K = 50."""
        early = Amortized(Unbound(self.model(task)), 0, safeguard_every=4)
        return [mgdm(50, Gradient(1, WhitenedGradient())), mgdm(50, switch(early, Linearized(), at=0.5))]

    def measure(self) -> list[Record]:
        """Sample, compare with the truth, draw."""
        records = []
        for task in self.tasks:
            benchmark = self.begin("baselines", task)
            given = benchmark.measurements("test")
            columns = {"measurement": seen(given.problem(slice(0, SHOWN)))}
            for method in self.methods(task):
                draws = self.draws(benchmark, method)
                columns |= self.columns(family(method).replace(" (", "\n("), draws)
                about = {
                    "task": task,
                    "method": method.to_dict(),
                    "images": self.count,
                    "samples": self.samples,
                }
                records.append(named(about | self.calibrate(benchmark, draws)))
            columns["truth"] = given.images[slice(0, SHOWN)].to_tensor()
            (self.pages / self.study).mkdir(parents=True, exist_ok=True)
            image_grid(columns).savefig(self.pages / self.study / f"{task}.png", dpi=130)
        return records

    def fields(self, records: list[Record]) -> dict[str, str]:
        """Return the table, and the numbers of the prose."""
        head = [
            "task",
            "method",
            *[f"coverage of the {level:.1%} interval" for level in records[0]["levels"]],
        ]
        head += ["CRPS", "standard deviation", "RMSE of the mean", "PSNR of a sample", "PSNR of the mean"]
        rows = [
            [TITLES[r["task"]], r["name"], *[f"{c:.1%}" for c in r["coverage"]], f"{r['crps']:.4f}", f"{r['spread']:.4f}",
             f"{r['rmse']:.4f}", f"{r['psnr_sample']:.2f}", f"{r['psnr_mean']:.2f}"]
            for r in records
        ]  # fmt: skip
        gains = {
            task: find(records, task, "LAVPS")["psnr_mean"] - find(records, task, "MGDM")["psnr_mean"]
            for task in self.tasks
        }
        return {
            "table": markdown_table(head, rows),
            "samples": str(records[0]["samples"]),
            "images": figures(self.study, {task: TITLES[task] for task in self.tasks}),
            "excess": span([100 * (r["rmse"] / r["spread"] - 1) for r in records]),
            "gains": ", ".join(f"{gain:+.1f} dB ({TITLES[task]})" for task, gain in gains.items()),
        }

    def columns(self, name: str, draws: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a sample, the mean and the standard deviation of the first images; a standard deviation of 0.5 is white."""
        few, spread = draws[:SHOWN], draws[:SHOWN].std(1).mean(1, keepdim=True)
        return {
            f"{name}\nsample": few[:, 0].clamp(-1, 1),
            f"{name}\nmean": few.mean(1).clamp(-1, 1),
            f"{name}\nstd": (4 * spread - 1).clamp(-1, 1),
        }

    def draws(self, benchmark: Benchmark, method: Settings) -> torch.Tensor:
        """Return posterior samples (N, samples, C, H, W)."""
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
        """Return coverage, CRPS, standard deviation and errors, over all pixels and images."""
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


if __name__ == "__main__":
    tyro.cli(Config).run()
