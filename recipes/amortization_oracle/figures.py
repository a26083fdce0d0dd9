"""The figures of the amortization benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from lavps.evaluation import pareto_front

from ..common.labels import TITLES
from ..common.oracle import Row, sw2_error


def panels(rows: list[Row]) -> list[tuple[str, str]]:
    """Return the mixtures and tasks that were run."""
    return list(dict.fromkeys((row["mixture"], row["task"]) for row in rows))


def of(rows: list[Row], panel: tuple[str, str], group: str, part: str = "") -> list[Row]:
    """Return the rows of a panel and group whose method name contains a text."""
    return [
        r for r in rows if (r["mixture"], r["task"]) == panel and r["group"] == group and part in r["method"]
    ]


def warm_every_step(
    rows: list[Row], panel: tuple[str, str], group: str = "LAVPS", steps: int = 0
) -> list[Row]:
    """Return LAVPS without safeguard, with the model at every step, by K."""
    return of(rows, panel, group, f"every step, G={steps}")


def _axes(
    rows: list[Row], width: float = 5.2, height: float = 3.9
) -> tuple[Any, list[tuple[Axes, tuple[str, str]]]]:
    wanted = panels(rows)
    columns = min(2, len(wanted))
    lines = -(-len(wanted) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(width * columns, height * lines), squeeze=False)
    for axis, panel in zip(axes.flat, wanted, strict=True):
        axis.set_title(f"{panel[0]} mixture, {TITLES[panel[1]]}", fontsize=10)
        axis.grid(alpha=0.25)
    return figure, list(zip(axes.flat, wanted, strict=True))


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _front(axis: Axes, part: list[Row], label: str, colour: str, marker: str) -> None:
    """Draw all points, and the front as a line."""
    cost, score = [r["compute"] for r in part], [r["sw2"] for r in part]
    axis.scatter(cost, score, c=colour, s=14, alpha=0.35, linewidths=0)
    kept = pareto_front(cost, score)
    axis.plot(
        [cost[i] for i in kept], [score[i] for i in kept], marker, c=colour, ms=4.5, lw=1.2, label=label
    )


def draw_fronts(rows: list[Row], path: Path) -> None:
    """Draw SW2 against NFE: fronts of MGDM, and LAVPS with the model at every step, by K."""
    figure, axes = _axes(rows)
    for axis, panel in axes:
        _front(axis, of(rows, panel, "MGDM (Adam)"), "MGDM (Adam)", "C0", "o-")
        _front(axis, of(rows, panel, "MGDM (whitened gradient)"), "MGDM (whitened gradient)", "C2", "s-")
        warm = warm_every_step(rows, panel)
        _front(axis, warm, "LAVPS, G=0 (no backward pass)", "C3", "D-")
        _front(axis, warm_every_step(rows, panel, steps=1), "LAVPS, G=1 whitened", "C1", "^-")
        for row in warm:
            place = (row["compute"], row["sw2"])
            axis.annotate(
                row["method"].split(",")[0],
                place,
                fontsize=7,
                color="C3",
                xytext=(-4, -10),
                textcoords="offset points",
            )
        floor = of(rows, panel, "exact")[0]["sw2"]
        axis.axhline(floor, c="0.5", lw=0.8, ls=":")
        axis.text(
            0.99,
            floor,
            "exact samples ",
            fontsize=7,
            color="0.4",
            va="bottom",
            ha="right",
            transform=axis.get_yaxis_transform(),
        )
        top = max(r["sw2"] for r in warm)
        axis.set(xscale="log", ylim=(0, min(0.3, 1.25 * top)), ylabel="sliced W2 to the exact posterior")
        axis.set(xlabel="NFE")
    axes[0][0].legend(fontsize=7, loc="upper right")
    _save(figure, path)


def draw_windows(rows: list[Row], path: Path) -> None:
    """Draw SW2 against the share of the steps at which the model is evaluated, with MGDM as a reference."""
    figure, axes = _axes(rows, height=3.2)
    for axis, panel in axes:
        for steps, colour in ((0, "C3"), (1, "C1")):
            part = of(rows, panel, "LAVPS", f"G={steps}, safeguarded")
            share = [int(r["method"].split("last ")[1].split("%")[0]) for r in part]
            axis.errorbar(
                share,
                [r["sw2"] for r in part],
                [sw2_error(r) for r in part],
                c=colour,
                marker="o",
                ms=4,
                lw=1.2,
                capsize=2,
                label=f"LAVPS, G={steps} in the window",
            )
        zero = of(rows, panel, "MGDM (whitened gradient)", "K=100, G=1")[0]
        axis.axhline(zero["sw2"], c="C2", lw=1, ls="--", label="MGDM (whitened gradient), G=1")
        long = of(rows, panel, "MGDM (Adam)", "K=100, G=20")[0]
        axis.axhline(long["sw2"], c="C0", lw=1, ls="--", label="MGDM (Adam), G=20")
        axis.set(xlabel="window: last per cent of the steps", ylabel="sliced W2", ylim=(0, None))
    axes[0][0].legend(fontsize=7)
    _save(figure, path)


def draw_acceptance(rows: list[Row], path: Path) -> None:
    """Draw the acceptance rate of the safeguard by time, in and out of distribution."""
    mixtures = list(dict.fromkeys(row["mixture"] for row in rows))
    figure, axes = plt.subplots(1, len(mixtures), figsize=(5.2 * len(mixtures), 3.4), squeeze=False)
    for axis, mixture in zip(axes[0], mixtures, strict=True):
        curves = [
            ("SR4 model on SR4", of(rows, (mixture, "sr4"), "LAVPS", "last 100%, G=1"), "C0", "-"),
            (
                "inpainting model on inpainting",
                of(rows, (mixture, "inpainting"), "LAVPS", "last 100%, G=1"),
                "C2",
                "-",
            ),
            (
                "family model on one of its masks",
                of(rows, (mixture, "inpainting"), "LAVPS, family of masks", "last 100%, G=1"),
                "C4",
                "-",
            ),
            (
                "SR4 model on inpainting (not trained on)",
                of(rows, (mixture, "inpainting"), "out of distribution", "whitened, K=100, G=1, safe"),
                "C3",
                "--",
            ),
        ]
        for label, found, colour, style in curves:
            axis.plot(
                found[0]["times"],
                found[0]["acceptance_by_step"],
                style,
                c=colour,
                lw=1.4,
                label=f"{label} ({found[0]['acceptance']:.0%})",
            )
        axis.set(
            title=f"{mixture} mixture",
            xlabel="t",
            ylabel="acceptance rate",
            ylim=(-0.03, 1.03),
        )
        axis.grid(alpha=0.25)
        axis.legend(fontsize=7, loc="lower right")
    _save(figure, path)


def draw_verdicts(verdicts: list[Row], path: Path) -> None:
    """Draw the share of wrong decisions by time, one panel per mixture and kind of candidate."""
    mixtures = [(v["mixture"], {k: e for k, e in v.items() if k != "mixture"}) for v in verdicts]
    figure, axes = plt.subplots(len(mixtures), 2, figsize=(10.4, 3.3 * len(mixtures)), squeeze=False)
    for line, (mixture, cases) in zip(axes, mixtures, strict=True):
        for axis, own in zip(line, (True, False), strict=True):
            chosen = [e for name, e in cases.items() if (name.split(",")[0] == name.rsplit(" ", 1)[1]) == own]
            for rule, colour in zip(chosen[0]["rules"], ("C3", "C1", "C2", "C0"), strict=True):
                by_time = [
                    sum(e["rules"][rule]["wrong_by_time"][b] for e in chosen) / len(chosen) for b in range(10)
                ]
                axis.plot(
                    [(b + 0.5) / 10 for b in range(10)], by_time, "o-", c=colour, ms=3.5, lw=1.2, label=rule
                )
            kind = "the task's own model" if own else "a model of another task"
            axis.set(
                title=f"{mixture} mixture, {kind}",
                xlabel="t",
                ylabel="share of wrong decisions",
                ylim=(-0.01, None),
            )
            axis.title.set_fontsize(10)
            axis.grid(alpha=0.25)
    axes[0, 0].legend(fontsize=7)
    _save(figure, path)
