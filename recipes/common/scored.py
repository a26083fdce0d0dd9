"""Studies that tune samplers on validation images and score several samples per test image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lavps.benchmark import Benchmark
from lavps.benchmark.analysis import row_means
from lavps.samplers import Settings

from .search import best
from .study import Study

Record = dict[str, Any]
Method = tuple[str, int, Settings]  # name, number of denoiser evaluations, settings
SCORES = {"lpips": "LPIPS", "crps": "CRPS"}


@dataclass(frozen=True)
class Scored(Study):
    """Samplers with scores of single samples and of their distribution."""

    trials: int = 12
    """Trials for each sampler that is tuned, task and number of evaluations."""
    samples: int = 4
    """Samples per test image."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""

    def measured(self, benchmark: Benchmark, task: str, methods: list[Method]) -> list[Record]:
        """Return the scores of methods on the test images."""
        runner = self.runner(benchmark, "test", samples=self.samples)
        found = []
        for name, evaluations, method in methods:
            rows = runner.run(method)
            found.append(
                {"task": task, "name": name, "evaluations": evaluations, "method": method.to_dict()}
                | {score: [row[score] for row in rows] for score in (*SCORES, "coverage")}
                | {"nominal": rows[0]["nominal_coverage"], "images": len(rows), "samples": self.samples}
                | {f"mean_{key}": value for key, value in row_means(rows).items()}
            )
        return found

    def tuned(
        self,
        benchmark: Benchmark,
        name: str,
        evaluations: int,
        bound: Callable[[Settings], Settings] = lambda settings: settings,
    ) -> Settings:
        """Return the settings with the lowest LPIPS + CRPS on the validation images; rows are kept, so it resumes.

        Args:
            benchmark: Working folder of a task.
            name: Sampler, a key of :data:`~recipes.common.search.SPACES`.
            evaluations: Number of denoiser evaluations.
            bound: Function that adds the model to settings without one.
        """
        runner = self.runner(benchmark, "validation", samples=2)

        def loss(settings: Settings) -> float:
            rows = runner.run(bound(settings))
            return float(row_means(rows)["lpips"] or 0.0) + fmean([row["crps"] for row in rows])

        return bound(best(name, evaluations, self.trials, loss))
