"""Presets of photos64: FusedPIR for sharp measurements, and a schedule for super-resolution, learned on crops.

    python -m recipes.zoo.presets --data DATA --lpips FILE

The schedule for any task, learned with faces, is behind WienerPIR and DiffPIR in super-resolution and JPEG of photographs
(benchmarks/few_steps.md). JPEG takes WienerPIR with as many evaluations: gradients through its data steps are slow.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

import lavps
from lavps.data_step import Stationary
from lavps.evaluation import LPIPS
from lavps.operators.registry import named_family
from lavps.restoration.presets import FRONTS, FrontEntry
from lavps.samplers import UNBOUND, FusedPIR, Sampler, Settings, TunedPIR, WienerPIR
from lavps.training.crops import RandomCrops
from lavps.training.data import image_of
from lavps.training.tuning import TuningConfig, tune

EVALUATIONS = 8


@dataclass(frozen=True)
class Config:
    """Learn the schedule and write the presets."""

    data: Path
    """Folder of photos64-train.tar and photos64-val.tar."""
    lpips: Path
    """File of the LPIPS weights."""
    prior: Path = Path("zoo/photos64")
    """Prior; its folder receives the presets."""
    tasks: tuple[str, ...] = ("sr2", "sr4", "sr8")
    """Tasks of the schedule."""
    noise: tuple[float, float] = (0.005, 0.2)
    """Lowest and highest standard deviation of the noise."""
    iterations: int = 36
    """Optimizer steps."""
    batch: int = 8
    """Crops per step."""
    crops: int = 1200
    """Training crops."""
    validation_crops: int = 24
    """Validation crops, which choose among the steps."""
    cache: Path = Path("runs/presets")
    """Folder of the decoded photographs."""

    def run(self) -> None:
        """Learn the schedule and write the presets, the last three for fast, balanced and best."""
        longer: list[Sampler] = [WienerPIR(UNBOUND, num_steps=steps) for steps in (25, 100)]
        fused: list[Sampler] = [FusedPIR(UNBOUND, num_steps=steps) for steps in (EVALUATIONS, 25, 100)]
        short, learned = TunedPIR.universal(UNBOUND, 4), self.learned()
        fronts: dict[str, list[Sampler]] = {
            "sr2": [short, learned, *fused[1:]],
            "sr4": [short, learned, *longer],
            "motion-blur": fused,
            "jpeg": [WienerPIR(UNBOUND, num_steps=EVALUATIONS), *longer],
        }
        entries = [
            replace(FrontEntry.counted(Settings(sampler)), task=task).to_dict()
            for task, samplers in fronts.items()
            for sampler in samplers
        ]
        (self.prior / FRONTS).write_text(json.dumps(entries, indent=1) + "\n")
        print(self.prior / FRONTS)

    def learned(self) -> TunedPIR:
        """Return the schedule that is learned on crops of photographs."""
        prior = lavps.load_prior(self.prior, precision="bf16")
        channels, *size = prior.image_shape
        photographs = [
            RandomCrops.open(self.data / f"photos64-{split}.tar", tuple(size), channels, cache=self.cache)
            for split in ("train", "val")
        ]
        training, validation = (
            crops.fixed(count)
            for crops, count in zip(photographs, (self.crops, self.validation_crops), strict=True)
        )
        result = tune(
            WienerPIR(prior, num_steps=EVALUATIONS, covariance=Stationary.fit(training[:400])),
            lambda items: training[[image_of(item, len(training), 0) for item in items]],
            validation,
            [named_family(task, prior.image_shape) for task in self.tasks],
            self.noise,
            TuningConfig(self.iterations, self.batch, validate_every=6, trends=True, progress=True),
            LPIPS.load(self.lpips).distance,
        )
        print(f"validation score {result.before:.4f} before, {result.after:.4f} after")
        return replace(result.sampler, prior=UNBOUND)


if __name__ == "__main__":
    tyro.cli(Config).run()
