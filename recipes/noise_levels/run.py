"""Is the misfit of samples that of the noise, for every linear operator, noise level and preset?

python -m recipes.noise_levels.run --data DATA
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

import lavps
from lavps.benchmark.figures import matplotlib_figure
from lavps.benchmark.report import markdown_table
from lavps.operators.registry import NAMES, family_from
from lavps.training.data import ImageData

from ..common.labels import TITLES
from ..common.pages import read, write_json, write_page

Record = dict[str, Any]
STUDY = "noise_levels"
LOWEST, HIGHEST = 0.8, 1.3  # chi² that counts as that of the noise


@dataclass(frozen=True)
class Config:
    """Input and size of the study."""

    data: Path = Path("data")
    """Folder of synthfaces64-test.tar."""
    prior: Path = Path("zoo/synthfaces64")
    """Prior."""
    pages: Path = Path("benchmarks")
    """Folder of the page; what was measured is not measured again."""
    evaluations: tuple[int, ...] = (4, 8, 25, 100)
    """Numbers of denoiser evaluations, with the presets for them."""
    levels: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
    """Standard deviations of the noise."""
    count: int = 3
    """Number of test images, one sample each."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""

    def run(self) -> None:
        """Measure what is missing, and write the page."""
        records: list[Record] = read(self.pages, STUDY, [])
        if not self.page_only:
            prior = lavps.load_prior(self.prior)
            shape = tuple(prior.image_shape)  # type: ignore[attr-defined]
            data = ImageData.open(self.data / f"{self.prior.name}-test.tar", shape[1:], shape[0], cache=False)
            items = list(range(self.count))
            x = data.draw(items, items)
            done = {
                (r["task"], r["evaluations"]) for r in records if len(r["chi_square"]) == len(self.levels)
            }
            linear = [n for n in NAMES if family_from(n, shape).draw([0], shape).linear]
            for count in self.evaluations:
                for name in linear:
                    if (name, count) in done:
                        continue
                    operator = family_from(name, shape).draw(items, shape)
                    found = [self.misfit(prior, x, operator, std, count) for std in self.levels]
                    records.append(
                        {"task": name, "evaluations": count, "images": self.count} | {"chi_square": found}
                    )
                    write_json(self.pages, STUDY, records, indent=None)
                    print(name, count, found, flush=True)
        self.draw(records, self.pages / f"{STUDY}.png")
        write_page(self.pages, STUDY, **self.fields(records))

    def misfit(
        self, prior: lavps.Prior, x: torch.Tensor, operator: lavps.operators.Operator, std: float, count: int
    ) -> float:
        """Return the mean chi² of one sample per image."""
        problem = lavps.InverseProblem.simulate(x, operator, std, seed=1)
        posterior = lavps.restore(problem.y, operator, prior, noise=std, evaluations=count)
        assert posterior.samples is not None
        return round(float(problem.chi_square(posterior.samples[:, 0]).mean()), 4)

    def draw(self, records: list[Record], file: Path) -> None:
        """Draw chi² as colours, one panel per number of evaluations."""
        counts = list(dict.fromkeys(r["evaluations"] for r in records))
        names = list(dict.fromkeys(r["task"] for r in records))
        missing = [float("nan")] * len(self.levels)
        figure = matplotlib_figure(2.9 * len(counts) + 2.0, 0.3 * len(names) + 1.7)
        for axis, count in zip(figure.subplots(1, len(counts), squeeze=False)[0], counts, strict=True):
            found = {r["task"]: r["chi_square"] for r in records if r["evaluations"] == count}
            shown = axis.imshow(
                [found.get(name, missing) for name in names],
                cmap="RdBu_r",
                norm="log",
                vmin=0.5,
                vmax=2.0,
                aspect="auto",
            )
            for row, name in enumerate(names):
                for column, value in enumerate(found.get(name, [])):
                    axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6)
            axis.set_xticks(range(len(self.levels)), [f"{std:g}" for std in self.levels], fontsize=7)
            axis.set_yticks(range(len(names)), [TITLES.get(name, name) for name in names], fontsize=8)
            axis.set_title(f"{count} evaluations", fontsize=10)
            axis.set_xlabel("noise", fontsize=9)
            axis.label_outer()
        bar = figure.colorbar(shown, ax=figure.axes, ticks=[0.5, 0.8, 1.0, 1.3, 2.0], pad=0.01)
        bar.ax.minorticks_off()
        bar.ax.set_yticklabels(["0.5", "0.8", "1", "1.3", "2"], fontsize=8)
        bar.set_label("chi²", fontsize=9)
        figure.savefig(file, dpi=130)

    def fields(self, records: list[Record]) -> dict[str, str]:
        """Return the fields of the page's template."""
        values = [
            (value, r, std) for r in records for value, std in zip(r["chi_square"], self.levels, strict=True)
        ]
        inside = [LOWEST <= value <= HIGHEST for value, *_ in values]
        counts = list(dict.fromkeys(r["evaluations"] for r in records))
        tables = [
            f"**{count} evaluations**\n\n"
            + markdown_table(
                ["task", *(f"noise {std:g}" for std in self.levels)],
                [
                    [TITLES.get(r["task"], r["task"]), *(f"{value:.2f}" for value in r["chi_square"])]
                    for r in records
                    if r["evaluations"] == count
                ],
            )
            for count in counts
        ]
        shares = [
            [
                str(count),
                *(f"{f([v for v, r, _ in values if r['evaluations'] == count]):.2f}" for f in (min, max)),
            ]
            for count in counts
        ]
        low, high = (f([value for value, *_ in values]) for f in (min, max))
        outside = dict.fromkeys(r["task"] for (_, r, _), near in zip(values, inside, strict=True) if not near)
        where = (
            f" The others are those of {', '.join(TITLES.get(name, name) for name in outside)}."
            if outside
            else ""
        )
        return {
            "answer": f"chi² is between {LOWEST} and {HIGHEST} in {sum(inside)} of {len(inside)} cells; the lowest is {low:.2f}, "
            f"the highest {high:.2f}.{where}",
            "shares": markdown_table(["evaluations", "lowest chi²", "highest chi²"], shares),
            "tables": "\n\n".join(tables),
            "count": str(records[0]["images"]),
        }


if __name__ == "__main__":
    tyro.cli(Config).run()
