"""Tables of methods on real images: run every method on the test images of a task, compare in pairs, write a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lavps.benchmark.analysis import row_means
from lavps.benchmark.methods import family, label
from lavps.evaluation import non_inferiority
from lavps.guidance import Guidance
from lavps.samplers import MGDM, UNBOUND, Settings

from .cells import difference, standard_error
from .pages import read, write_json, write_page
from .study import TASKS, Study

Record = dict[str, Any]


def mgdm(num_steps: int, guidance: Guidance) -> Settings:
    """Return MGDM, or LAVPS if an inference model takes part in its guidance."""
    return Settings(MGDM(UNBOUND, num_steps=num_steps, guidance=guidance))


def settings(record: Mapping[str, Any]) -> Settings:
    """Return the settings of a record's method."""
    return Settings.from_dict(record["method"])


def named(record: Record) -> Record:
    """Return a record with the name of its method."""
    if "method" not in record:
        return record
    method = settings(record)
    return record | {"name": f"{family(method)}, {label(method)}", "label": label(method)}


@dataclass(frozen=True)
class Table(Study):
    """A study that runs a list of methods and tabulates them."""

    count: int = 100
    """Number of test images."""
    tasks: tuple[str, ...] = TASKS
    """Tasks with an inference model in the zoo."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""

    study: ClassVar[str]

    def measure(self) -> list[Record]:
        """Run the methods and draw what needs the images."""
        raise NotImplementedError

    def fields(self, records: list[Record]) -> dict[str, str]:
        """Return the fields of the page's template."""
        raise NotImplementedError

    def run(self) -> None:
        """Measure, or read what was measured, and write the page."""
        found = read(self.pages, self.study) if self.page_only else self.measure()
        records = [named(record) for record in found]
        write_json(self.pages, self.study, records)
        write_page(self.pages, self.study, count=records[0]["images"], **self.fields(records))

    def measured(self, task: str, methods: Iterable[Settings]) -> list[Record]:
        """Run every method on the first test images of a task; one record each."""
        benchmark = self.begin(self.study, task)
        runner = self.runner(benchmark, "test")
        records = []
        for method in methods:
            prices = benchmark.prices(method, runner.models, runner.measurements)
            rows = runner.run(method, self.count)
            about = {"task": task, "method": method.to_dict(), "cost": prices.cost(rows)}
            scores = {"scores": [row["lpips"] for row in rows], "images": len(rows)}
            steps = {"linearized_steps": float(method.counts.linearized_steps)}
            records.append(named(about | scores | row_means(rows) | steps))
            self.pack(self.study, benchmark, task)
        return records

    def best(self, task: str, candidates: Mapping[float, Settings]) -> float:
        """Return the value whose method has the lowest LPIPS on 8 validation images."""
        runner = self.runner(self.begin(self.study, task), "validation")
        scores = {v: sum(row["lpips"] for row in runner.run(m, 8)) for v, m in candidates.items()}
        return min(scores, key=lambda value: scores[value])


def error(record: Mapping[str, Any]) -> float:
    """Return the standard error of the mean LPIPS."""
    return standard_error(record["scores"])


def lpips(record: Mapping[str, Any]) -> str:
    """Return the mean LPIPS ± its standard error."""
    return f"{record['lpips']:.4f} ± {error(record):.4f}"


def cell(record: Mapping[str, Any]) -> str:
    """Return LPIPS ± its standard error, and the NFE in brackets."""
    return f"{lpips(record)} ({record['cost']:.0f})"


COSTS = ("NFE", "forward passes", "backward passes", "model forward passes", "linearized steps")


def costs(record: Mapping[str, Any]) -> list[str]:
    """Return the cells of the columns :data:`COSTS`."""
    names = ("cost", "forwards", "backwards", "model_forwards", "linearized_steps")
    return [f"{record[name]:.0f}" for name in names]


def compared(reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> str:
    """Return the difference in LPIPS ± its standard error, and whether the candidate is non-inferior."""
    ours, theirs = candidate["scores"], reference["scores"]
    verdict = "yes" if non_inferiority(theirs, ours).is_non_inferior else "no"
    return f"{difference(ours, theirs)}, {verdict}"
