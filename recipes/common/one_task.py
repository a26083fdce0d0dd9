"""Tables of one task: MGDM as in the paper against methods that take no gradient."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lavps.benchmark.report import markdown_table
from lavps.samplers import Settings

from .pages import add_measured
from .table import COSTS, Record, Table, compared, costs, find, lpips


@dataclass(frozen=True)
class OneTask(Table):
    """One task, methods against MGDM as in the paper."""

    count: int = 40

    def methods(self, model: str) -> list[Settings]:
        """Return the methods, MGDM as in the paper first."""
        raise NotImplementedError

    def measure(self) -> list[Record]:
        """Run the methods on the task."""
        [task] = self.tasks
        records = self.measured(task, self.methods(self.model(task)))
        self.draw_images(task, records)
        return records

    def fields(self, records: list[Record]) -> dict[str, str]:
        """Return the table; write the part about the inference model into its card."""
        [task] = self.tasks
        head = ["method", "LPIPS", "PSNR", "chi²", *COSTS, "ΔLPIPS to the first row; non-inferior"]
        rows = [
            [r["name"], lpips(r), f"{r['psnr']:.2f}", f"{r['chi_square']:.2f}", *costs(r), compared(records[0], r) if i else ""]
            for i, r in enumerate(records)
        ]  # fmt: skip
        own = [row[:5] for row, r in zip(rows, records, strict=True) if r["name"].startswith("LAVPS")]
        add_measured(Path(self.model(task)), f"{self.study}.md", head[:5], own)
        return {"table": markdown_table(head, rows), **self.numbers(records)}

    def numbers(self, records: list[Record]) -> dict[str, str]:
        """Return the numbers of the page's prose."""
        return {}

    def shown(self, records: list[Record], group: str) -> str:
        """Return "LPIPS 0.0784, NFE 93" of the first record of a group."""
        record = find(records, self.tasks[0], group)
        return f"LPIPS {record['lpips']:.4f}, NFE {record['cost']:.0f}"
