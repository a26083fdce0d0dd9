"""How should a model be told of the measurement? Palette, the likelihood's gradient, InvFusion, at equal training.

    python recipes/conditionings.py --data path/to/data --lpips path/to/lpips_alex.safetensors

The same HDiT, family of operators, images, batches and learning rates; only what the network is told differs. Judged by the
objective on held-out contexts, and by what the samplers make of it: the model alone at every step, no gradient, no safeguard,
on operators as trained and on stronger ones. Stopped, the same command goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from image_table import Table, compared, error, find
from lavps.amortization.checkpoint import read_config
from lavps.cli import main as command_line
from lavps.evaluation.benchmark import Method
from lavps.evaluation.benchmark.report import markdown_table

STUDY = "conditionings"
TOLD = ("palette", "gradient", "palette+gradient", "invfusion")


@dataclass(frozen=True)
class Config(Table):
    """Ways of telling a network of the measurement, compared."""

    count: int = 32
    tasks: tuple[str, ...] = ("random-motion-blur", "random-motion-blur-hard")
    """The first is trained on."""
    runs: Path = Path("runs/conditionings")
    """Folder of the trainings."""
    told: tuple[str, ...] = TOLD
    """What is compared."""
    network: str = "hdit-tiny"
    """Of all: InvFusion needs tokens."""
    steps: int = 300
    """Of every training."""
    train_batch: int = 32
    """Images a step."""
    num_steps: int = 50
    """K of the restorations."""

    def train(self, told: str) -> Path:
        """The model, trained or resumed; its folder."""
        folder, name = self.runs / told, self.prior.name
        options: dict[str, Any] = {
            "data": self.data / f"{name}-train.tar", "validation": self.data / f"{name}-val.tar", "output": folder,
            "prior": self.prior, "task": self.tasks[0], "noise": 0.05, "conditioning": told, "network": self.network,
            "steps": self.steps, "batch-size": self.train_batch, "learning-rate": 1e-3, "warmup-steps": max(1, self.steps // 6),
            "ema-decay": 0.99, "precision": "bf16", "validation-images": 128, "validate-every": self.steps,
            "checkpoint-every": max(1, self.steps // 3), "preview-every": 10 * self.steps, "log-every": 20,
        }  # fmt: skip
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        command_line(["train", "inference", *words, "--step-counts", "25", "50", "100", "--cpu"])
        return folder / "model"

    def run(self) -> None:
        """Write conditionings.md."""
        models = {told: self.train(told) for told in self.told}
        methods = {
            told: Method(
                "lavps", num_steps=self.num_steps, gradient_steps_start=0, safeguard=False, model=str(model)
            )
            for told, model in models.items()
        }
        records = [record for task in self.tasks for record in self.measured(STUDY, task, methods)]
        held_out = {told: read_config(model).training["validation"] for told, model in models.items()}
        rows, first = [], find(records, self.tasks[0], self.told[0])
        for told in self.told:
            found = [find(records, task, told) for task in self.tasks]
            rows.append(
                [
                    told,
                    f"{held_out[told]['warm']:,.0f}",
                    f"{held_out[told]['acceptance']:.0%}",
                    *[f"{record['lpips']:.4f} ± {error(record):.4f}" for record in found],
                    "" if told == self.told[0] else compared(first, found[0]),
                    f"{found[0]['cost']:.0f}",
                ]
            )
        zero = next(iter(held_out.values()))["zero"]
        head = [
            "told",
            "objective of the start",
            "better than the bridge",
            "LPIPS as trained",
            "LPIPS, stronger blur",
        ]
        head += [f"minus {self.told[0]}, as trained; within .003", "cost"]
        self.publish(
            STUDY, records + [{"name": told, "validation": about} for told, about in held_out.items()],
            table=markdown_table(head, rows), zero=f"{zero:,.0f}", network=self.network, steps=str(self.num_steps),
            images=f"{self.steps * self.train_batch:,}",
        )  # fmt: skip


if __name__ == "__main__":
    tyro.cli(Config).run()
