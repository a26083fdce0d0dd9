"""A benchmark is a folder: one task, one prior, all that was measured and what follows from it.

.. code-block:: text

    FOLDER/benchmark.json                task, noise, prior, seed, precision
    FOLDER/measurements/SPLIT.*          what every method is given
    FOLDER/validation/KEY.jsonl, .json   rows of a method on the validation images, and its settings
    FOLDER/test/KEY.jsonl, .json         on the test images; images/KEY/*.png are the first restored ones
    FOLDER/study.journal                 Optuna's storage
    FOLDER/prices.json                   cost of the models' passes
    FOLDER/timing/                       wall times
    FOLDER/results.json                  what the report is made from
    FOLDER/report.md, .html, figures
"""

from __future__ import annotations

__all__ = ["Benchmark", "BenchmarkSettings"]

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ...amortization.checkpoint import read_config, write_json
from ..lpips import LPIPS
from .costs import Prices, known_prices, measure_prices
from .measurements import MeasurementSet
from .methods import Method
from .models import Models, Precision
from .records import claim, read_json
from .runs import RunFolder, Runner


@dataclass(frozen=True)
class BenchmarkSettings:
    """What is the same for everything in the folder.

    Attributes:
        task: name of the measurement.
        noise: its standard deviation.
        prior: model folder or Hub id.
        prior_hash: of its weights.
        seed: of measurements and samplers.
        precision: of the networks.
    """

    task: str
    noise: float
    prior: str
    prior_hash: str
    seed: int = 0
    precision: Precision = "fp32"


@dataclass(frozen=True)
class Benchmark:
    """The folder; make one with :meth:`create`, come back with :meth:`open`.

    Attributes:
        path: of the folder.
        settings: what is the same for everything in it.
    """

    path: Path
    settings: BenchmarkSettings

    @classmethod
    def create(
        cls, path: Path, task: str, noise: float, prior: str, seed: int = 0, precision: Precision = "fp32"
    ) -> Benchmark:
        """A new folder, or the one that is there if its settings are these."""
        settings = BenchmarkSettings(task, noise, prior, read_config(prior).weights_hash, seed, precision)
        with claim(path / "benchmark.lock"):
            if not (path / "benchmark.json").exists():
                write_json(path / "benchmark.json", asdict(settings))
        found = cls.open(path).settings
        pairs = [(f.name, getattr(found, f.name), getattr(settings, f.name)) for f in fields(settings)]
        if differing := [f"{name} was {old!r}, is {new!r}" for name, old, new in pairs if old != new]:
            raise ValueError(f"{path} is a benchmark of other settings: {'; '.join(differing)}")
        return cls(path, settings)

    @classmethod
    def open(cls, path: Path) -> Benchmark:
        """The benchmark in a folder."""
        if not (record := read_json(path / "benchmark.json")):
            raise FileNotFoundError(f"{path} holds no benchmark: begin one with `lavps bench measure`")
        return cls(path, BenchmarkSettings(**record))

    def measurements(self, split: str) -> MeasurementSet:
        """A split's set."""
        return MeasurementSet.open(self.path / "measurements", split)

    def models(self, device: str = "cpu") -> Models:
        """The prior, and whatever models its methods name."""
        models = Models(self.settings.prior, self.settings.precision, device)
        if models.prior.weights_hash != self.settings.prior_hash:
            raise ValueError(
                f"{self.settings.prior} holds other weights than when this benchmark began: a new prior is a "
                "new benchmark"
            )
        return models

    def runs(self, split: str) -> RunFolder:
        """Where a split's rows lie."""
        return RunFolder(self.path / split)

    def runner(self, split: str, models: Models, lpips: LPIPS, **options: Any) -> Runner:
        """What runs methods on a split; the options are :class:`Runner`'s."""
        seed = self.settings.seed
        return Runner(self.runs(split), self.measurements(split), models, lpips, seed, **options)

    def prices(self, method: Method, models: Models, measurements: MeasurementSet) -> Prices:
        """What the method's passes cost."""
        return measure_prices(self.path / "prices.json", method, models, measurements)

    def known_prices(self, method: Method) -> Prices:
        """The same, without measuring: a method that was run has had its prices measured."""
        prices = known_prices(self.path / "prices.json", method)
        if prices is None:
            raise ValueError(
                f"{self.path / 'prices.json'} does not know {method.model}: run the method first"
            )
        return prices
