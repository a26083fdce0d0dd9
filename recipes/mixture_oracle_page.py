"""The page and the figures of the oracle benchmark, made from its JSON alone.

python recipes/mixture_oracle_page.py benchmarks
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.ticker
import tyro

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

FAMILIES = {
    "MGDM, Adam": "C0",
    "MGDM, whitened": "C2",
    "LAVPS": "C3",
    "MGPS": "C4",
    "DPS": "C1",
    "MMPS": "C5",
}
TITLES = {"sr4": "super-resolution x4", "inpainting": "inpainting, half of the pixels"}


def cost(row: dict[str, Any]) -> float:
    """Forwards plus twice the backwards: a backward costs about two forwards."""
    return float(row["forwards"] + 2 * row["backwards"])


def draw_pareto(rows: list[dict[str, Any]], path: Path) -> None:
    """SW2 against compute, one panel per mixture and task."""
    panels = list(dict.fromkeys((row["mixture"], row["task"]) for row in rows))
    columns = min(2, len(panels))
    figure, axes = plt.subplots(
        -(-len(panels) // columns),
        columns,
        figsize=(6.2 * columns, 4.2 * -(-len(panels) // columns)),
        squeeze=False,
    )
    for axis, panel in zip(axes.flat, panels, strict=True):
        here = [row for row in rows if (row["mixture"], row["task"]) == panel]
        floor, count = next((row["sw2"], len(row["sw2_by_item"])) for row in here if "floor" in row["method"])
        here = [row for row in here if len(row["sw2_by_item"]) == count]  # the solved starts have fewer
        axis.axhline(floor, color="k", lw=1, ls="--", label="exact posterior (floor)")
        for family, colour in FAMILIES.items():
            group = [row for row in here if row["method"].startswith(family)]
            axis.scatter(
                [cost(row) for row in group], [row["sw2"] for row in group], c=colour, label=family, s=36
            )
            for row in group:
                label = row["method"].removeprefix(family).lstrip(", ")
                label = label.replace("steps crowded to t=0", "crowded").replace(", safeguarded", "")
                axis.annotate(
                    label, (cost(row), row["sw2"]), fontsize=6, xytext=(3, 3), textcoords="offset points"
                )
        axis.set(
            xscale="log", xlabel="denoiser forwards + 2 x backwards", title=f"{panel[0]}, {TITLES[panel[1]]}"
        )
        axis.set(
            ylabel="sliced W2 to the exact posterior", ylim=(0, min(0.14, 1.1 * max(r["sw2"] for r in here)))
        )
        ticks = (200, 500, 1000, 2000, 5000)
        axis.set_xticks(ticks, labels=[str(tick) for tick in ticks])
        axis.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        axis.grid(alpha=0.3, which="both")
    axes.flat[0].legend(fontsize=7, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_calibration(rows: list[dict[str, Any]], path: Path) -> None:
    """Empirical distribution of the ranks minus the uniform one, with its band; and coverage."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure, axes = plt.subplots(
        len(tasks), len(methods) + 1, figsize=(3.1 * (len(methods) + 1), 3.0 * len(tasks)), squeeze=False
    )
    for i, task in enumerate(tasks):
        for j, method in enumerate(methods):
            row = next(r for r in rows if r["task"] == task and r["method"] == method)
            axis = axes[i, j]
            axis.axhspan(-row["band"], row["band"], color="0.88")
            for name, ranks in zip(row["features"], row["ranks"], strict=True):
                position = np.sort((np.array(ranks) + 0.5) / (row["num_samples"] + 1))
                share = np.arange(1, len(position) + 1) / len(position)
                axis.plot(position, share - position, lw=1, label=name)
            axis.set(
                ylim=(-0.35, 0.35), title=f"{method}\n{TITLES[task]}", xlabel="rank of the truth / (N + 1)"
            )
            axis.title.set_fontsize(7)
            axes[i, -1].plot(
                row["levels"], np.mean(row["coverage"], axis=1), "o-", ms=3, lw=1, color=f"C{j}", label=method
            )
        axes[i, 0].set_ylabel("empirical - uniform")
        axes[i, -1].plot([0.4, 1], [0.4, 1], "k--", lw=0.8)
        axes[i, -1].set(title="coverage of central intervals", xlabel="nominal", ylabel="measured")
        axes[i, -1].title.set_fontsize(7)
        axes[i, -1].legend(fontsize=5)
    axes[0, 0].legend(fontsize=5)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def table(rows: list[dict[str, Any]], mixture: str, task: str) -> str:
    """One Markdown table of scores and costs."""
    head = "| method | SW2 | +/- | mean error | std ratio | chi2 | forwards | backwards | CPU s |\n"
    lines = [head + "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        if (row["mixture"], row["task"]) != (mixture, task):
            continue
        items = np.array(row["sw2_by_item"])
        error = items.std(ddof=1) / np.sqrt(len(items))
        costs = "| 0 | 0 | - |"
        if "forwards" in row:
            costs = f"| {row['forwards']:.0f} | {row['backwards']:.0f} | {row['cpu_seconds']:.1f} |"
        name = row["method"]
        if len(items) < len(rows[0]["sw2_by_item"]) and "solved" in name:
            rival = next(
                r for r in rows if (r["mixture"], r["task"]) == (mixture, task) and "G=20" in r["method"]
            )
            there = np.mean(rival["sw2_by_item"][: len(items)])
            name += f" (first {len(items)} observations; Adam, G=20 on these: {there:.3f})"
        lines.append(
            f"| {name} | {row['sw2']:.3f} | {error:.3f} | {row['mean_error']:.3f} | "
            f"{row['std_ratio']:.2f} | {row['chi_square']:.2f} {costs}"
        )
    return "\n".join(lines)


def calibration_table(rows: list[dict[str, Any]]) -> str:
    """Coverage and deviation of the ranks."""
    levels = rows[0]["levels"]
    lines = [
        "| task | method | "
        + " | ".join(f"coverage at {level:.0%}" for level in levels)
        + " | worst gap of ranks | band |",
        "|---|---|" + "---|" * (len(levels) + 2),
    ]
    for row in rows:
        shares = " | ".join(f"{np.mean(c):.3f}" for c in row["coverage"])
        gap = max(row["deviation"])
        lines.append(f"| {row['task']} | {row['method']} | {shares} | {gap:.3f} | {row['band']:.3f} |")
    return "\n".join(lines)


def spread_table(rows: list[dict[str, Any]]) -> str:
    """Ten mixtures."""
    if not rows:
        return "(not in the quick version)"
    methods = [name for name in rows[0] if name not in ("seed", "task", "floor", "ambiguous")]
    lines = [
        "| mixture, task | ambiguous | floor | " + " | ".join(methods) + " |",
        "|---|---|---|" + "---|" * len(methods),
    ]
    for task in TITLES:
        here = [row for row in rows if row["task"] == task]
        for row in here:
            values = " | ".join(f"{row[name]:.3f}" for name in methods)
            lines.append(
                f"| seed {row['seed']}, {task} | {row['ambiguous']} | {row['floor']:.3f} | {values} |"
            )
        means = " | ".join(f"**{np.mean([row[name] for row in here]):.3f}**" for name in methods)
        lines.append(f"| mean, {task} | | {np.mean([row['floor'] for row in here]):.3f} | {means} |")
    return "\n".join(lines)


def write(folder: Path) -> None:
    """Figures and page from ``mixture_oracle.json`` in the folder."""
    result = json.loads((folder / "mixture_oracle.json").read_text())
    rows = result["mixtures"]
    draw_pareto(rows, folder / "mixture_oracle.png")
    draw_calibration(result["calibration"], folder / "mixture_oracle_calibration.png")
    tables = "\n\n".join(
        f"### {mixture} mixture, {TITLES[task]}\n\n{table(rows, mixture, task)}"
        for mixture, task in dict.fromkeys((row["mixture"], row["task"]) for row in rows)
    )
    template = (Path(__file__).parent / "mixture_oracle_page.md").read_text()
    page = template.format(
        command=result["command"],
        versions=", ".join(f"{name} {version}" for name, version in result["versions"].items()),
        samples=result["samples"],
        observations=" and ".join(map(str, result["observations"])),
        tables=tables,
        spread=spread_table(result["spread"]),
        calibration=calibration_table(result["calibration"]),
        calibration_observations=len(result["calibration"][0]["ranks"][0]),
    )
    (folder / "mixture_oracle.md").write_text(page)


if __name__ == "__main__":
    write(tyro.cli(Path))
