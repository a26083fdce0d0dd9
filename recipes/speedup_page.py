"""The page of the speed-up study, made from the results of its benchmarks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from image_study import Study, table
from lavps.amortization.checkpoint import read_config
from lavps.evaluation.benchmark.figures import draw_front, family_colours, matplotlib_figure
from lavps.evaluation.benchmark.protocol import Results

HERE = Path(__file__).parent
TITLES = {"sr4": "super-resolution x4", "motion-blur": "motion blur", "centre-box": "centre box"}
HEAD = [
    "task",
    "baseline",
    "LPIPS",
    "cost",
    "matched by",
    "LPIPS",
    "cost",
    "difference [95 %]",
    "α / P",
    "cheaper",
    "faster [95 %]",
]


def read(file: Path) -> Results:
    """Results of a benchmark."""
    return Results(**json.loads(file.read_text(encoding="utf-8")))


def match_rows(task: str, results: Results, family: str = "LAVPS") -> list[list[str]]:
    """A row for every point of the baseline's front."""
    rows = []
    for match in (m for m in results.matches if m["family"] == family):
        first = results.point("test", match["reference"])
        cells = [
            TITLES.get(task, task),
            f"{first['family']}, {first['label']}",
            f"{first['lpips']:.4f}",
            f"{first['cost']:.0f}",
        ]
        if match["candidate"] is None:
            rows.append([*cells, "none", *[""] * 6])
            continue
        second, gap, time = (
            results.point("test", match["candidate"]),
            match["bootstrap"],
            match["time_speed_up"],
        )
        rows.append([
            *cells, second["label"], f"{second['lpips']:.4f}", f"{second['cost']:.0f}",
            f"{gap['difference']:+.4f} [{gap['lower']:+.4f}, {gap['upper']:+.4f}]",
            "yes" if match["passes_corrected"] else "no", f"**{match['speed_up']:.2f}x**",
            f"{time['ratio']:.2f}x [{time['lower']:.2f}, {time['upper']:.2f}]" if time else "not timed",
        ])  # fmt: skip
    return rows


def sentences(task: str, paper: Results, best: Results) -> str:
    """The range of speed-ups of a task, in both comparisons."""
    parts = []
    for name, results in (("against the paper's MGDM", paper), ("best against best", best)):
        found = [m for m in results.matches if m["family"] == "LAVPS"]
        ratios = [m["speed_up"] for m in found if m["candidate"] is not None]
        span = f"{min(ratios):.2f} to {max(ratios):.2f} times cheaper" if ratios else "no match"
        parts.append(f"{name} {span} ({len(ratios)} of {len(found)} points matched)")
    return f"- **{TITLES.get(task, task)}**: {'; '.join(parts)}."


def break_even(config: Study, task: str, results: Results, prices: dict[str, Any]) -> list[list[str]]:
    """After how many images the training has paid, in denoiser forwards.

    A training image costs a forward for x_0, a forward and a backward for the objective, and three passes of the model.
    """
    model = config.model(task)
    share, training = prices[f"inference: {model}"]["model"], read_config(model).training
    seen = int(training["steps"]) * int(training["batch_size"])
    spent, rows = seen * (4 + 3 * share), []
    for match in results.matches:
        if match["family"] == "LAVPS" and match["candidate"] is not None:
            first, second = (results.point("test", match[name]) for name in ("reference", "candidate"))
            saved = first["cost"] - second["cost"]
            pays = f"{spent / saved:,.0f}" if saved > 0 else "never"
            rows.append(
                [
                    TITLES.get(task, task),
                    f"{seen:,}",
                    f"{spent:,.0f}",
                    f"{first['family']}, {first['label']}",
                    f"{saved:.0f}",
                    pays,
                ]
            )
    return rows


def figure(all_results: Sequence[tuple[str, Results]], target: Path) -> None:
    """A panel a task."""
    drawing = matplotlib_figure(4.6 * len(all_results), 4.4)
    axes = drawing.subplots(1, len(all_results), squeeze=False)[0]
    for (task, results), axis in zip(all_results, axes, strict=True):
        draw_front(axis, results, "cost", family_colours(results))
        axis.set_title(TITLES.get(task, task))
    handles, names = axes[0].get_legend_handles_labels()
    drawing.legend(
        handles, names, loc="outside lower center", ncols=2 * len(all_results), frameon=False, fontsize=9
    )
    drawing.savefig(target, dpi=130)


def write_page(config: Study, tasks: Sequence[str], command: str, facts: dict[str, Any]) -> Path:
    """``speedup.md`` and its figures."""
    folders = {task: config.work / "speedup" / task for task in tasks}
    paper = {task: read(folder / "results.json") for task, folder in folders.items()}
    best = {task: read(folder / "best.json") for task, folder in folders.items()}
    target = config.pages / "speedup"
    target.mkdir(parents=True, exist_ok=True)
    figure(list(paper.items()), target / "pareto.png")
    images = []
    for task, folder in folders.items():
        (target / f"{task}.json").write_text(
            json.dumps({"paper": vars(paper[task]), "best": vars(best[task])}, indent=1)
        )
        if (folder / "images.png").exists():
            shutil.copy(folder / "images.png", target / f"{task}.png")
            images.append(f"**{TITLES.get(task, task)}**\n\n![{task}](speedup/{task}.png)")
    one = next(iter(paper.values()))
    notes = HERE / "speedup_reading.md"
    page = config.pages / "speedup.md"
    page.write_text(
        (HERE / "speedup_page.md")
        .read_text()
        .format(
            command=command,
            intro="\n".join(sentences(task, paper[task], best[task]) for task in tasks),
            turns=facts["turns"],
            test=one.counts["test"],
            validation=one.counts["validation"],
            margin=one.margin,
            alpha=one.alpha,
            tried=facts["tried"],
            screen=facts["screen"],
            trials=facts["trials"],
            paper=table(HEAD, [row for task in tasks for row in match_rows(task, paper[task])]),
            best=table(HEAD, [row for task in tasks for row in match_rows(task, best[task])]),
            training=table(
                [
                    "task",
                    "training images",
                    "training cost",
                    "instead of",
                    "saved an image",
                    "pays after images",
                ],
                [
                    row
                    for task, folder in folders.items()
                    for row in break_even(
                        config, task, paper[task], json.loads((folder / "prices.json").read_text())
                    )
                ],
            ),
            images="\n\n".join(images),
            reading=notes.read_text().strip() if notes.exists() else "",
        )
    )
    return page
