"""Folder of a benchmark: one task, one prior, the rows of all methods, and the results.

.. code-block:: text

    FOLDER/benchmark.json                task, noise, prior, seed, precision
    FOLDER/measurements/SPLIT.*          measurements, the same for every method
    FOLDER/validation/KEY.jsonl, .json   rows of a method on the validation images, and its settings
    FOLDER/test/KEY.jsonl, .json         rows on the test images; images/KEY/*.png are restored images
    FOLDER/study.journal                 storage of Optuna
    FOLDER/prices.json                   relative costs of the models
    FOLDER/timing/                       wall times
    FOLDER/results.json                  content of the report
    FOLDER/report.md, .html, figures
"""

from __future__ import annotations

__all__ = ["Benchmark", "BenchmarkSettings"]

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..checkpoints.folder import read_config
from ..evaluation.lpips import LPIPS
from ..io.atomic import write_json
from ..samplers import Settings
from .costs import RelativeCost, known_relative_cost, measure_relative_cost
from .measurements import MeasurementSet
from .models import Models, Precision
from .records import claim, read_json
from .runs import RunFolder, Runner


@dataclass(frozen=True)
class BenchmarkSettings:
    """Settings shared by all methods of a benchmark.

    Attributes:
        task: Name of the measurement.
        noise: Standard deviation of the measurement noise.
        prior: Model folder or Hub id of the prior.
        prior_hash: Hash of the prior's weights.
        seed: Seed of measurements and samplers.
        precision: Precision of the networks.
    """

    task: str
    noise: float
    prior: str
    prior_hash: str
    seed: int = 0
    precision: Precision = "fp32"


@dataclass(frozen=True)
class Benchmark:
    """Folder of a benchmark, from :meth:`create` or :meth:`open`.

    Attributes:
        path: Path of the folder.
        settings: Settings shared by all methods.
    """

    path: Path
    settings: BenchmarkSettings

    @classmethod
    def create(
        cls, path: Path, task: str, noise: float, prior: str, seed: int = 0, precision: Precision = "fp32"
    ) -> Benchmark:
        """Create the folder, or open an existing one with equal settings."""
        settings = BenchmarkSettings(task, noise, prior, read_config(prior).weights_hash, seed, precision)
        with claim(path / "benchmark.lock"):
            if not (path / "benchmark.json").exists():
                write_json(path / "benchmark.json", asdict(settings))
        found = cls.open(path).settings
        pairs = [(f.name, getattr(found, f.name), getattr(settings, f.name)) for f in fields(settings)]
        if differing := [f"{name} was {old!r}, is {new!r}" for name, old, new in pairs if old != new]:
            raise ValueError(f"{path} is a benchmark with other settings: {'; '.join(differing)}")
        return cls(path, settings)

    @classmethod
    def open(cls, path: Path) -> Benchmark:
        """Open an existing folder."""
        if not (record := read_json(path / "benchmark.json")):
            raise FileNotFoundError(f"{path} contains no benchmark: create one with `lavps bench measure`")
        return cls(path, BenchmarkSettings(**record))

    def measurements(self, split: str) -> MeasurementSet:
        """Open the measurements of a split."""
        return MeasurementSet.open(self.path / "measurements", split)

    def models(self, device: str = "cpu") -> Models:
        """Load the prior; models of methods are loaded when they are used."""
        models = Models(self.settings.prior, self.settings.precision, device)
        if models.prior.weights_hash != self.settings.prior_hash:
            raise ValueError(
                f"the weights of {self.settings.prior} have changed since this benchmark was created: "
                "a new prior needs a new benchmark"
            )
        return models

    def runs(self, split: str) -> RunFolder:
        """Return the folder of a split's rows."""
        return RunFolder(self.path / split)

    def runner(self, split: str, models: Models, lpips: LPIPS, **options: Any) -> Runner:
        """Return a runner of methods on a split; the options are those of :class:`Runner`."""
        seed = self.settings.seed
        return Runner(self.runs(split), self.measurements(split), models, lpips, seed, **options)

    def prices(self, method: Settings, models: Models, measurements: MeasurementSet) -> RelativeCost:
        """Return the relative costs of a method, measured if necessary."""
        return measure_relative_cost(self.path / "prices.json", method, models, measurements)

    def known_prices(self, method: Settings) -> RelativeCost:
        """Return the relative costs of a method that has been run."""
        prices = known_relative_cost(self.path / "prices.json", method)
        if prices is None:
            raise ValueError(
                f"{self.path / 'prices.json'} has no entry for {method.to_dict()}: run the method first"
            )
        return prices
