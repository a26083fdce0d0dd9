"""The schedules for any task that come with the library, each learned by ``lavps tune``.

python -m recipes.few_steps.universal --data DATA --lpips FILE
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from lavps.cli.train_few_step import TASKS
from lavps.cli.tune import Tune
from lavps.restoration.schedules import TunedSchedule


@dataclass(frozen=True)
class Config:
    """Learn the schedules and write them into the package."""

    data: Path
    """Folder of the training images, or a tar file."""
    lpips: Path
    """File of the LPIPS weights."""
    prior: Path = Path("zoo/synthfaces64")
    """Prior."""
    evaluations: tuple[int, ...] = (4, 8)
    """Numbers of denoiser evaluations."""
    iterations: int = 275
    """Optimizer steps of each schedule."""
    work: Path = Path("runs/universal")
    """Folder of the schedules; those found there are not learned again."""
    output: Path = Path("src/lavps/data_step/universal.json")
    """File of the package."""

    def run(self) -> None:
        """Learn the schedules that are missing, and write all of them."""
        entries = []
        for count in self.evaluations:
            file = self.work / f"{count}.json"
            if not file.exists():
                self.work.mkdir(parents=True, exist_ok=True)
                Tune(
                    prior=str(self.prior),
                    task=(*TASKS, "jpeg5", "jpeg20", "hdr"),
                    noise=(0.005, 0.2),
                    data=self.data,
                    evaluations=count,
                    iterations=self.iterations,
                    batch=3,
                    validation_images=3,
                    lpips=self.lpips,
                    compile=True,
                    output=file,
                ).run()
            values = TunedSchedule.read(file).settings.to_dict()
            entries.append({name: value for name, value in values.items() if name != "sampler"})
        self.output.write_text(json.dumps(entries, indent=1) + "\n")
        print(self.output)


if __name__ == "__main__":
    tyro.cli(Config).run()
