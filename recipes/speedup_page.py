"""The page of the speed-up study, made from the results of its benchmarks."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from image_study import TITLES, Study
from lavps.amortization.checkpoint import read_config
from lavps.evaluation.benchmark.figures import draw_front, family_colours, matplotlib_figure
from lavps.evaluation.benchmark.protocol import Results
from lavps.evaluation.benchmark.report import markdown_table, match_table
from zoo import add_measured

HERE = Path(__file__).parent
UNTRAINED = {"Likelihood step": "without training"}


def matched(tasks: dict[str, Results], family: str) -> str:
    """A family of methods against the baseline's front, all tasks in one table."""
    head: list[str] = []
    lines = []
    for task, results in tasks.items():
        head, rows = match_table(results, [m for m in results.matches if m["family"] == family])
        lines += [[TITLES.get(task, task), *cells] for cells in rows]
    return markdown_table(["task", *head], lines)


def tried(results: Results) -> str:
    """How many settings of every family were tried on the validation images, and how many on all of them."""
    whole = Counter(point["family"] for point in results.points["validation"])
    begun = whole + Counter(point["family"] for point in results.points.get("screening", []))
    return ", ".join(f"{family} {count} ({whole[family]})" for family, count in sorted(begun.items()))


def sentences(task: str, paper: Results, best: Results) -> str:
    """The range of speed-ups of a task, in both comparisons."""
    parts = []
    for name, results in (("against the paper's MGDM", paper), ("best against best", best)):
        words = []
        for family in ("LAVPS", "Likelihood step"):
            found = [m for m in results.matches if m["family"] == family]
            ratios = [m["speed_up"] for m in found if m["candidate"] is not None]
            ends = sorted({f"{ratio:.2f}" for ratio in ratios}, key=float)
            span = f"{' to '.join(dict.fromkeys([ends[0], ends[-1]]))} times cheaper" if ends else "no match"
            words.append(
                f"{UNTRAINED.get(family, family)} {span} ({len(ratios)} of {len(found)} points matched)"
            )
        parts.append(f"{name}, {', '.join(words)}")
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


def tell_models(results: Results) -> None:
    """What was measured of every inference model, on its card."""
    by_model: dict[str, list[dict[str, Any]]] = {}
    for point in sorted(results.points["test"], key=lambda point: point["cost"]):
        if Path(model := point["method"].get("model") or "").is_dir() and point["family"] == "LAVPS":
            by_model.setdefault(model, []).append(point)
    for model, points in by_model.items():
        rows = [
            [p["label"], f"{p['lpips']:.4f} ± {p['lpips_error']:.4f}", f"{p['psnr']:.2f}", f"{p['cost']:.0f}", str(p["images"])]
            for p in points
        ]  # fmt: skip
        add_measured(Path(model), "speedup.md", ["settings", "LPIPS", "PSNR", "cost", "images"], rows)


def write_page(config: Study, command: str, paper: dict[str, Results], best: dict[str, Results]) -> Path:
    """``speedup.md`` and its figures, from the results of every task in both comparisons."""
    target = config.pages / "speedup"
    target.mkdir(parents=True, exist_ok=True)
    figure(list(paper.items()), target / "pareto.png")
    images, training = [], []
    for task, results in paper.items():
        tell_models(results)
        folder = config.work / "speedup" / task
        (target / f"{task}.json").write_text(
            json.dumps({"paper": vars(results), "best": vars(best[task])}, indent=1)
        )
        training += break_even(config, task, results, json.loads((folder / "prices.json").read_text()))
        if (folder / "images.png").exists():
            shutil.copy(folder / "images.png", target / f"{task}.png")
            images.append(f"**{TITLES.get(task, task)}**\n\n![{task}](speedup/{task}.png)")
    one = next(iter(paper.values()))
    turns = {
        point["time"]["turns"]
        for results in paper.values()
        for point in results.points["test"]
        if point["time"]
    }
    head = ["task", "training images", "training cost", "instead of", "saved an image", "pays after images"]
    page = config.pages / "speedup.md"
    template = (HERE / "speedup_page.md").read_text()
    page.write_text(
        template.format(
            command=command,
            intro="\n".join(sentences(task, paper[task], best[task]) for task in paper),
            turns=min(turns, default=0),
            test=one.counts["test"],
            validation=one.counts["validation"],
            margin=one.margin,
            alpha=one.alpha,
            tried="; ".join(f"{TITLES.get(task, task)}: {tried(results)}" for task, results in paper.items()),
            paper=matched(paper, "LAVPS"),
            paper_steps=matched(paper, "Likelihood step"),
            best=matched(best, "LAVPS"),
            best_steps=matched(best, "Likelihood step"),
            training=markdown_table(head, training),
            images="\n\n".join(images),
            reading=(HERE / "speedup_reading.md").read_text().strip(),
        )
    )
    return page
