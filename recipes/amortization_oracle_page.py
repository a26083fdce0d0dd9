"""The page of the amortization benchmark, made from its JSON alone.

python recipes/amortization_oracle_page.py benchmarks
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import tyro

import amortization_oracle_figures as figures
from amortization_oracle_figures import TITLES, Row, of, panels, standard_error, warm_every_step
from lavps.evaluation.benchmark.report import markdown_table as table

# Two runs whose SW2 differ by less are called equal, in favour of the method that is compared with.
EQUAL = 0.002
VARIANTS = {
    "LAVPS": "Palette and the likelihood step (the default)",
    "LAVPS, Palette alone": "Palette alone (the paper's)",
    "LAVPS, gradient channel": "Palette and the likelihood-gradient channel",
    "LAVPS, on-policy contexts": "default, contexts rolled out two steps with the model itself",
    "LAVPS, likelihood step alone": "the likelihood step alone, no network, no training",
    "LAVPS, family of masks": "default, trained on a family of masks",
}


def number(value: float | None, digits: int = 3) -> str:
    """A number, or a dash."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def with_error(row: Row) -> str:
    """SW2 with its standard error over observations."""
    return f"{row['sw2']:.3f} ± {standard_error(row):.3f}"


def title(panel: tuple[str, str]) -> str:
    """Of a panel."""
    return f"{panel[0]}, {TITLES[panel[1]]}"


def headline(rows: list[Row]) -> str:
    """G=0 at every step beside MGDM with twenty gradient steps."""
    lines = []
    for panel in panels(rows):
        warm, long = warm_every_step(rows, panel)[-1], of(rows, panel, "MGDM, Adam", "K=100, G=20")[0]
        floor = of(rows, panel, "exact")[0]
        gap = warm["sw2"] - long["sw2"]
        lines.append(
            [title(panel), number(floor["sw2"]), with_error(long), with_error(warm), f"{gap:+.3f}",
             "yes" if gap <= 0.010 else "**no**", number(long["compute"], 0), number(warm["compute"], 0)]
        )  # fmt: skip
    header = [
        "mixture and task",
        "exact samples",
        "MGDM, Adam, G=20",
        "LAVPS, G=0",
        "difference",
        "≤ .010",
        "compute MGDM",
        "compute LAVPS",
    ]
    return table(header, lines)


def cheapest(rows: list[Row], sw2: float) -> Row | None:
    """The cheapest of these that is as good."""
    good = [r for r in rows if r["sw2"] <= sw2 + EQUAL]
    return min(good, key=lambda r: r["compute"], default=None)


def speed_ups(rows: list[Row]) -> str:
    """Compute of the cheapest zero-shot configuration as good as each of LAVPS's."""
    lines = []
    for panel in panels(rows):
        adam, white = (of(rows, panel, f"MGDM, {name}") for name in ("Adam", "whitened"))
        for row in warm_every_step(rows, panel):
            cells = [title(panel), row["method"].split(",")[0], number(row["sw2"]), number(row["compute"], 0)]
            for rivals in (adam, adam + white):
                rival = cheapest(rivals, row["sw2"])
                cells += (
                    ["none as good", "-"]
                    if rival is None
                    else [
                        f"{'Adam' if rival in adam else 'whitened'}, {rival['method']} ({rival['compute']:.0f})",
                        f"{rival['compute'] / row['compute']:.1f}x",
                    ]
                )
            lines.append(cells)
    header = [
        "mixture and task",
        "LAVPS, G=0",
        "SW2",
        "compute",
        "cheapest Adam-MGDM as good",
        "factor",
        "cheapest MGDM as good",
        "factor",
    ]
    return table(header, lines)


def mgps(rows: list[Row]) -> str:
    """Warm MGPS beside zero-shot MGPS at no less compute."""
    lines = []
    for panel in panels(rows):
        zero = of(rows, panel, "MGPS")
        for row in of(rows, panel, "MGPS, warm"):
            # The best zero-shot result for at most the same compute, and the cheapest as good.
            within = [r for r in zero if r["compute"] <= row["compute"]]
            best, rival = min(within, key=lambda r: r["sw2"], default=None), cheapest(zero, row["sw2"])
            lines.append(
                [title(panel), row["method"], with_error(row), number(row["compute"], 0),
                 "-" if best is None else f"{best['sw2']:.3f} ({best['method']})",
                 "none as good" if rival is None else f"{rival['method']} ({rival['compute']:.0f}, {rival['compute'] / row['compute']:.1f}x)"]
            )  # fmt: skip
    header = [
        "mixture and task",
        "MGPS, warm",
        "SW2",
        "compute",
        "best zero-shot MGPS for no more compute",
        "cheapest zero-shot MGPS as good",
    ]
    return table(header, lines)


def robustness(rows: list[Row]) -> str:
    """The SR4 model on inpainting beside MGDM with the same gradient steps."""
    lines = []
    for panel in panels(rows):
        for row in of(rows, panel, "out of distribution"):
            _, minimizer, steps, gradients = row["method"].split(", ")[:4]
            zero = next(
                r for r in of(rows, panel, f"MGDM, {minimizer}") if r["method"] == f"{steps}, {gradients}"
            )
            guarded = "safeguarded" in row["method"]
            lines.append(
                [panel[0], f"{minimizer}, {gradients}", "yes" if guarded else "no", with_error(zero), with_error(row),
                 f"{row['sw2'] - zero['sw2']:+.3f}", number(row["acceptance"], 2)]
            )  # fmt: skip
    return table(
        ["mixture", "settings", "safeguard", "MGDM", "LAVPS, SR4 model", "difference", "kept"], lines
    )


def nonlinear(results: list[Row]) -> str:
    """Both models on a random nonlinear operator, beside MGDM with the same settings."""
    lines = []
    for result in results:
        rows = {row["method"]: row for row in result["rows"]}
        for name, row in rows.items():
            settings = name.split(", ", 1)[-1].removeprefix("safeguarded, ")
            zero = rows.get(f"MGDM, {settings}", row)
            gaps = [warm - cold for warm, cold in zip(row["sw2_by_item"], zero["sw2_by_item"], strict=True)]
            gap = {"sw2": sum(gaps) / len(gaps), "sw2_by_item": gaps}
            lines.append(
                [result["mixture"], name, with_error(row), "-" if zero is row else f"{gap['sw2']:+.3f} ± {standard_error(gap):.3f}",
                 number(row["chi_square"], 2), number(row["acceptance"], 2)]
            )  # fmt: skip
    return table(["mixture", "method", "SW2 to the reference", "above MGDM", "chi2", "kept"], lines)


def verdicts(results: list[Row]) -> str:
    """How often each rule is wrong, and what that costs."""
    lines = []
    for result in results:
        for case, entry in result.items():
            if case != "mixture":
                for rule, found in entry["rules"].items():
                    lines.append(
                        [result["mixture"], case, rule, f"{found['wrong']:.1%}", number(found["cost_nats"], 2),
                         f"{found['accepted']:.0%}", f"{entry['truly_better']:.0%}"]
                    )  # fmt: skip
    return table(["mixture", "task and model", "rule", "wrong", "cost (nats)", "kept", "truly better"], lines)


def variants(rows: list[Row]) -> str:
    """What the model is told and trained on, at G=0 and every step."""
    lines = []
    for panel in panels(rows):
        for group, label in VARIANTS.items():
            found = warm_every_step(rows, panel, group)
            if found:
                lines.append([title(panel), label, *(number(r["sw2"]) for r in found)])
    counts = [row["method"].split(",")[0] for row in warm_every_step(rows, panels(rows)[0])]
    return table(["mixture and task", "model", *counts], lines)


def renoise(rows: list[Row]) -> str:
    """Forward against bridge re-noising."""
    lines = []
    for panel in panels(rows):
        for row in of(rows, panel, "re-noise by bridge"):
            group, method = (
                ("LAVPS", row["method"].removeprefix("LAVPS, "))
                if row["method"].startswith("LAVPS")
                else ("MGDM, Adam", row["method"].removeprefix("MGDM, Adam, "))
            )
            forward = next(r for r in of(rows, panel, group) if r["method"] == method)
            lines.append([title(panel), f"{group}, {method}", with_error(forward), with_error(row)])
    return table(
        ["mixture and task", "method", "forward (the paper's text)", "bridge (the authors' code)"], lines
    )


def trainings(results: list[Row]) -> str:
    """Cost and success of every training."""
    return table(
        ["mixture", "model", "parameters", "CPU s", "L warm", "L zero-shot", "warm wins", "pass / denoiser forward"],
        [
            [t["mixture"], t["model"], f"{t['parameters']:,}", number(t["cpu_seconds"], 0), number(t["validation"]["warm"], 1),
             number(t["validation"]["zero"], 1), f"{t['validation']['acceptance']:.0%}", number(t["relative_cost"], 2)]
            for t in results
        ],
    )  # fmt: skip


def everything(rows: list[Row]) -> str:
    """All that was run."""
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
        "chi2",
        "forwards",
        "backwards",
        "model passes",
        "compute",
        "kept",
    ]
    return table(header, lines)


def write(folder: Path) -> None:
    """Figures and page from ``amortization_oracle.json`` in the folder."""
    result: dict[str, Any] = json.loads((folder / "amortization_oracle.json").read_text())
    rows = result["rows"]
    figures.draw_fronts(rows, folder / "amortization_oracle.png")
    figures.draw_windows(rows, folder / "amortization_oracle_windows.png")
    figures.draw_acceptance(rows, folder / "amortization_oracle_acceptance.png")
    figures.draw_verdicts(result["verdicts"], folder / "amortization_oracle_verdicts.png")
    settings = {k: result["config"][k] for k in ("steps", "batch_size", "samples")}
    counts = {row["mixture"]: len(row["sw2_by_item"]) for row in rows}
    sizes = " ".join(name.split("x")[0] for name in counts)
    template = (Path(__file__).parent / "amortization_oracle_page.md").read_text()
    page = template.format(
        command=f"python recipes/amortization_oracle.py --mixtures {sizes}",
        versions=", ".join(f"{name} {version}" for name, version in result["versions"].items()),
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
    (folder / "amortization_oracle.md").write_text(page)


if __name__ == "__main__":
    write(tyro.cli(Path))
