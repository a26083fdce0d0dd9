"""Conditioning of the inference model on the measurement: Palette, the likelihood gradient, InvFusion.

    python -m recipes.conditionings.run --data DATA --lpips FILE

All models have the same network, family of operators, images, batches and learning rates. They are compared by the
objective on held-out contexts, and by LPIPS with the model at every step, without gradients and without safeguard.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import tyro

from lavps.benchmark.report import markdown_table
from lavps.checkpoints.folder import read_config
from lavps.guidance import Amortized
from lavps.samplers import Unbound

from ..common.pages import read
from ..common.table import Record, Table, compared, find, lpips, mgdm
from ..common.training import train

CONDITIONINGS = ("palette", "gradient", "palette+gradient", "invfusion")


@dataclass(frozen=True)
class Config(Table):
    """Comparison of conditionings."""

    count: int = 32
    tasks: tuple[str, ...] = ("random-motion-blur", "random-motion-blur-hard")
    """Tasks; the models are trained on the first."""
    runs: Path = Path("runs/conditionings")
    """Folder of the training runs."""
    conditionings: tuple[str, ...] = CONDITIONINGS
    """Conditionings to compare."""
    network: str = "hdit-tiny"
    """Network of all models; InvFusion needs tokens."""
    steps: int = 300
    """Number of training steps."""
    train_batch: int = 32
    """Number of images per training step."""
    num_steps: int = 50
    """Number of diffusion steps K."""

    study: ClassVar[str] = "conditionings"

    def train(self, conditioning: str) -> Path:
        """Train the model, or resume its training; return its folder."""
        folder, name = self.runs / conditioning, self.prior.name
        options: dict[str, Any] = {
            "data": self.data / f"{name}-train.tar", "validation": self.data / f"{name}-val.tar", "output": folder,
            "prior": self.prior, "task": self.tasks[0], "noise": 0.05, "conditioning": conditioning, "network": self.network,
            "steps": self.steps, "batch-size": self.train_batch, "learning-rate": 1e-3, "warmup-steps": max(1, self.steps // 6),
            "ema-decay": 0.99, "precision": "bf16", "validation-images": 128, "validate-every": self.steps,
            "checkpoint-every": max(1, self.steps // 3), "preview-every": 10 * self.steps, "log-every": 20,
            "step-counts": "25 50 100",
        }  # fmt: skip
        train("inference", options)
        return folder / "model"

    def measure(self) -> list[Record]:
        """Train the models and run each on both tasks."""
        models = {conditioning: self.train(conditioning) for conditioning in self.conditionings}
        methods = [
            mgdm(self.num_steps, Amortized(Unbound(str(model)), 0, safeguard_every=None))
            for model in models.values()
        ]
        records = [
            record | {"conditioning": conditioning}
            for task in self.tasks
            for conditioning, record in zip(models, self.measured(task, methods), strict=True)
        ]
        return records + [
            {"conditioning": conditioning, "validation": read_config(model).training["validation"]}
            for conditioning, model in models.items()
        ]

    def fields(self, records: list[Record]) -> dict[str, str]:
        """Return the table, and the numbers of the prose."""
        held_out = {r["conditioning"]: r["validation"] for r in records if "validation" in r}
        by_name = {(r["task"], r["conditioning"]): r for r in records if "method" in r}
        rows, first = [], by_name[self.tasks[0], self.conditionings[0]]
        for conditioning in self.conditionings:
            found = [by_name[task, conditioning] for task in self.tasks]
            rows.append(
                [
                    conditioning,
                    f"{held_out[conditioning]['warm']:,.0f}",
                    f"{held_out[conditioning]['acceptance']:.0%}",
                    *map(lpips, found),
                    "" if found[0] is first else compared(first, found[0]),
                    f"{found[0]['cost']:.0f}",
                ]
            )
        head = [
            "conditioning",
            "objective",
            "share below the bridge",
            "LPIPS as trained",
            "LPIPS, stronger blur",
        ]
        head += [f"ΔLPIPS to {self.conditionings[0]}, as trained; non-inferior", "NFE"]
        return {
            "table": markdown_table(head, rows),
            "zero": f"{next(iter(held_out.values()))['zero']:,.0f}",
            "network": self.network,
            "steps": str(self.num_steps),
            "seen": f"{self.steps * self.train_batch:,}",
            "others": self.others(),
        }

    def others(self) -> str:
        """Return results of the study of operators out of distribution on the same images, if there are any."""
        if not (self.pages / "out_of_distribution.json").exists():
            return ""
        found = read(self.pages, "out_of_distribution")
        wanted = {
            "U-Net of the zoo, used in the same way": "LAVPS, K=50, G=0, no safeguard",
            "MGDM (whitened gradient), K=50": "MGDM (whitened gradient), K=50",
            "U-Net of the zoo, linearized for t ≤ 0.5": "LAVPS, K=50, G=0, linearized for t ≤ 0.5",
        }
        rows = []
        for name, group in wanted.items():
            records = [find(found, task, group) for task in self.tasks]
            rows.append(
                [name, *[f"{record['lpips']:.4f}" for record in records], f"{records[0]['cost']:.0f}"]
            )
        return markdown_table(["method", "LPIPS as trained", "LPIPS, stronger blur", "NFE"], rows)


if __name__ == "__main__":
    tyro.cli(Config).run()
