"""Published rows, run again: an archive of a study has the settings and rows of all methods."""

from __future__ import annotations

__all__ = ["Repetition", "published", "repeat"]

import tarfile
from dataclasses import dataclass
from pathlib import Path

from ..checkpoints.folder import read_config
from ..evaluation.lpips import LPIPS
from ..samplers import Settings
from ..training.data import ImageData
from .folder import Benchmark
from .measurements import MeasurementSet, MeasurementSettings
from .methods import family, label
from .records import read_json
from .runs import Row, RunFolder, Runner


@dataclass(frozen=True)
class Repetition:
    """Rows of a method as published, and as measured now.

    Attributes:
        stored: Published rows.
        rows: Rows of the same images, measured now.
    """

    stored: list[Row]
    rows: list[Row]

    def difference(self, metric: str = "lpips") -> float:
        """Return the largest difference of a metric between both."""
        pairs = zip(self.stored, self.rows, strict=True)
        return max(abs(float(old[metric]) - float(new[metric])) for old, new in pairs)


def published(archive: Path, folder: Path, split: str = "test") -> dict[str, str]:
    """Unpack an archive of a study, and return the names of its methods by their keys.

    Args:
        archive: Archive, ``benchmarks/STUDY/TASK.tar.gz``.
        folder: Folder to unpack to.
        split: Images of the rows.
    """
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    found = {}
    for rows in sorted((folder / split).glob("*.jsonl")):
        method = Settings.from_dict(read_json(rows.with_suffix(".json"))["method"])
        found[rows.stem] = f"{family(method)}, {label(method)}"
    return found


def repeat(
    folder: Path, key: str, data: Path, lpips: LPIPS, count: int = 2, split: str = "test"
) -> Repetition:
    """Run a published method again on its first images.

    Args:
        folder: Unpacked archive.
        key: Key of the method.
        data: Images of the split, a folder or a tar file; the same as those of the study.
        lpips: Perceptual distance.
        count: Number of images.
        split: Split of the rows.

    Raises:
        ValueError: The prior's weights are not those of the study, or the images are others.
    """
    benchmark = Benchmark.open(folder)
    runs = RunFolder(folder / split)
    about = read_json(runs.path / f"{key}.json")
    stored = runs.rows(key)[:count]
    shape, own = read_config(benchmark.settings.prior).image_shape, benchmark.settings
    settings = MeasurementSettings(own.task, own.noise, split, len(stored), own.seed, shape)
    images = ImageData.open(data, (shape[1], shape[2]), shape[0], cache=False)
    given = MeasurementSet.create(folder / "again", settings, images)
    if [row["file"] for row in stored] != list(given.files):
        raise ValueError(f"{data} has other images than the study: its first are {', '.join(given.files)}")
    method = Settings.from_dict(about["method"])
    runner = Runner(
        RunFolder(folder / "again" / split),
        given,
        benchmark.models(),
        lpips,
        about["seed"],
        samples=about["samples"] or 1,
    )
    return Repetition(stored, runner.run(method))
