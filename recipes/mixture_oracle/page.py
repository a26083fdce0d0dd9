"""The page and the figures of the oracle benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.ticker

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from lavps.benchmark.report import markdown_table

from ..common.labels import TITLES
from ..common.oracle import sw2_error
from ..common.pages import read, versions_of, write_page

FAMILIES = {
    "MGDM (Adam)": "C0",
    "MGDM (whitened gradient)": "C2",
    "MGDM (random initialization)": "C6",
    "MGPS": "C4",
    "DPS": "C1",
    "MMPS": "C5",
}


def cost(row: dict[str, Any]) -> float:
    """Return the NFE: forward passes plus twice the backward passes."""
    return float(row["forwards"] + 2 * row["backwards"])


def draw_pareto(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw SW2 against NFE, one panel per mixture and task."""
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
        here = [row for row in here if len(row["sw2_by_item"]) == count]  # MGDM (solved) has fewer
        axis.axhline(floor, color="k", lw=1, ls="--", label="exact posterior (floor)")
        for family, colour in FAMILIES.items():
            group = [row for row in here if row["method"].startswith(family)]
            axis.scatter(
                [cost(row) for row in group], [row["sw2"] for row in group], c=colour, label=family, s=36
            )
            for row in group:
                label = row["method"].removeprefix(family).lstrip(", ")
                label = label.replace(", safeguard", "")
                axis.annotate(
                    label, (cost(row), row["sw2"]), fontsize=6, xytext=(3, 3), textcoords="offset points"
                )
        axis.set(
            xscale="log",
            xlabel="NFE: denoiser forward passes + 2 x backward passes",
            title=f"{panel[0]}, {TITLES[panel[1]]}",
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
    """Draw the empirical distribution of the ranks minus the uniform one, with its band, and the coverage."""
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


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table of scores and costs of one mixture and task."""
    head = [
        "method",
        "SW2",
        "s.e.",
        "mean error",
        "std ratio",
        "chi²",
        "forward passes",
        "backward passes",
        "CPU s",
    ]
    lines, whole = [], len(rows[0]["sw2_by_item"])
    for row in rows:
        count, name = len(row["sw2_by_item"]), row["method"]
        costs = ["0", "0", "-"]
        if "forwards" in row:
            costs = [f"{row['forwards']:.0f}", f"{row['backwards']:.0f}", f"{row['cpu_seconds']:.1f}"]
        if count < whole:
            reference = next(r for r in rows if "G=20" in r["method"])
            there = np.mean(reference["sw2_by_item"][:count])
            name += f" (first {count} observations; {reference['method']} on these: {there:.3f})"
        scores = [f"{row['sw2']:.3f}", f"{sw2_error(row):.3f}", f"{row['mean_error']:.3f}"]
        lines.append([name, *scores, f"{row['std_ratio']:.2f}", f"{row['chi_square']:.2f}", *costs])
    return markdown_table(head, lines)


def calibration_table(rows: list[dict[str, Any]]) -> str:
    """Return coverage and deviation of the ranks."""
    levels = [f"coverage at {level:.0%}" for level in rows[0]["levels"]]
    lines = [
        [row["task"], row["method"], *[f"{np.mean(c):.3f}" for c in row["coverage"]], f"{max(row['deviation']):.3f}", f"{row['band']:.3f}"]
        for row in rows
    ]  # fmt: skip
    return markdown_table(["task", "method", *levels, "largest deviation of the ranks", "band"], lines)


def spread_table(rows: list[dict[str, Any]]) -> str:
    """Return SW2 on ten mixtures."""
    if not rows:
        return "(not in the quick version)"
    methods = [name for name in rows[0] if name not in ("seed", "task", "floor", "ambiguous")]
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        here = [row for row in rows if row["task"] == task]
        for row in here:
            values = [f"{row[name]:.3f}" for name in ("floor", *methods)]
            lines.append([f"seed {row['seed']}, {task}", str(row["ambiguous"]), *values])
        means = [f"{np.mean([row[name] for row in here]):.3f}" for name in ("floor", *methods)]
        lines.append([f"mean, {task}", "", means[0], *[f"**{mean}**" for mean in means[1:]]])
    return markdown_table(["mixture, task", "ambiguous", "floor", *methods], lines)


def write(folder: Path) -> None:
    """Write figures and page from ``mixture_oracle.json`` in the folder."""
    result = read(folder, "mixture_oracle")
    rows = result["mixtures"]
    draw_pareto(rows, folder / "mixture_oracle.png")
    draw_calibration(result["calibration"], folder / "mixture_oracle_calibration.png")
    by_panel: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by_panel.setdefault((row["mixture"], row["task"]), []).append(row)
    write_page(
        folder,
        "mixture_oracle",
        options=" --quick" if result["quick"] else "",
        versions=versions_of(result),
        samples=result["samples"],
        observations=" and ".join(map(str, result["observations"])),
        tables="\n\n".join(
            f"### {m} mixture, {TITLES[task]}\n\n{table(own)}" for (m, task), own in by_panel.items()
        ),
        spread=spread_table(result["spread"]),
        calibration=calibration_table(result["calibration"]),
        calibration_observations=len(result["calibration"][0]["ranks"][0]),
    )
