"""One task, MGDM against what has no gradient: natural images instead of faces, JPEG instead of a linear operator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from image_study import Scale
from image_table import Table, compared, error
from lavps.evaluation.benchmark import Method
from lavps.evaluation.benchmark.report import markdown_table
from zoo import add_measured


@dataclass(frozen=True)
class OneTask(Table):
    """One task, methods against MGDM as in the paper."""

    count: int = 40

    study: ClassVar[str]

    def methods(self, model: str) -> dict[str, Method]:
        """What is compared, MGDM as in the paper first."""
        raise NotImplementedError

    def run(self) -> None:
        """Write its page, and what was measured of the model into the model's card."""
        [task] = self.tasks
        model = self.model(task)
        methods = self.methods(model)
        records = self.measured(self.study, task, methods)
        self.pictures(self.study, task, records, list(methods))
        head = [
            "method",
            "LPIPS",
            "PSNR",
            "chi²",
            "cost",
            "forwards",
            "backwards",
            "model passes",
            "minus MGDM, Adam; within .003",
        ]
        rows = [
            [r["name"], f"{r['lpips']:.4f} ± {error(r):.4f}", f"{r['psnr']:.2f}", f"{r['chi_square']:.2f}", f"{r['cost']:.0f}",
             f"{r['forwards']:.0f}", f"{r['backwards']:.0f}", f"{r['model_forwards']:.0f}", compared(records[0], r) if r is not records[0] else ""]
            for r in records
        ]  # fmt: skip
        add_measured(
            Path(model), f"{self.study}.md", head[:5], [row[:5] for row in rows if row[0].startswith("LAVPS")]
        )
        self.publish(self.study, records, table=markdown_table(head, rows))


@dataclass(frozen=True)
class Natural(OneTask):
    """Super-resolution of natural images, by a prior and a model of such."""

    scale: Scale = "natural"
    tasks: tuple[str, ...] = ("sr4",)
    study: ClassVar[str] = "natural"

    def methods(self, model: str) -> dict[str, Method]:
        """MGDM, likelihood steps, LAVPS."""
        then: dict[str, Any] = {"gradient_steps_start": 0, "r_step": 0.5}
        descent: dict[str, Any] = {"minimizer": "whitened", "gradient_steps_start": 1}
        return {
            "MGDM, Adam, K=100": Method("mgdm", gradient_steps_start=1, gradient_steps_end=0, r_switch=0.8),
            "MGDM, whitened, K=25": Method("mgdm", num_steps=25, **descent),
            "MGDM, whitened, K=50": Method("mgdm", num_steps=50, **descent),
            "likelihood steps, K=50": Method(
                "lavps", num_steps=50, model="gentle-step", safeguard=False, **then
            ),
            "LAVPS, K=25": Method("lavps", num_steps=25, model=model, probe_every=4, **then),
            "LAVPS, K=50": Method("lavps", num_steps=50, model=model, probe_every=4, **then),
        }


@dataclass(frozen=True)
class Nonlinear(OneTask):
    """Faces compressed by JPEG at quality 5: an operator that no few steps of conjugate gradients invert."""

    count: int = 32
    tasks: tuple[str, ...] = ("jpeg",)
    study: ClassVar[str] = "nonlinear"

    def methods(self, model: str) -> dict[str, Method]:
        """MGDM at its best learning rate, likelihood steps, LAVPS."""
        none: dict[str, Any] = {"num_steps": 50, "gradient_steps_start": 0}
        guarded: dict[str, Any] = {"model": model, "probe_every": 4}
        last: dict[str, Any] = {
            "gradient_steps_end": 1,
            "r_switch": 0.9,
            "r_model": 0.0,
            "minimizer": "whitened",
        }
        untrained: dict[str, Any] = none | {"safeguard": False}
        return {
            "MGDM, Adam, K=100": Method("mgdm", learning_rate=self.learning_rate()),
            "MGDM, whitened, K=25": Method("mgdm", num_steps=25, minimizer="whitened"),
            "MGDM, whitened, K=50": Method("mgdm", num_steps=50, minimizer="whitened"),
            "likelihood steps, K=50": Method("lavps", model="likelihood-step", **untrained),
            "gentle steps, then likelihood steps, K=50": Method(
                "lavps", model="gentle-step", r_step=0.5, **untrained
            ),
            "LAVPS, K=25": Method("lavps", **none | guarded | {"num_steps": 25}),
            "LAVPS, K=25, one whitened gradient": Method(
                "lavps", num_steps=25, gradient_steps_start=1, minimizer="whitened", **guarded
            ),
            "LAVPS, K=50": Method("lavps", **none | guarded),
            "LAVPS, K=50, then likelihood steps": Method("lavps", r_step=0.5, **none | guarded),
            "LAVPS, K=50, gradients in the last 10 %": Method("lavps", **none | guarded | last),
        }

    def learning_rate(self) -> float:
        """Adam's, the best of three on 8 validation images."""
        runner = self.runner(self.begin(self.study, self.tasks[0]), "validation")
        scores = {}
        for rate in (0.01, 0.03, 0.1):
            scores[rate] = sum(row["lpips"] for row in runner.run(Method("mgdm", learning_rate=rate), 8))
        return min(scores, key=lambda rate: scores[rate])
