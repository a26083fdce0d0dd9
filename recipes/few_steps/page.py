"""The page of the samplers at few denoiser evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from lavps.benchmark.figures import matplotlib_figure
from lavps.benchmark.report import markdown_table

from ..common.cells import HEAD, VERDICTS, difference, scores_of, standard_error, verdicts
from ..common.labels import TITLES
from ..common.pages import figures, read, span
from ..common.scored import SCORES, Record

STUDY = "few_steps"
PHOTOS = f"{STUDY}_photos"
DIFFPIR, DDNM, WIENER, LINEARIZED = "DiffPIR", "DDNM+", "WienerPIR", "MGDM (linearized)"
DAPS, PAPER = "DAPS", "MGDM (Adam)"
LEARNED, TRAINED = "TunedPIR (universal)", "few-step model"
FUSED = "FusedPIR"
SHARP = ("motion-blur", "random-motion-blur-hard")  # tasks on which FusedPIR differs from WienerPIR
PRESET = "TunedPIR (photos64)"  # the preset of this prior, where it has a schedule of its own
# Numbers of denoiser evaluations of the samplers that are tuned for each task.
BUDGETS = {
    DIFFPIR: (4, 8, 12, 25, 50),
    DDNM: (4, 8, 25),
    WIENER: (4, 8, 12, 25, 50),
    DAPS: (25,),
    LINEARIZED: (25,),
}
COLOURS = {DIFFPIR: "#D55E00", DDNM: "#E69F00", WIENER: "#009E73", LEARNED: "#0072B2", TRAINED: "#CC79A7"}
COLOURS |= {FUSED: "#56B4E9", DAPS: "#999999", LINEARIZED: "#555555"}
SHOWN = ((DIFFPIR, 8), (DIFFPIR, 25), (LEARNED, 4), (LEARNED, 8), (TRAINED, 4))
NONLINEAR, PHASE = ("jpeg", "hdr"), "phase-retrieval"
LINEAR_ONLY = (DDNM, DAPS, LINEARIZED, TRAINED)
# Ours, its number of evaluations, and that of DiffPIR: the comparisons of the answer.
COMPARED = (
    (TRAINED, 4, 8),
    (TRAINED, 4, 25),
    (TRAINED, 4, 50),
    (LEARNED, 8, 50),
    (LEARNED, 8, 25),
    (LEARNED, 8, 8),
    (LEARNED, 4, 4),
    (PRESET, 8, 8),
    (FUSED, 4, 8),
    (FUSED, 8, 8),
    (FUSED, 8, 25),
    (FUSED, 25, 25),
)
COMPARED += tuple((WIENER, count, count) for count in (4, 8, 12, 25, 50))


@dataclass(frozen=True)
class Page:
    """Chart and tables of the records of the study."""

    pages: Path
    tasks: tuple[str, ...]
    evaluations: tuple[int, ...]
    records: list[Record]

    def draw(self) -> None:
        """Draw LPIPS and CRPS against the number of evaluations, one column per task."""
        figure = matplotlib_figure(2.6 * len(self.tasks) + 0.4, 4.6)
        axes = figure.subplots(len(SCORES), len(self.tasks), squeeze=False, sharex=True)
        for row, (score, title) in zip(axes, SCORES.items(), strict=True):
            for axis, task in zip(row, self.tasks, strict=True):
                for name, colour in COLOURS.items():
                    points = [r for r in self.records if r["task"] == task and r["name"] == name]
                    counts = [r["evaluations"] for r in points]
                    style = "o-" if len(BUDGETS.get(name, (4, 8))) > 1 else "s"
                    axis.plot(
                        counts, [fmean(r[score]) for r in points], style, color=colour, label=name, ms=4
                    )
                axis.set_xscale("log")
                axis.set_xticks(self.evaluations, [str(count) for count in self.evaluations], minor=False)
                axis.minorticks_off()
                axis.tick_params(labelsize=8)
            row[0].set_ylabel(f"{title} (lower is better)", fontsize=9)
        for axis, task in zip(axes[0], self.tasks, strict=True):
            axis.set_title(TITLES[task], fontsize=10)
        for axis in axes[-1]:
            axis.set_xlabel("denoiser evaluations", fontsize=9)
        shown = axes[0][0].get_legend_handles_labels()
        names = dict(zip(shown[1], shown[0], strict=True))
        figure.legend(names.values(), names, fontsize=8, frameon=False, loc="outside lower center", ncols=8)
        figure.savefig(self.pages / STUDY / "chart.png", dpi=140)

    def fields(self) -> dict[str, str]:
        """Return the fields of the page's template."""
        first = self.records[0]
        phase = [r for r in self.records if r["task"] == PHASE]
        return {
            "answer": self.answer(),
            "verdicts": self.verdicts(),
            "paper": self.paper(),
            "phase": self.table(PHASE),
            "phase_count": str(phase[0]["images"]),
            "found": "; ".join(
                f"{r['name']}: {sum(value < 0.1 for value in r['lpips'])} of {r['images']}" for r in phase
            ),
            "first": markdown_table(*self.first()),
            "table": "\n\n".join(f"**{TITLES[task]}**\n\n{self.table(task)}" for task in self.tasks),
            "outside": self.outside(),
            "pairs": self.pairs(),
            "inception": self.inception_table(),
            "photos": self.photos(),
            "images": figures(STUDY, {task: TITLES[task] for task in self.tasks}),
            "count": str(first["images"]),
            "samples": str(first["samples"]),
            "nominal": f"{100 * first['nominal']:.0f} %",
        }

    def table(self, task: str) -> str:
        """Return the table of a task."""
        return markdown_table(HEAD, [scores_of(r) for r in self.records if r["task"] == task])

    def outside(self) -> str:
        """Return the table of tasks outside the training."""
        rows = [
            [
                TITLES[r["task"]],
                r["name"],
                f"{fmean(r['lpips']):.4f}",
                f"{fmean(r['crps']):.4f}",
                f"{r['mean_chi_square']:.2f}",
                f"{r['mean_forwards']:.2f}",
            ]
            for r in self.records
            if r["task"] not in (*self.tasks, PHASE)
        ]
        head = ["task", "sampler", "LPIPS", "CRPS", "chi²", "evaluations with rejections"]
        return markdown_table(head, rows)

    def inception_table(self, study: str = STUDY) -> str:
        """Return the table of Inception distances, which ``recipes.few_steps.inception`` measures."""
        name = f"{study}_inception"
        if not (self.pages / f"{name}.json").exists():
            return "Not measured yet for this version of the model."
        found = {(r["task"], r["name"], r["evaluations"]): r["distance"] for r in read(self.pages, name)}
        tasks = [task for task in self.tasks if (task, *SHOWN[0]) in found]
        rows, first = [], 0
        for task in tasks:
            there = {method: found[(task, *method)] for method in SHOWN if (task, *method) in found}
            first += min(there, key=lambda method: fmean(there[method]))[0] == DIFFPIR
            rows.append([TITLES[task], *(with_error(there[m]) if m in there else "-" for m in SHOWN)])
        table = markdown_table(["task", *(f"{name}, {evaluations}" for name, evaluations in SHOWN)], rows)
        return f"{table}\n\nDiffPIR has the lowest mean on {first} of {len(tasks)} tasks."

    def photos(self) -> str:
        """Return the tables of the crops of photographs, which ``recipes.few_steps.photos`` measures."""
        if not (self.pages / f"{PHOTOS}.json").exists():
            return "Not measured yet."
        records = read(self.pages, PHOTOS)
        tasks = tuple(dict.fromkeys(r["task"] for r in records if r["name"] == DIFFPIR))
        page = Page(self.pages, tasks, self.evaluations, records)
        tables = [f"**{TITLES[task]}**\n\n{page.table(task)}" for task in tasks]
        drawn = {task: TITLES[task] for task in tasks if (self.pages / PHOTOS / f"{task}.png").exists()}
        parts = [
            page.verdicts(),
            page.against_best(),
            *tables,
            page.pairs(),
            f"Four evaluations outside the training:\n\n{page.outside()}",
            f"[Distances of Inception features](#a-distance-that-no-method-was-trained-on):\n\n{page.inception_table(PHOTOS)}",
            figures(PHOTOS, drawn),
        ]
        return "\n\n".join(parts)

    def against_best(self) -> str:
        """Return a sentence that compares the few-step model with the best of all DiffPIR, for each task and score."""
        found = {}
        for score in SCORES:
            both = []
            for task in self.tasks:
                others = [r for r in self.records if r["task"] == task and r["name"].startswith(DIFFPIR)]
                if (ours := self.find(task, TRAINED, 4)) is not None:
                    both.append(verdicts(ours, min(others, key=lambda r: fmean(r[score]))))
            found[score] = [sum(column) for column in zip(*both, strict=True)] + [len(both)]
        near, less, *_, count = found["lpips"]
        *_, lower, higher, _ = found["crps"]
        return (
            "Tuned settings are not always the best ones here: 12 trials on 8 crops vary. Against the DiffPIR of the lowest LPIPS of each task, defaults "
            f"among them, the LPIPS of the {TRAINED} with 4 evaluations is lower on {less} of {count} tasks and non-inferior on {near}; against the "
            f"DiffPIR of the lowest CRPS, its CRPS is lower on {lower} and higher on {higher}."
        )

    def answer(self) -> str:
        """Return the sentence that answers the question."""
        both = self.both(TRAINED, 4, 25)
        found = [verdicts(ours, theirs) for _, ours, theirs in both]
        near, less, lower, higher = (sum(column) for column in zip(*found, strict=True))
        return (
            f"With 4 evaluations, the {TRAINED} has a lower LPIPS than DiffPIR with 25, tuned for each task, on {less} of {len(both)} "
            f"linear tasks ({', '.join(TITLES[task] for task, *_ in both)}), and a non-inferior one on {near}; its CRPS is lower on "
            f"{lower}, and higher on {higher}. By paired tests over the images at level 0.05, with a margin of 0.003 LPIPS for non-inferior."
        )

    def paper(self) -> str:
        """Return the comparison with the paper's MGDM."""
        rows, own = [], []
        for theirs in (r for r in self.records if r["name"] == PAPER):
            for name, count in ((TRAINED, 4), (LEARNED, 8)):
                if (ours := self.find(theirs["task"], name, count)) is None:
                    continue
                near, less, *_ = verdicts(ours, theirs)
                spent = (theirs["mean_forwards"] + 2 * theirs["mean_backwards"]) / ours["mean_forwards"]
                if name == TRAINED:
                    own.append((spent, near, less))
                scores = [f"{fmean(r[score]):.4f}" for score in SCORES for r in (ours, theirs)]
                verdict = "lower" if less else "non-inferior" if near else "not shown"
                shown = difference(ours["lpips"], theirs["lpips"])
                rows.append([TITLES[theirs["task"]], name, *scores, shown, verdict, f"{spent:.0f}"])
        if not rows:
            return "Not measured yet."
        head = ["task", "ours", "LPIPS", "LPIPS, MGDM", "CRPS", "CRPS, MGDM", "LPIPS difference", "LPIPS is", "NFE, MGDM / ours"]  # fmt: skip
        table = markdown_table(head, rows)
        if not own:
            return table
        return (
            f"With {span([row[0] for row in own])} times fewer NFE, the {TRAINED} is non-inferior in LPIPS on {sum(row[1] for row in own)} "
            f"of {len(own)} tasks, and lower on {sum(row[2] for row in own)}. NFE: a forward pass through the denoiser counts 1, a backward pass 2.\n\n{table}"
        )

    def both(self, name: str, count: int, other: int) -> list[tuple[str, Record, Record]]:
        """Return the tasks with records of a sampler of ours and of DiffPIR, and these."""
        pairs = [(task, self.find(task, name, count), self.find(task, DIFFPIR, other)) for task in self.tasks]
        return [(task, ours, theirs) for task, ours, theirs in pairs if ours and theirs]

    def verdicts(self) -> str:
        """Return the table of the tasks on which ours are ahead of DiffPIR."""
        rows = []
        for name, count, other in COMPARED:
            if both := self.both(name, count, other):
                found = [verdicts(ours, theirs) for _, ours, theirs in both]
                nearer = sum(off(ours) < off(theirs) for _, ours, theirs in both)
                counts = [*(sum(column) for column in zip(*found, strict=True)), nearer]
                rows.append([name, str(count), str(other), *(f"{n} of {len(both)}" for n in counts)])
        return markdown_table(
            ["ours", "evaluations", "of DiffPIR", *VERDICTS, "coverage nearer to nominal"], rows
        )

    def first(self) -> tuple[list[str], list[list[str]]]:
        """Return a table of the best sampler for every task, number of evaluations and score."""
        rows = []
        for task in self.tasks:
            for count in self.evaluations:
                there = [r for r in self.records if (r["task"], r["evaluations"]) == (task, count)]
                if len(there) > 1:
                    best_of = {score: min(there, key=lambda r: fmean(r[score])) for score in SCORES}
                    shown = [f"{r['name']} {fmean(r[score]):.4f}" for score, r in best_of.items()]
                    rows.append([TITLES[task], str(count), *shown, str(len(there))])
        return ["task", "evaluations", *SCORES.values(), "samplers"], rows

    def pairs(self) -> str:
        """Return a table that compares our samplers with others at as many and at more evaluations, and with each other."""
        lines = []
        compared = [
            (LEARNED, own, DIFFPIR, other) for own, other in ((4, 4), (4, 8), (8, 8), (8, 25), (8, 50))
        ]
        compared += [(TRAINED, 4, DIFFPIR, other) for other in (4, 8, 25, 50)]
        compared += [(TRAINED, 4, LEARNED, 4), (TRAINED, 4, LEARNED, 8)]
        compared += [(TRAINED, 4, baseline, 25) for baseline in (DDNM, WIENER, DAPS)]
        compared += [(PRESET, 8, DIFFPIR, 8), (PRESET, 8, LEARNED, 8)]
        compared += [(FUSED, own, DIFFPIR, other) for own, other in ((4, 8), (8, 8), (8, 25), (25, 25))]
        compared += [(FUSED, 8, TRAINED, 4), (FUSED, 8, WIENER, 8), (FUSED, 25, WIENER, 25)]
        compared += [(WIENER, count, DIFFPIR, count) for count in self.evaluations]
        for task in self.tasks:
            for name, count, baseline, other in compared:
                ours, theirs = self.find(task, name, count), self.find(task, baseline, other)
                if ours is None or theirs is None:
                    continue
                verdict = "yes" if verdicts(ours, theirs)[0] else "no"
                lpips, crps = (difference(ours[score], theirs[score]) for score in SCORES)
                what = f"{name} at {count} against {baseline} at {other}"
                covered = " and ".join(f"{100 * fmean(r['coverage']):.0f}" for r in (ours, theirs)) + " %"
                lines.append([TITLES[task], what, lpips, verdict, crps, covered])
        head = ["task", "comparison", "LPIPS difference", "non-inferior", "CRPS difference", "coverages"]
        return markdown_table(head, lines)

    def find(self, task: str, name: str, evaluations: int) -> Record | None:
        """Return the record of a sampler on a task; None if there is none."""
        wanted = (task, name, evaluations)
        return next((r for r in self.records if (r["task"], r["name"], r["evaluations"]) == wanted), None)


def with_error(values: list[float]) -> str:
    """Return the mean of values and its standard error."""
    return f"{fmean(values):.2f} ± {standard_error(values):.2f}"


def off(record: Record) -> float:
    """Return how far the coverage is from the nominal one."""
    return abs(fmean(record["coverage"]) - float(record["nominal"]))
