"""Measurements are made once, rebuilt exactly, and refused where they are others than wanted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lavps.amortization.measurements import measure
from lavps.benchmark import MeasurementSet, MeasurementSettings
from lavps.benchmark.measurements import operator_hash
from lavps.evaluation import ImageBatch
from lavps.noise import GaussianNoise
from lavps.operators.registry import family_from
from lavps.training.data import ImageData
from support.benchmarks import SHAPE, Assets

SETTINGS = MeasurementSettings("random-pixels", 0.05, "test", 4, 3, SHAPE)


@pytest.mark.parametrize("task", ["sr4", "random-motion-blur", "random-rectangle", "jpeg"])
def test_a_set_read_back_is_the_set_that_was_measured(assets: Assets, tmp_path: Path, task: str) -> None:
    settings = replace(SETTINGS, task=task)
    made = MeasurementSet.create(tmp_path, settings, assets.data("test"))
    read = MeasurementSet.open(tmp_path, "test")
    expected = measure(
        made.images.to_tensor(), settings.items, family_from(task, SHAPE), GaussianNoise(0.05), 3
    )
    assert torch.equal(read.y, expected.y)
    assert operator_hash(read.operator) == operator_hash(expected.operator)
    assert read.files == made.files
    names = {f"{number}.png" for number in range(6)}
    assert len(set(read.files)) == 4
    assert set(read.files) <= names
    for row, name in enumerate(read.files):
        whole = assets.data("test")[sorted(names).index(name)]
        assert torch.equal(read.images.pixels[row], ImageBatch.from_tensor(whole[None]).pixels[0])


def test_a_slice_has_the_problems_of_its_rows(assets: Assets, tmp_path: Path) -> None:
    made = MeasurementSet.create(tmp_path, SETTINGS, assets.data("test"))
    whole, part = made.problem(slice(0, 4)), made.problem(slice(1, 3))
    x = made.images.to_tensor()
    assert torch.equal(part.y, whole.y[1:3])
    assert torch.equal(part.log_likelihood(x[1:3]), whole.log_likelihood(x)[1:3])
    # The masks differ between items, so the right rows were taken.
    assert not torch.equal(part.operator(x[:2]), whole.operator(x)[:2])


def test_measuring_again_changes_nothing_on_disk(assets: Assets, tmp_path: Path) -> None:
    MeasurementSet.create(tmp_path, SETTINGS, assets.data("test"))
    stamps = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("test.*s*")}
    MeasurementSet.create(tmp_path, SETTINGS, assets.data("test"))
    assert stamps == {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("test.*s*")}
    assert len(stamps) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"noise": 0.1}, r"noise is 0\.05, wanted 0\.1"),
        ({"task": "sr4"}, "task is 'random-pixels', wanted 'sr4'"),
        ({"seed": 4, "count": 2}, "count is 4, wanted 2; seed is 3, wanted 4"),
    ],
)
def test_other_settings_are_refused_by_name(
    assets: Assets, tmp_path: Path, change: dict[str, object], said: str
) -> None:
    MeasurementSet.create(tmp_path, SETTINGS, assets.data("test"))
    with pytest.raises(ValueError, match=said):
        MeasurementSet.create(tmp_path, replace(SETTINGS, **change), assets.data("test"))
    with pytest.raises(ValueError, match="data is"):
        MeasurementSet.create(tmp_path, SETTINGS, ImageData.from_tensor(torch.zeros(6, *SHAPE)))


def test_operators_that_are_not_rebuilt_are_refused(assets: Assets, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def scan(x):\n    return 0.5 * x\n")
    settings = replace(SETTINGS, task=f"{file}:scan")
    MeasurementSet.create(tmp_path, settings, assets.data("test"))
    MeasurementSet.open(tmp_path, "test")
    file.write_text("def scan(x):\n    return 0.6 * x\n")
    with pytest.raises(ValueError, match=r"the redrawn operators of .* differ from those"):
        MeasurementSet.open(tmp_path, "test")


def test_a_changed_hash_or_file_is_refused(assets: Assets, tmp_path: Path) -> None:
    MeasurementSet.create(tmp_path, SETTINGS, assets.data("test"))
    description = tmp_path / "test.json"
    record = json.loads(description.read_text())
    description.write_text(json.dumps(record | {"operator": "0" * 64}))
    with pytest.raises(ValueError, match=r"the redrawn operators of .* differ from those"):
        MeasurementSet.open(tmp_path, "test")
    description.write_text(json.dumps(record))
    tensors = tmp_path / "test.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"\x07")
    with pytest.raises(ValueError, match="is damaged"):
        MeasurementSet.open(tmp_path, "test")
    with pytest.raises(FileNotFoundError, match="lavps bench measure"):
        MeasurementSet.open(tmp_path, "validation")
    with pytest.raises(ValueError, match="and the data have 6"):
        MeasurementSet.create(tmp_path, replace(SETTINGS, split="new", count=7), assets.data("test"))


def test_splits_share_no_item_and_more_images_begin_with_the_fewer(assets: Assets, tmp_path: Path) -> None:
    few = MeasurementSet.create(tmp_path, SETTINGS, assets.data("test"))
    many = MeasurementSet.create(tmp_path / "many", replace(SETTINGS, count=6), assets.data("test"))
    assert many.files[:4] == few.files
    assert torch.equal(many.y[:4], few.y)
    other = replace(SETTINGS, split="validation")
    assert not set(other.items) & set(SETTINGS.items)
    assert min(*other.items, *SETTINGS.items) >= 1 << 32


def test_hashes_tell_operators_apart() -> None:
    family = family_from("random-motion-blur", SHAPE)
    hashes = {operator_hash(family.draw([item], SHAPE)) for item in (1, 2, 3)}
    fixed = {operator_hash(family_from(name, SHAPE).draw([0], SHAPE)) for name in ("sr2", "sr4", "denoise")}
    assert len(hashes) == len(fixed) == 3
    assert operator_hash(family.draw([1], SHAPE)) in hashes
