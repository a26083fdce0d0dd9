"""The page of the amortization benchmark."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from lavps.benchmark.report import markdown_table as table

from ..common.labels import TITLES
from ..common.oracle import Row, sw2_error
from ..common.pages import read, versions_of, write_page
from . import figures
from .figures import of, panels, warm_every_step

# A configuration matches another one if its SW2 is at most this much higher.
TOLERANCE = 0.002
# Largest SW2 of LAVPS above that of MGDM with twenty Adam steps.
BOUND = 0.010
GRADIENTS = {"Adam": "Adam", "whitened": "whitened gradient"}
VARIANTS = {
    "LAVPS": "LAVPS: Palette and the linearized step (default)",
    "LAVPS, Palette alone": "LAVPS: Palette alone (as in the paper)",
    "LAVPS, gradient channel": "LAVPS: Palette and a channel with the likelihood gradient",
    "LAVPS, on-policy contexts": "LAVPS: default, contexts rolled out two steps with the model itself",
    "LAVPS, family of masks": "LAVPS: default, trained on a family of masks",
    "MGDM (linearized)": "MGDM (linearized): no network, no training",
}


def number(value: float | None, digits: int = 3) -> str:
    """Return a number, or a dash."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def with_error(row: Row) -> str:
    """Return SW2 ± its standard error over observations."""
    return f"{row['sw2']:.3f} ± {sw2_error(row):.3f}"


def title(panel: tuple[str, str]) -> str:
    """Return the title of a panel."""
    return f"{panel[0]}, {TITLES[panel[1]]}"


def headline(rows: list[Row]) -> str:
    """Compare LAVPS without gradients with MGDM with twenty gradient steps."""
    lines = []
    for panel in panels(rows):
        warm, long = warm_every_step(rows, panel)[-1], of(rows, panel, "MGDM (Adam)", "K=100, G=20")[0]
        floor = of(rows, panel, "exact")[0]
        gap = warm["sw2"] - long["sw2"]
        lines.append(
            [title(panel), number(floor["sw2"]), with_error(long), with_error(warm), f"{gap:+.3f}",
             "yes" if gap <= BOUND else "**no**", number(long["compute"], 0), number(warm["compute"], 0)]
        )  # fmt: skip
    header = [
        "mixture and task",
        "exact samples",
        "MGDM (Adam), G=20",
        "LAVPS, G=0",
        "difference",
        f"≤ {BOUND:.3f}",
        "NFE of MGDM",
        "NFE of LAVPS",
    ]
    return table(header, lines)


def cheapest(rows: list[Row], sw2: float) -> Row | None:
    """Return the cheapest row that matches an SW2."""
    good = [r for r in rows if r["sw2"] <= sw2 + TOLERANCE]
    return min(good, key=lambda r: r["compute"], default=None)


def speed_ups(rows: list[Row]) -> str:
    """Compare the NFE of LAVPS with that of the cheapest matching MGDM."""
    lines = []
    for panel in panels(rows):
        adam, white = (of(rows, panel, f"MGDM ({name})") for name in ("Adam", "whitened gradient"))
        for row in warm_every_step(rows, panel):
            cells = [title(panel), row["method"].split(",")[0], number(row["sw2"]), number(row["compute"], 0)]
            for candidates in (adam, adam + white):
                found = cheapest(candidates, row["sw2"])
                if found is None:
                    cells += ["none", "-"]
                else:
                    name = f"{found['group']}, {found['method']} ({found['compute']:.0f})"
                    cells += [name, f"{found['compute'] / row['compute']:.1f}x"]
            lines.append(cells)
    header = [
        "mixture and task",
        "LAVPS, G=0",
        "SW2",
        "NFE",
        "cheapest matching MGDM (Adam)",
        "NFE ratio",
        "cheapest matching MGDM",
        "NFE ratio",
    ]
    return table(header, lines)


def mgps(rows: list[Row]) -> str:
    """Compare amortized MGPS with MGPS."""
    lines = []
    for panel in panels(rows):
        zero = of(rows, panel, "MGPS")
        for row in of(rows, panel, "MGPS, warm"):
            # The best MGPS with at most the same NFE, and the cheapest match.
            within = [r for r in zero if r["compute"] <= row["compute"]]
            best, found = min(within, key=lambda r: r["sw2"], default=None), cheapest(zero, row["sw2"])
            lines.append(
                [title(panel), row["method"], with_error(row), number(row["compute"], 0),
                 "-" if best is None else f"{best['sw2']:.3f} ({best['method']})",
                 "none" if found is None else f"{found['method']} ({found['compute']:.0f}, {found['compute'] / row['compute']:.1f}x)"]
            )  # fmt: skip
    header = [
        "mixture and task",
        "MGPS (amortized)",
        "SW2",
        "NFE",
        "best MGPS with at most the same NFE",
        "cheapest matching MGPS (NFE, NFE ratio)",
    ]
    return table(header, lines)


def robustness(rows: list[Row]) -> str:
    """Compare the SR4 model on inpainting with MGDM with the same gradient steps."""
    lines = []
    for panel in panels(rows):
        for row in of(rows, panel, "out of distribution"):
            _, minimizer, steps, gradients = row["method"].split(", ")[:4]
            zero = next(
                r
                for r in of(rows, panel, f"MGDM ({GRADIENTS[minimizer]})")
                if r["method"] == f"{steps}, {gradients}"
            )
            guarded = "safeguarded" in row["method"]
            lines.append(
                [panel[0], f"{minimizer}, {gradients}", "yes" if guarded else "no", with_error(zero), with_error(row),
                 f"{row['sw2'] - zero['sw2']:+.3f}", number(row["acceptance"], 2)]
            )  # fmt: skip
    return table(
        ["mixture", "settings", "safeguard", "MGDM", "LAVPS, SR4 model", "difference", "acceptance rate"],
        lines,
    )


def nonlinear(results: list[Row]) -> str:
    """Compare both models on a random nonlinear operator with MGDM with the same settings."""
    lines = []
    for result in results:
        rows = {row["method"]: row for row in result["rows"]}
        for name, row in rows.items():
            zero = rows.get(row["reference"], row)
            gaps = [warm - cold for warm, cold in zip(row["sw2_by_item"], zero["sw2_by_item"], strict=True)]
            gap = {"sw2": sum(gaps) / len(gaps), "sw2_by_item": gaps}
            lines.append(
                [result["mixture"], name, with_error(row), "-" if zero is row else f"{gap['sw2']:+.3f} ± {sw2_error(gap):.3f}",
                 number(row["chi_square"], 2), number(row["acceptance"], 2)]
            )  # fmt: skip
    return table(
        ["mixture", "method", "SW2 to the reference", "difference to MGDM", "chi²", "acceptance rate"], lines
    )


def verdicts(results: list[Row]) -> str:
    """Return the error rate of each rule, and its cost."""
    lines = []
    for result in results:
        for case, entry in result.items():
            if case != "mixture":
                for rule, found in entry["rules"].items():
                    lines.append(
                        [result["mixture"], case, rule, f"{found['wrong']:.1%}", number(found["cost_nats"], 2),
                         f"{found['accepted']:.0%}", f"{entry['truly_better']:.0%}"]
                    )  # fmt: skip
    return table(
        [
            "mixture",
            "task and model",
            "rule",
            "wrong",
            "cost (nats)",
            "acceptance rate",
            "better by the mean",
        ],
        lines,
    )


def variants(rows: list[Row]) -> str:
    """Compare conditionings and training contexts, with the model at every step and G=0."""
    lines = []
    for panel in panels(rows):
        for group, label in VARIANTS.items():
            found = warm_every_step(rows, panel, group)
            if found:
                lines.append([title(panel), label, *(number(r["sw2"]) for r in found)])
    counts = [row["method"].split(",")[0] for row in warm_every_step(rows, panels(rows)[0])]
    return table(["mixture and task", "model", *counts], lines)


def renoise(rows: list[Row]) -> str:
    """Compare forward and bridge re-noising."""
    lines = []
    for panel in panels(rows):
        for row in of(rows, panel, "re-noise by bridge"):
            group, method = (
                ("LAVPS", row["method"].removeprefix("LAVPS, "))
                if row["method"].startswith("LAVPS")
                else ("MGDM (Adam)", row["method"].removeprefix("MGDM (Adam), "))
            )
            forward = next(r for r in of(rows, panel, group) if r["method"] == method)
            lines.append([title(panel), f"{group}, {method}", with_error(forward), with_error(row)])
    return table(
        ["mixture and task", "method", "forward (text of the paper)", "bridge (code of the authors)"], lines
    )


def trainings(results: list[Row]) -> str:
    """Return cost and result of every training run."""
    return table(
        ["mixture", "model", "parameters", "CPU s", "objective, model", "objective, bridge", "model better", "relative cost of a forward pass"],
        [
            [t["mixture"], t["model"], f"{t['parameters']:,}", number(t["cpu_seconds"], 0), number(t["validation"]["warm"], 1),
             number(t["validation"]["zero"], 1), f"{t['validation']['acceptance']:.0%}", number(t["relative_cost"], 2)]
            for t in results
        ],
    )  # fmt: skip


def everything(rows: list[Row]) -> str:
    """Return all results."""
    keys = ("mean_error", "std_ratio", "chi_square", "forwards", "backwards", "model_forwards", "compute")
    digits = (3, 2, 2, 0, 0, 0, 0)
    lines = []
    for row in rows:
        values = [number(row.get(key), d) for key, d in zip(keys, digits, strict=True)]
        name = row["method"] if row["group"] == "exact" else f"{row['group']}: {row['method']}"
        lines.append(
            [
                title((row["mixture"], row["task"])),
                name,
                with_error(row),
                *values,
                number(row.get("acceptance"), 2),
            ]
        )
    header = [
        "mixture and task",
        "method",
        "SW2",
        "mean error",
        "std ratio",
        "chi²",
        "forward passes",
        "backward passes",
        "model forward passes",
        "NFE",
        "acceptance rate",
    ]
    return table(header, lines)


def write(folder: Path) -> None:
    """Write figures and page from ``amortization_oracle.json`` in the folder."""
    result: dict[str, Any] = read(folder, "amortization_oracle")
    rows = result["rows"]
    figures.draw_fronts(rows, folder / "amortization_oracle.png")
    figures.draw_windows(rows, folder / "amortization_oracle_windows.png")
    figures.draw_acceptance(rows, folder / "amortization_oracle_acceptance.png")
    figures.draw_verdicts(result["verdicts"], folder / "amortization_oracle_verdicts.png")
    settings = {k: result["config"][k] for k in ("steps", "batch_size", "samples")}
    counts = {row["mixture"]: len(row["sw2_by_item"]) for row in rows}
    sizes = " ".join(name.split("x")[0] for name in counts)
    write_page(
        folder,
        "amortization_oracle",
        options=f" --mixtures {sizes}",
        versions=versions_of(result),
        bound=f"{BOUND:.3f}",
        tolerance=f"{TOLERANCE:.3f}",
        observations=" and ".join(f"{count} observations ({name})" for name, count in counts.items()),
        headline=headline(rows),
        speed_ups=speed_ups(rows),
        mgps=mgps(rows),
        robustness=robustness(rows),
        nonlinear=nonlinear(result["nonlinear"]),
        verdicts=verdicts(result["verdicts"]),
        variants=variants(rows),
        renoise=renoise(rows),
        trainings=trainings(result["trainings"]),
        everything=everything(rows),
        **settings,
    )
