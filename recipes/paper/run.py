"""The paper's own experiments: LAVPS with its model in a window of the last steps, against MGDM with Adam.

    python -m recipes.paper.run --data DATA --lpips FILE
    python -m recipes.paper.run --scale paper --device cuda --ends 0 1 3 10 ...      # FFHQ at 256 x 256

Four questions: how much cheaper is LAVPS at non-inferior LPIPS, what do gradient steps in the window change, what happens on
operators that the model was not trained on, and after how many images has the training paid for itself? Beside them, samplers
of this library that the paper does not have, with 4 and 8 evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import tyro

from lavps.benchmark.figures import matplotlib_figure
from lavps.benchmark.report import markdown_table
from lavps.checkpoints.folder import read_config
from lavps.evaluation import non_inferiority
from lavps.guidance import Amortized, Gradient, switch
from lavps.minimizers import Adam
from lavps.samplers import UNBOUND, Settings, TunedPIR, Unbound

from ..common.labels import TITLES
from ..common.pages import add_measured, span
from ..common.study import SHIFTS
from ..common.table import COSTS, Record, Table, cell, compared, costs, error, lpips, mgdm, settings

WINDOW = 0.3
RATES = (0.01, 0.02, 0.03, 0.05)
MGDM, LAVPS = "MGDM (Adam)", "LAVPS"
COLOURS = {MGDM: "#0072B2", LAVPS: "#D55E00"}
FEW = {"FewStep": ("few-step model", "#CC79A7"), "TunedPIR": ("schedule for any task", "#009E73")}


@dataclass(frozen=True)
class Config(Table):
    """LAVPS in the paper's form against MGDM with Adam."""

    count: int = 20
    batch_size: int = 20
    steps: tuple[int, ...] = (25, 50)
    """Numbers of diffusion steps K."""
    ends: tuple[int, ...] = (0, 1, 3)
    """Numbers of gradient steps in the window, G_end."""

    study: ClassVar[str] = "paper"

    def measure(self) -> list[Record]:
        """Choose Adam's learning rate on validation images, then run MGDM and LAVPS on every task and its shift."""
        records = []
        for task in self.tasks:
            model, most = self.model(task), max(self.steps)
            rates = {k: self.best(task, {eta: method("", k, 1, eta) for eta in RATES}) for k in self.steps}
            every = [
                method(name, k, end, rates[k])
                for k, end, name in product(self.steps, self.ends, ("", model))
                if k == most or end < 3
            ]
            found = self.measured(task, every)
            shifted = [
                method(name, most, end, rates[most]) for name, end in (("", 1), (model, 1), (model, 0))
            ]
            records += found + self.measured(task, self.few()) + self.measured(SHIFTS[task], shifted)
        return [self.described(record) for record in records]

    def few(self) -> list[Settings]:
        """Return the samplers with few evaluations: the schedule for any task, and the few-step model if there is one."""
        return [*self.few_step(), Settings(TunedPIR.universal(UNBOUND, 8))]

    def described(self, record: Record) -> Record:
        """Return a record with the fields that the page sorts by."""
        method = settings(record)
        if (name := method.template.name) in FEW:
            return record | {"family": FEW[name][0], "end": None, "steps": method.num_steps}
        last = method.guidance_by_step[-1]
        assert isinstance(last, Gradient | Amortized)
        family = LAVPS if record["name"].startswith(LAVPS) else MGDM
        return record | {"family": family, "end": last.steps, "steps": method.num_steps}

    def fields(self, records: list[Record]) -> dict[str, str]:
        """Draw the figures, write the cards of the models, and return the tables and numbers of the page."""
        (self.pages / self.study).mkdir(parents=True, exist_ok=True)
        matches = {task: match(self.of(records, task)) for task in self.tasks}
        self.draw_costs(records)
        shifts = [(SHIFTS[task], row) for task in self.tasks for row in self.of(records, SHIFTS[task])[1:]]
        self.draw_shifts(records, shifts)
        for task in self.tasks:
            own = [r for r in self.of(records, task) if r["family"] == LAVPS]
            rows = [[r["label"], lpips(r), f"{r['psnr']:.2f}", f"{r['cost']:.0f}"] for r in own]
            add_measured(Path(self.model(task)), "paper.md", ["settings", "LPIPS", "PSNR", "NFE"], rows)
        found = [m["ratio"] for m in matches.values() if m["candidate"]]
        accepted = [100 * r["acceptance"] for _, r in shifts]
        inferior = [r for task, r in shifts if not passes(self.of(records, task)[0], r)]
        return {
            "answer": self.answer(found),
            "matches": markdown_table(
                ["task", "MGDM, lowest LPIPS", "MGDM, cheapest", "LAVPS, cheapest", "NFE ratio of the cheapest"],
                [matched(task, m) for task, m in matches.items()],
            ),
            "few": self.few_table(records, matches),
            "fewer": self.fewer(records, matches),
            "ablation": self.ablation(records),
            "shifts": self.shift_table(records),
            "shifted": f"{len(shifts) - len(inferior)} of {len(shifts)}",
            "accepted": f"{span(accepted)} %",
            "pays": markdown_table(
                ["task", "training images seen", "NFE of the training", "NFE saved per image", "images until it pays"],
                [self.break_even(task, m) for task, m in matches.items()],
            ),
            "rates": "; ".join(f"{TITLES[task]} {self.rates(records, task)}" for task in self.tasks),
            "window": f"{WINDOW:.0%}",
            "prior": self.prior.name,
            "steps": str(max(self.steps)),
            "all": markdown_table(
                ["task", "method", "LPIPS", "PSNR", "chi²", *COSTS],
                [[TITLES[r["task"]], r["family"] if r["end"] is None else r["name"], lpips(r), f"{r['psnr']:.2f}", f"{r['chi_square']:.2f}", *costs(r)] for r in records],
            ),
            "options": "".join(
                f" --{name} {' '.join(map(str, getattr(self, name)))}"
                for name in ("steps", "ends") if getattr(self, name) != getattr(Config, name)
            ),
        }  # fmt: skip

    def answer(self, ratios: Sequence[float]) -> str:
        """Return the first sentence of the answer: on how many tasks LAVPS is cheaper, and how much."""
        tasks = len(self.tasks)
        if not ratios:
            return f"LAVPS in the paper's form is not non-inferior to the best MGDM with Adam on any of {tasks} tasks."
        return (
            f"On {len(ratios)} of {tasks} tasks LAVPS in the paper's form is non-inferior in LPIPS to the best MGDM with Adam, and takes "
            f"{span(ratios, 1)} times fewer NFE than the cheapest MGDM that is."
        )

    def few_table(self, records: Sequence[Record], matches: Mapping[str, dict[str, Any]]) -> str:
        """Return the table of the samplers with few evaluations, against MGDM."""
        rows = [
            [
                TITLES[task], r["family"], cell(r), compared(found["best"], r),
                f"{found['reference']['cost'] / r['cost']:.0f}",
            ]
            for task, found in matches.items() for r in self.of(records, task) if r["end"] is None
        ]  # fmt: skip
        head = ["task", "sampler", "LPIPS (NFE)", "ΔLPIPS to the lowest of MGDM; non-inferior"]
        return markdown_table([*head, "NFE of the cheapest MGDM / NFE"], rows)

    def fewer(self, records: Sequence[Record], matches: Mapping[str, dict[str, Any]]) -> str:
        """Return one sentence for each sampler with few evaluations: on how many tasks it is non-inferior, and how much cheaper."""
        sentences = []
        for family, _ in FEW.values():
            own = [
                (m, r) for task, m in matches.items() for r in self.of(records, task) if r["family"] == family
            ]
            good = [m["reference"]["cost"] / r["cost"] for m, r in own if passes(m["best"], r)]
            if own:
                gain = f", with {span(good)} times fewer NFE than the cheapest" if good else ""
                sentences.append(
                    f"The {family} ({own[0][1]['steps']} evaluations) is non-inferior to the lowest LPIPS of MGDM on {len(good)} of {len(own)} tasks{gain}."
                )
        return " ".join(sentences)

    def of(self, records: Sequence[Record], task: str) -> list[Record]:
        """Return the records of a task."""
        return [r for r in records if r["task"] == task]

    def rates(self, records: Sequence[Record], task: str) -> str:
        """Return the learning rates that were chosen for a task, by number of steps."""
        first = {
            r["steps"]: settings(r).guidance_by_step[0] for r in self.of(records, task) if r["family"] == MGDM
        }
        return ", ".join(
            f"{guidance.minimizer.learning_rate:g} (K = {k})"
            for k, guidance in sorted(first.items())
            if isinstance(guidance, Gradient) and isinstance(guidance.minimizer, Adam)
        )

    def ablation(self, records: Sequence[Record]) -> str:
        """Return the table of gradient steps in the window."""
        rows = []
        for task, family in product(self.tasks, COLOURS):
            own = [
                r for r in self.of(records, task) if r["family"] == family and r["steps"] == max(self.steps)
            ]
            by_end = {r["end"]: r for r in own}
            rows.append([TITLES[task], family, *[cell(by_end[end]) for end in self.ends]])
        return markdown_table(["task", "method", *[f"G_end = {end}" for end in self.ends]], rows)

    def shift_table(self, records: Sequence[Record]) -> str:
        """Return the table of operators that the model was not trained on."""
        rows = []
        for trained in self.tasks:
            task = SHIFTS[trained]
            found = self.of(records, task)
            for r in found:
                rate = "" if r["acceptance"] is None else f"{r['acceptance']:.0%}"
                gap = compared(found[0], r) if r["family"] == LAVPS else ""
                rows.append(
                    [TITLES[trained], TITLES[task], f"{r['family']}, G_end = {r['end']}", cell(r), rate, gap]
                )
        head = [
            "trained on",
            "measured",
            "method",
            "LPIPS (NFE)",
            "acceptance rate",
            "ΔLPIPS to MGDM; non-inferior",
        ]
        return markdown_table(head, rows)  # fmt: skip

    def break_even(self, task: str, found: dict[str, Any]) -> list[str]:
        """Return after how many images the training has paid for itself, in NFE.

        A training image costs a forward pass for x_0, and a forward and a backward pass for the objective. The
        three passes of the small model are left out: they are below a tenth of it.
        """
        training = read_config(self.model(task)).training
        seen = int(training["steps"]) * int(training["batch_size"])
        spent = 4 * seen
        if found["candidate"] is None:
            return [TITLES[task], f"{seen:,}", f"{spent:,}", "", "never"]
        saved = found["reference"]["cost"] - found["candidate"]["cost"]
        pays = f"{spent / saved:,.0f}" if saved > 0 else "never"
        return [TITLES[task], f"{seen:,}", f"{spent:,}", f"{saved:.0f}", pays]

    def draw_costs(self, records: Sequence[Record]) -> None:
        """Draw LPIPS against NFE, one panel per task; a point is labelled with its gradient steps in the window."""
        figure = matplotlib_figure(4.4 * len(self.tasks), 4.2)
        axes = figure.subplots(1, len(self.tasks), squeeze=False)[0]
        for axis, task in zip(axes, self.tasks, strict=True):
            for (family, colour), k in product(COLOURS.items(), self.steps):
                own = [r for r in self.of(records, task) if r["family"] == family and r["steps"] == k]
                where = [r["cost"] for r in own], [r["lpips"] for r in own]
                axis.errorbar(
                    *where, [error(r) for r in own], color=colour, marker="o" if k == max(self.steps) else "s",
                    capsize=2, linewidth=1, label=f"{family}, K = {k}",
                )  # fmt: skip
                for r in own:
                    axis.annotate(
                        str(r["end"]), (r["cost"], r["lpips"]), (-9, 4) if family == MGDM else (5, -10),
                        textcoords="offset points", fontsize=8, color=colour,
                    )  # fmt: skip
            for family, colour in FEW.values():
                own = [r for r in self.of(records, task) if r["family"] == family]
                axis.errorbar(
                    [r["cost"] for r in own], [r["lpips"] for r in own], [error(r) for r in own], color=colour,
                    marker="D", linestyle="", capsize=2, linewidth=1, label=family,
                )  # fmt: skip
            axis.set(title=TITLES[task], xlabel="NFE per sample", ylim=(0, None), xscale="log")
            axis.set_xticks((4, 8, 25, 100, 300), ("4", "8", "25", "100", "300"))
            axis.minorticks_off()
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("LPIPS (lower is better)")
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
        figure.savefig(self.pages / self.study / "cost.png", dpi=130)

    def draw_shifts(self, records: Sequence[Record], rows: Sequence[tuple[str, Record]]) -> None:
        """Draw the difference to MGDM on operators out of distribution, with its 95 % interval."""
        figure = matplotlib_figure(8.0, 0.5 * len(rows) + 1.4)
        axis = figure.subplots()
        for place, (task, record) in enumerate(reversed(rows)):
            test = non_inferiority(self.of(records, task)[0]["scores"], record["scores"], alpha=0.025)
            half = test.mean_difference - test.lower_bound
            axis.errorbar(
                -test.mean_difference, place, xerr=half, marker="o", color=COLOURS[LAVPS], capsize=3,
            )  # fmt: skip
        axis.axvline(0.0, color="black", linewidth=0.8)
        axis.axvline(0.003, color="grey", linewidth=0.8, linestyle="--")
        axis.text(0.003, len(rows) - 0.4, "margin 0.003", fontsize=8, color="grey", ha="left", va="bottom")
        axis.set(
            yticks=range(len(rows)), ylim=(-0.6, len(rows)),
            yticklabels=[f"{TITLES[task]}, G_end = {r['end']}" for task, r in reversed(rows)],
            xlabel="LPIPS of LAVPS minus that of MGDM (Adam), 95 % interval",
        )  # fmt: skip
        axis.spines[["top", "right"]].set_visible(False)
        figure.savefig(self.pages / self.study / "shifts.png", dpi=130)


def method(model: str, num_steps: int, end: int, rate: float) -> Settings:
    """Return MGDM with one gradient step before the window and some inside, or LAVPS with its model there."""
    adam = Adam(rate)
    early = Gradient(1, adam)
    late = Amortized(Unbound(model), end, adam) if model else Gradient(end, adam)
    return mgdm(num_steps, early if late == early else switch(early, late, at=WINDOW))


def passes(reference: Record, candidate: Record) -> bool:
    """Return whether the candidate is non-inferior in LPIPS."""
    return non_inferiority(reference["scores"], candidate["scores"]).is_non_inferior


def match(records: Sequence[Record]) -> dict[str, Any]:
    """Return the MGDM of the lowest LPIPS, the cheapest MGDM and LAVPS that are non-inferior to it, and their ratio of NFE."""
    own, other = ([r for r in records if r["family"] == family] for family in (MGDM, LAVPS))
    best = min(own, key=lambda r: r["lpips"])
    reference = min((r for r in own if r is best or passes(best, r)), key=lambda r: r["cost"])
    candidate = min((r for r in other if passes(best, r)), key=lambda r: r["cost"], default=None)
    ratio = None if candidate is None else reference["cost"] / candidate["cost"]
    return {"best": best, "reference": reference, "candidate": candidate, "ratio": ratio}


def matched(task: str, found: dict[str, Any]) -> list[str]:
    """Return a row of the table of matches."""
    cells = [TITLES[task]]
    for name in ("best", "reference", "candidate"):
        r = found[name]
        cells.append("none" if r is None else f"K={r['steps']}, G_end = {r['end']}: {cell(r)}")
    return [*cells, "" if found["ratio"] is None else f"{found['ratio']:.2f}"]


if __name__ == "__main__":
    tyro.cli(Config).run()
