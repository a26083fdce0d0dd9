"""The page of the speed-up study."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lavps.benchmark.analysis import Results
from lavps.benchmark.figures import draw_front, family_colours, matplotlib_figure
from lavps.benchmark.methods import model_name
from lavps.benchmark.report import markdown_table, match_table
from lavps.checkpoints.folder import read_config
from lavps.samplers import Settings

from ..common.labels import TITLES
from ..common.pages import RECIPES, add_measured, figures, span
from ..common.pages import write_page as fill
from ..common.study import Study

AMORTIZED, LINEARIZED = "LAVPS", "MGDM, linearized"


def stored(config: Study, task: str) -> tuple[Results, Results]:
    """Return the published results of a task, against the paper's MGDM and against the best settings."""
    found = json.loads((config.pages / "speedup" / f"{task}.json").read_text())
    return Results(**found["paper"]), Results(**found["best"])


def matched(tasks: dict[str, Results], family: str) -> str:
    """Return a table of a family of methods against the baseline's front, for all tasks."""
    head: list[str] = []
    lines = []
    for task, results in tasks.items():
        head, rows = match_table(results, [m for m in results.matches if m["family"] == family])
        lines += [[TITLES[task], *cells] for cells in rows]
    names = {
        "cost": "NFE",
        "cheaper": "NFE ratio",
        "faster [95 %]": "time ratio [95 %]",
        "difference [95 %]": "LPIPS gain [95 %]",
    }
    return markdown_table(
        ["task", *[names.get(name, name) for name in head]],
        [[_zero(cell) for cell in line] for line in lines],
    )


def _zero(cell: str) -> str:
    """Return a p value with its leading zero."""
    return f"0{cell}" if cell.startswith(".") else cell.replace("< .", "< 0.")


def tried(results: Results) -> str:
    """Return how many settings of every family were tried on validation images, and how many on all of them."""
    whole = Counter(point["family"] for point in results.points["validation"])
    begun = whole + Counter(point["family"] for point in results.points.get("screening", []))
    return ", ".join(f"{family} {count} ({whole[family]})" for family, count in sorted(begun.items()))


def summary(task: str, paper: Results, best: Results) -> list[list[str]]:
    """Return the range of speed-ups of a task, in both comparisons."""
    rows = []
    for name, results in (("the paper's MGDM (Adam)", paper), ("MGDM, best settings", best)):
        for family in (AMORTIZED, LINEARIZED):
            every = [m for m in results.matches if m["family"] == family]
            found = [m for m in every if m["candidate"] is not None]
            times = [m["time_speed_up"]["ratio"] for m in found if m["time_speed_up"]]
            rows.append(
                [TITLES[task], family, name, f"{len(found)} of {len(every)}",
                 span([m["speed_up"] for m in found], 2) if found else "", span(times, 2) if times else "",
                 "yes" if found and all(m["passes_corrected"] for m in found) else "no"]
            )  # fmt: skip
    return rows


def break_even(config: Study, task: str, results: Results, prices: dict[str, Any]) -> list[list[str]]:
    """Return after how many images the training has paid for itself, in NFE.

    A training image costs a forward pass for x_0, a forward and a backward pass for the objective, and three forward passes of
    the model.
    """
    model = config.model(task)
    share, training = prices[f"inference: {model}"]["model"], read_config(model).training
    seen = int(training["steps"]) * int(training["batch_size"])
    spent, rows = seen * (4 + 3 * share), []
    for match in results.matches:
        if match["family"] == AMORTIZED and match["candidate"] is not None:
            first, second = (results.point("test", match[name]) for name in ("reference", "candidate"))
            saved = first["cost"] - second["cost"]
            pays = f"{spent / saved:,.0f}" if saved > 0 else "never"
            instead = f"{first['family']}, {first['label']}"
            rows.append([TITLES[task], f"{seen:,}", f"{spent:,.0f}", instead, f"{saved:.0f}", pays])
    return rows


def figure(all_results: Sequence[tuple[str, Results]], target: Path) -> None:
    """Draw LPIPS against NFE, one panel per task."""
    drawing = matplotlib_figure(4.6 * len(all_results), 4.4)
    axes = drawing.subplots(1, len(all_results), squeeze=False)[0]
    for (task, results), axis in zip(all_results, axes, strict=True):
        draw_front(axis, results, "cost", family_colours(results))
        axis.set(title=TITLES[task], xlabel="NFE")
    handles, names = axes[0].get_legend_handles_labels()
    drawing.legend(
        handles, names, loc="outside lower center", ncols=2 * len(all_results), frameon=False, fontsize=9
    )
    drawing.savefig(target, dpi=130)


def write_cards(results: Results) -> None:
    """Write what was measured of every inference model into its card."""
    by_model: dict[str, list[dict[str, Any]]] = {}
    for point in sorted(results.points["test"], key=lambda point: point["cost"]):
        model = model_name(Settings.from_dict(point["method"]))
        if model is not None and point["family"] == AMORTIZED:
            by_model.setdefault(model, []).append(point)
    for model, points in by_model.items():
        rows = [
            [p["label"], f"{p['lpips']:.4f} ± {p['lpips_error']:.4f}", f"{p['psnr']:.2f}", f"{p['cost']:.0f}", str(p["images"])]
            for p in points
        ]  # fmt: skip
        add_measured(Path(model), "speedup.md", ["settings", "LPIPS", "PSNR", "NFE", "images"], rows)


def machine(results: Results) -> str:
    """Return the machine of the timing."""
    if not results.timing:
        return "not timed"
    about = results.timing["machine"]
    return (
        f"{about['threads']} threads of {about['cores']} {about['processor']} cores, torch {about['torch']}"
    )


def prices_of(config: Study, task: str) -> dict[str, Any]:
    """Return the relative costs of a task, from the working folder or from the archive."""
    if (file := config.work / "speedup" / task / "prices.json").exists():
        return json.loads(file.read_text())  # type: ignore[no-any-return]
    with tarfile.open(config.archive("speedup", task)) as archive:
        return json.load(archive.extractfile("prices.json"))  # type: ignore[arg-type, no-any-return]


def write_page(config: Study, command: str, paper: dict[str, Results], best: dict[str, Results]) -> None:
    """Write ``speedup.md`` and its figures from the results of every task in both comparisons."""
    target = config.pages / "speedup"
    target.mkdir(parents=True, exist_ok=True)
    figure(list(paper.items()), target / "pareto.png")
    training = []
    for task, results in paper.items():
        write_cards(results)
        (target / f"{task}.json").write_text(
            json.dumps({"paper": vars(results), "best": vars(best[task])}, indent=1) + "\n"
        )
        training += break_even(config, task, results, prices_of(config, task))
        if (images := config.work / "speedup" / task / "images.png").exists():
            shutil.copy(images, target / f"{task}.png")
    one = next(iter(paper.values()))
    timed = [point["time"] for results in paper.values() for point in results.points["test"] if point["time"]]
    head = [
        "task",
        "training images",
        "training NFE",
        "baseline",
        "NFE saved per image",
        "break-even, images",
    ]
    summary_head = [
        "task",
        "method",
        "baseline",
        "points matched",
        "NFE ratio",
        "time ratio",
        "all pass at α / P",
    ]
    rows = [row for task in paper for row in summary(task, paper[task], best[task])]
    fill(
        config.pages,
        "speedup",
        command=command,
        summary=markdown_table(summary_head, rows),
        machine=machine(one),
        turns=min((time["turns"] for time in timed), default=0),
        test=one.counts["test"],
        validation=one.counts["validation"],
        margin=one.margin,
        alpha=one.alpha,
        tried="; ".join(f"{TITLES[task]}: {tried(results)}" for task, results in paper.items()),
        paper=matched(paper, AMORTIZED),
        paper_steps=matched(paper, LINEARIZED),
        best=matched(best, AMORTIZED),
        best_steps=matched(best, LINEARIZED),
        training=markdown_table(head, training),
        images=figures(
            "speedup", {task: TITLES[task] for task in paper if (target / f"{task}.png").exists()}
        ),
        reading=(RECIPES / "speedup" / "reading.md").read_text().strip(),
    )
