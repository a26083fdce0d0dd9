"""The page and the figures of the amortization benchmark, made from its JSON alone.

python recipes/amortization_oracle_page.py benchmarks
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
import tyro

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {
    "MGDM, Adam": "C0",
    "MGDM, whitened": "C2",
    "LAVPS": "C3",
    "LAVPS, on-policy contexts": "C1",
    "LAVPS, family of masks": "C6",
    "MGPS": "C4",
    "MGPS, warm": "C5",
    "out of distribution": "0.5",
}


def draw_compute(rows: list[dict[str, Any]], path: Path) -> None:
    """SW2 against compute, one panel per mixture and task."""
    panels = list(dict.fromkeys((row["mixture"], row["task"]) for row in rows))
    figure, axes = plt.subplots(1, len(panels), figsize=(6.5 * len(panels), 4.8), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        here = [row for row in rows if (row["mixture"], row["task"]) == panel]
        for group, colour in COLOURS.items():
            part = [row for row in here if row["group"] == group]
            axis.scatter([r["compute"] for r in part], [r["sw2"] for r in part], c=colour, s=22, label=group)
            for row in part:
                place = (row["compute"], row["sw2"])
                axis.annotate(row["method"], place, fontsize=4.5, xytext=(2, 2), textcoords="offset points")
        axis.set(xscale="log", title=f"{panel[0]} mixture, {panel[1]}", ylim=(0, 0.15))
        axis.set(xlabel="forwards + 2 x backwards + model passes at their cost", ylabel="sliced W2")
        axis.grid(alpha=0.3, which="both")
    axes[0, 0].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_acceptance(rows: list[dict[str, Any]], path: Path) -> None:
    """Share of samples that keep the warm start, by time."""
    figure, axis = plt.subplots(figsize=(6.5, 4))
    for row in rows:
        if row["acceptance"] == row["acceptance"] and (
            "100%" in row["method"] or "SR4 model" in row["method"]
        ):
            label = f"{row['mixture']} {row['task']}: {row['group']}, {row['method']}"
            axis.plot(row["times"], row["acceptance_by_step"], lw=1, label=label)
    axis.set(xlabel="t", ylabel="share of samples that keep the warm start", ylim=(-0.02, 1.02))
    axis.legend(fontsize=5)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def table(rows: list[dict[str, Any]], mixture: str, task: str) -> str:
    """One Markdown table."""
    lines = [
        "| method | SW2 | mean error | std ratio | chi2 | forwards | backwards | model | compute | kept |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        if (r["mixture"], r["task"]) == (mixture, task):
            kept = "-" if r["acceptance"] != r["acceptance"] else f"{r['acceptance']:.2f}"
            lines.append(
                f"| {r['group']}, {r['method']} | {r['sw2']:.3f} | {r['mean_error']:.3f} | {r['std_ratio']:.2f} | "
                f"{r['chi_square']:.2f} | {r['forwards']:.0f} | {r['backwards']:.0f} | {r['model_forwards']:.0f} | "
                f"{r['compute']:.0f} | {kept} |"
            )
    return "\n".join(lines)


def write(folder: Path) -> None:
    """Figures and page from ``amortization_oracle.json`` in the folder."""
    result = json.loads((folder / "amortization_oracle.json").read_text())
    rows = result["rows"]
    draw_compute(rows, folder / "amortization_oracle.png")
    draw_acceptance(rows, folder / "amortization_oracle_acceptance.png")
    panels = dict.fromkeys((row["mixture"], row["task"]) for row in rows)
    tables = "\n\n".join(f"### {m} mixture, {t}\n\n{table(rows, m, t)}" for m, t in panels)
    trainings = "\n".join(
        f"| {t['mixture']} {t['model']} | {t['cpu_seconds']:.0f} | {t['validation'].get('warm', float('nan')):.1f} | "
        f"{t['validation'].get('zero', float('nan')):.1f} | {t['validation'].get('acceptance', float('nan')):.2f} | "
        f"{t['relative_cost']:.2f} |"
        for t in result["trainings"]
    )
    nonlinear = "\n".join(
        f"| {name} | {r['error']:.3f} | {r['chi_square']:.2f} | {r['acceptance']:.2f} |"
        for name, r in result["nonlinear"].items()
    )
    template = (Path(__file__).parent / "amortization_oracle_page.md").read_text()
    settings = ", ".join(
        f"{k} {result['config'][k]}" for k in ("steps", "batch_size", "observations", "samples")
    )
    page = template.format(
        command=result["command"],
        versions=", ".join(f"{name} {version}" for name, version in result["versions"].items()),
        settings=settings,
        tables=tables,
        trainings=trainings,
        nonlinear=nonlinear,
    )
    (folder / "amortization_oracle.md").write_text(page)


if __name__ == "__main__":
    write(tyro.cli(Path))
