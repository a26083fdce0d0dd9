"""What the tables on real images have in common: methods run on the test images of a task, compared in pairs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from image_study import TASKS, Study
from lavps.evaluation import non_inferiority
from lavps.evaluation.benchmark import Method
from lavps.evaluation.benchmark.figures import method_grid
from lavps.evaluation.benchmark.protocol import row_means

HERE = Path(__file__).parent
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Table(Study):
    """A study that runs a list of methods and tabulates them."""

    count: int = 100
    """Test images."""
    tasks: tuple[str, ...] = TASKS
    """Tasks with an inference model in the zoo."""

    def measured(self, study: str, task: str, methods: Mapping[str, Method]) -> list[dict[str, Any]]:
        """What every named method does on the first test images of a task, one record each."""
        benchmark = self.begin(study, task)
        runner = self.runner(benchmark, "test", keep_images=8)
        records = []
        for name, method in methods.items():
            prices = benchmark.prices(method, runner.models, runner.measurements)
            rows = runner.run(method, self.count)
            records.append(
                {
                    "task": task,
                    "name": name,
                    "label": method.label,
                    "method": method.settings(),
                    "cost": prices.cost(rows),
                }
                | summary(rows)
            )
            self.pack(study, benchmark, task)
        return records

    def pictures(self, study: str, task: str, records: Rows, names: Sequence[str]) -> None:
        """Measurement, what the named methods made of it, truth."""
        found = [r for r in records if r["task"] == task and r["name"] in names]
        keys = {
            "\n".join([*r["name"].split(", ", 2), f"LPIPS {r['lpips']:.3f}"]): Method.from_settings(
                r["method"]
            ).key
            for r in found
        }
        method_grid(self.begin(study, task), keys).savefig(self.pages / study / f"{task}.png", dpi=130)

    def publish(self, study: str, records: list[dict[str, Any]], **parts: str) -> None:
        """The page and the numbers behind it."""
        self.pages.mkdir(parents=True, exist_ok=True)
        (self.pages / f"{study}.json").write_text(json.dumps(records, indent=1) + "\n")
        text = (HERE / f"{study}_page.md").read_text().format(count=self.count, **parts)
        (self.pages / f"{study}.md").write_text(text)
        print(self.pages / f"{study}.md")


def figures(study: str, titles: Mapping[str, str]) -> str:
    """The pictures of a study in Markdown, one a task, by their titles."""
    return "\n\n".join(f"**{title}**\n\n![{task}]({study}/{task}.png)" for task, title in titles.items())


def summary(rows: Rows) -> dict[str, Any]:
    """Means over images, and the scores of every image for the paired tests."""
    return {"scores": [row["lpips"] for row in rows], "images": len(rows)} | row_means(rows)


def error(record: Mapping[str, Any]) -> float:
    """Standard error of the mean LPIPS."""
    scores = torch.tensor(record["scores"], dtype=torch.float64)
    return float(scores.std()) / math.sqrt(len(scores))


def compared(reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> str:
    """The difference in LPIPS with its standard error, and whether the candidate is non-inferior."""
    test = non_inferiority(reference["scores"], candidate["scores"])
    verdict = "yes" if test.p_value < test.alpha else "no"
    return f"{-test.mean_difference:+.4f} ± {test.standard_error:.4f}, {verdict}"


def cell(record: Mapping[str, Any]) -> str:
    """LPIPS, its error, and the cost."""
    return f"{record['lpips']:.4f} ± {error(record):.4f} ({record['cost']:.0f})"


def find(records: Sequence[dict[str, Any]], task: str, name: str) -> dict[str, Any]:
    """A record."""
    return next(r for r in records if r["task"] == task and r["name"] == name)
