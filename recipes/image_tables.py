"""The paper's other experiments on real images, and some that it leaves out; a page each, one command each.

    python recipes/image_tables.py ablation --data DATA --lpips FILE               # G_end = 0, 1, 3, 10, with and without a model
    python recipes/image_tables.py windows --data DATA --lpips FILE                # a model asked in the last 10 % ... 100 % of the steps
    python recipes/image_tables.py rivals --data DATA --lpips FILE                 # DPS, MMPS, MGPS against MGDM and LAVPS
    python recipes/image_tables.py out-of-distribution --data DATA --lpips FILE    # operators the model never saw; a supervised network there
    python recipes/image_tables.py calibration --data DATA --lpips FILE            # do 80 % intervals cover 80 %?

``--scale paper --device cuda`` runs them with the 256 x 256 models of the paper. Stopped, the same command goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from image_study import TASKS, Study
from lavps.evaluation import ImageBatch, crps, non_inferiority, pixel_coverage, psnr
from lavps.evaluation.benchmark import Benchmark, Method
from lavps.evaluation.benchmark.figures import matplotlib_figure
from lavps.evaluation.benchmark.protocol import row_means
from lavps.evaluation.benchmark.report import markdown_table

HERE = Path(__file__).parent
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Table(Study):
    """A study that runs a list of methods and tabulates them."""

    count: int = 100
    """Test images."""
    tasks: tuple[str, ...] = TASKS
    """Tasks with an inference model in the zoo."""

    def measured(self, study: str, task: str, methods: Mapping[str, Method]) -> list[dict[str, Any]]:
        """What every named method does on the first test images of a task, one record each."""
        benchmark = self.begin(study, task)
        runner = self.runner(benchmark, "test", keep_images=8)
        records = []
        for name, method in methods.items():
            prices = benchmark.prices(method, runner.models, runner.measurements)
            rows = runner.run(method, self.count)
            records.append(
                {
                    "task": task,
                    "name": name,
                    "label": method.label,
                    "method": method.settings(),
                    "cost": prices.cost(rows),
                }
                | summary(rows)
            )
            self.pack(study, benchmark, task)
        return records

    def publish(self, study: str, records: list[dict[str, Any]], **parts: str) -> None:
        """The page and the numbers behind it."""
        self.pages.mkdir(parents=True, exist_ok=True)
        (self.pages / f"{study}.json").write_text(json.dumps(records, indent=1) + "\n")
        text = (HERE / f"{study}_page.md").read_text().format(count=self.count, **parts)
        (self.pages / f"{study}.md").write_text(text)
        print(self.pages / f"{study}.md")


def summary(rows: Rows) -> dict[str, Any]:
    """Means over images, and the scores of every image for the paired tests."""
    return {"scores": [row["lpips"] for row in rows], "images": len(rows)} | row_means(rows)


def error(record: Mapping[str, Any]) -> float:
    """Standard error of the mean LPIPS."""
    scores = torch.tensor(record["scores"], dtype=torch.float64)
    return float(scores.std()) / math.sqrt(len(scores))


def compared(reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> str:
    """The difference in LPIPS with its standard error, and whether the candidate is non-inferior."""
    test = non_inferiority(reference["scores"], candidate["scores"])
    verdict = "yes" if test.p_value < test.alpha else "no"
    return f"{-test.mean_difference:+.4f} ± {test.standard_error:.4f}, {verdict}"


def cell(record: Mapping[str, Any]) -> str:
    """LPIPS, its error, and the cost."""
    return f"{record['lpips']:.4f} ± {error(record):.4f} ({record['cost']:.0f})"


def find(records: Sequence[dict[str, Any]], task: str, name: str) -> dict[str, Any]:
    """A record."""
    return next(r for r in records if r["task"] == task and r["name"] == name)


@dataclass(frozen=True)
class Ablation(Table):
    """G_end = 0, 1, 3, 10 in the paper's window (the last 20 %), K = 100, Adam: MGDM against LAVPS."""

    def run(self) -> None:
        """Write ablation.md."""
        ends = (0, 1, 3, 10)
        records = []
        for task in self.tasks:
            methods = {}
            for end, model in product(ends, (None, self.model(task))):
                name = f"{'MGDM' if model is None else 'LAVPS'} {end}"
                methods[name] = Method(
                    "mgdm" if model is None else "lavps", gradient_steps_end=end, r_switch=0.8, model=model
                )
            records += self.measured("ablation", task, methods)
        rows = [
            [task, method, *[cell(find(records, task, f"{method} {end}")) for end in ends]]
            for task, method in product(self.tasks, ("MGDM", "LAVPS"))
        ]
        claims = [
            [task, compared(find(records, task, "MGDM 3"), find(records, task, "LAVPS 0"))]
            for task in self.tasks
        ]
        self.publish(
            "ablation", records, table=markdown_table(["task", "method", *[f"G_end = {end}" for end in ends]], rows),
            claims=markdown_table(["task", "LAVPS at G_end = 0 minus MGDM at G_end = 3, in LPIPS; non-inferior"], claims),
        )  # fmt: skip


@dataclass(frozen=True)
class Windows(Table):
    """The model asked in the last 10 % to 100 % of the steps, no gradient there, one whitened gradient before."""

    count: int = 32
    num_steps: int = 50
    """K."""

    def run(self) -> None:
        """Write windows.md."""
        shares = [0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0]
        records = []
        for task in self.tasks:
            methods = {}
            for share in shares:
                window = {"gradient_steps_start": 1, "gradient_steps_end": 0, "r_switch": round(1 - share, 2)}
                model = self.model(task) if share else None
                if not share:
                    window = {"gradient_steps_start": 1}
                methods[f"{share:.0%}"] = Method(
                    "lavps" if share else "mgdm",
                    num_steps=self.num_steps,
                    minimizer="whitened",
                    model=model,
                    **window,
                )  # type: ignore[arg-type]
            records += self.measured("windows", task, methods)
        rows = [
            [task, *[cell(find(records, task, f"{share:.0%}")) for share in shares]] for task in self.tasks
        ]
        figure = matplotlib_figure(6.5, 4.0)
        axis = figure.add_subplot()
        for task in self.tasks:
            found = [find(records, task, f"{share:.0%}") for share in shares]
            axis.errorbar(
                [100 * s for s in shares],
                [r["lpips"] for r in found],
                [error(r) for r in found],
                marker="o",
                capsize=2,
                label=task,
            )
        axis.set(xlabel="window of the model, % of the steps", ylabel="LPIPS")
        axis.legend(frameon=False)
        figure.savefig(self.pages / "windows.png", dpi=130)
        self.publish(
            "windows",
            records,
            table=markdown_table(["task", *[f"{share:.0%}" for share in shares]], rows),
            steps=str(self.num_steps),
        )


@dataclass(frozen=True)
class Rivals(Table):
    """DPS, MMPS and MGPS against MGDM and LAVPS."""

    def run(self) -> None:
        """Write rivals.md."""
        records = []
        for task in self.tasks:
            then = {"gradient_steps_start": 0, "probe_every": 4, "r_step": 0.5}
            last = then | {"gradient_steps_end": 1, "r_switch": 0.9, "r_model": 0.0, "minimizer": "whitened"}
            methods = {
                "DPS, K=100": Method("dps", num_steps=100),
                "DPS, K=300": Method("dps", num_steps=300),
                "MMPS, K=50": Method("mmps", num_steps=50, solver_steps=1),
                "MMPS, K=100": Method("mmps", num_steps=100, solver_steps=3),
                "MGPS, K=50": Method("mgps", num_steps=50, minimizer="whitened"),
                "MGDM, Adam, K=100": Method("mgdm", gradient_steps_end=3, r_switch=0.7),
                "MGDM, whitened, K=50": Method("mgdm", num_steps=50, minimizer="whitened"),
                "likelihood step, K=50": Method("lavps", num_steps=50, model="likelihood-step", **then),  # type: ignore[arg-type]
                "LAVPS, K=50": Method("lavps", num_steps=50, model=self.model(task), **then),  # type: ignore[arg-type]
                "LAVPS, K=50, gradients in the last 10 %": Method(
                    "lavps", num_steps=50, model=self.model(task), **last
                ),  # type: ignore[arg-type]
            }
            records += self.measured("rivals", task, methods)
        head = [
            "task",
            "method",
            "LPIPS",
            "PSNR",
            "SSIM",
            "chi²",
            "cost",
            "forwards",
            "backwards",
            "model passes",
        ]
        rows = [
            [r["task"], r["name"], f"{r['lpips']:.4f} ± {error(r):.4f}", f"{r['psnr']:.2f}", f"{r['ssim']:.3f}", f"{r['chi_square']:.2f}",
             f"{r['cost']:.0f}", f"{r['forwards']:.0f}", f"{r['backwards']:.0f}", f"{r['model_forwards']:.0f}"]
            for r in records
        ]  # fmt: skip
        self.publish("rivals", records, table=markdown_table(head, rows))


SHIFTS = (
    ("random-motion-blur", "random-motion-blur", "random-motion-blur-hard"),
    ("random-rectangle", "random-rectangle", "random-pixels"),
)


@dataclass(frozen=True)
class OutOfDistribution(Table):
    """Models of a family of operators where they were trained and where they were not."""

    steps: tuple[int, ...] = (25, 50, 100)
    """Budgets: K."""
    runs: Path = Path("runs")
    """Folder of the trainings of recipes/zoo.py: where PRIOR-FAMILY-supervised is there, it is compared too."""

    def run(self) -> None:
        """Write out_of_distribution.md."""
        records, rows = [], []
        for trained, inside, outside in SHIFTS:
            for task in (inside, outside):
                methods: dict[str, Method] = {}
                for k in self.steps:
                    for g in (1, 0):
                        same = {"num_steps": k, "gradient_steps_start": g, "minimizer": "whitened"}
                        if g:
                            methods[f"MGDM, K={k}, G={g}"] = Method("mgdm", **same)  # type: ignore[arg-type]
                        for every in (1, 4):
                            methods[f"LAVPS, K={k}, G={g}, probes 1/{every}"] = Method(
                                "lavps", probe_every=every, model=self.model(trained), **same
                            )  # type: ignore[arg-type]
                    methods[f"LAVPS, K={k}, G=0, probes 1/4, then likelihood steps"] = Method(
                        "lavps",
                        num_steps=k,
                        gradient_steps_start=0,
                        probe_every=4,
                        r_step=0.5,
                        model=self.model(trained),
                    )
                supervised = self.runs / f"{self.prior.name}-{trained}-supervised" / "model"
                if supervised.exists():
                    methods["supervised"] = Method("supervised", num_steps=50, model=str(supervised))
                found = self.measured("out_of_distribution", task, methods)
                records += found
                rows += [
                    self._row(found, task, "in" if task == inside else "out", record) for record in found
                ]
        head = [
            "measurement",
            "distribution",
            "method",
            "LPIPS",
            "PSNR",
            "cost",
            "kept",
            "minus MGDM at the same K (G = 1); within .003",
        ]
        self.publish("out_of_distribution", records, table=markdown_table(head, rows))

    def _row(self, found: list[dict[str, Any]], task: str, where: str, record: dict[str, Any]) -> list[str]:
        steps = record["method"]["num_steps"]
        reference = find(found, task, f"MGDM, K={steps}, G=1")
        kept = "" if record["acceptance"] is None else f"{record['acceptance']:.0%}"
        gap = "" if record is reference else compared(reference, record)
        return [
            task,
            where,
            record["name"],
            f"{record['lpips']:.4f} ± {error(record):.4f}",
            f"{record['psnr']:.2f}",
            f"{record['cost']:.0f}",
            kept,
            gap,
        ]


@dataclass(frozen=True)
class Calibration(Table):
    """Posterior intervals of pixels against the truth."""

    count: int = 32
    samples: int = 16
    """Of every image."""

    def run(self) -> None:
        """Write image_calibration.md."""
        levels, records, rows = (0.5, 0.8, 0.9), [], []
        for task in self.tasks:
            benchmark = self.begin("rivals", task)
            for name, method in {
                "MGDM, whitened, K=50": Method("mgdm", num_steps=50, minimizer="whitened"),
                "LAVPS, K=50": Method(
                    "lavps",
                    num_steps=50,
                    gradient_steps_start=0,
                    probe_every=4,
                    r_step=0.5,
                    model=self.model(task),
                ),
            }.items():
                records.append(
                    {"task": task, "name": name, "method": method.settings()}
                    | self._calibrate(benchmark, method, levels)
                )
                r = records[-1]
                rows.append(
                    [
                        task,
                        name,
                        *[f"{c:.1%}" for c in r["coverage"]],
                        f"{r['crps']:.4f}",
                        f"{r['spread']:.4f}",
                        f"{r['rmse']:.4f}",
                        f"{r['psnr_sample']:.2f}",
                        f"{r['psnr_mean']:.2f}",
                    ]
                )
        head = [
            "task",
            "method",
            *[f"{level:.0%} interval covers" for level in levels],
            "CRPS",
            "spread",
            "error of the mean",
            "PSNR of a sample",
            "PSNR of the mean",
        ]
        self.publish(
            "image_calibration", records, table=markdown_table(head, rows), samples=str(self.samples)
        )

    def _calibrate(self, benchmark: Benchmark, method: Method, levels: Sequence[float]) -> dict[str, Any]:
        models, given = benchmark.models(self.device), benchmark.measurements("test")
        samples = []
        for start in range(0, self.count, 4):
            rows = slice(start, min(start + 4, self.count))
            problem = given.problem(rows, self.device, True)
            posterior = models.sampler(method).sample(
                problem, self.samples, seed=0, items=list(given.items[rows]), batch_size=self.batch_size
            )
            assert posterior.samples is not None
            samples.append(posterior.samples.cpu())
        draws = torch.cat(samples)
        images = given.images[slice(0, self.count)]
        truth, mean = images.to_tensor(), draws.mean(1)
        return {
            "levels": list(levels),
            "coverage": [
                float(c) for c in pixel_coverage(draws, truth, levels).reshape(-1, len(levels)).mean(0)
            ],
            "crps": float(crps(draws, truth).mean()),
            "spread": float(draws.var(1).mean().sqrt()),
            "rmse": float((mean - truth).square().mean().sqrt()),
            "psnr_sample": float(psnr(ImageBatch.from_tensor(draws[:, 0].clamp(-1, 1)), images).mean()),
            "psnr_mean": float(psnr(ImageBatch.from_tensor(mean.clamp(-1, 1)), images).mean()),
        }


Command = (
    Annotated[Ablation, tyro.conf.subcommand("ablation")]
    | Annotated[Windows, tyro.conf.subcommand("windows")]
    | Annotated[Rivals, tyro.conf.subcommand("rivals")]
    | Annotated[OutOfDistribution, tyro.conf.subcommand("out-of-distribution")]
    | Annotated[Calibration, tyro.conf.subcommand("calibration")]
)

if __name__ == "__main__":
    tyro.cli(Command).run()  # type: ignore[arg-type]
