"""The tables on images, from a data shard to a page, on tiny random models."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from support.benchmarks import Assets
from support.recipes import run


@pytest.fixture(scope="module")
def places(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a recipe: a zoo of a prior and a model, shards, LPIPS weights, somewhere to write."""
    folder = tmp_path_factory.mktemp("tables")
    for source, name in ((assets.prior, "faces64"), (assets.inference, "faces64-sr4")):
        shutil.copytree(source, folder / "zoo" / name)
    for split, name in (("validation", "train"), ("validation", "val"), ("test", "test")):
        with tarfile.open(folder / f"faces64-{name}.tar", "w") as shard:
            for picture in sorted((assets.folder / split).glob("*.png")):
                shard.add(picture, picture.name)
    options = {
        "data": folder, "zoo": folder / "zoo", "lpips": assets.lpips, "work": folder / "work",
        "pages": folder / "pages", "tasks": "sr4",
        "validation-count": 2, "test-count": 4, "count": 3, "batch-size": 2,
    }  # fmt: skip
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


@pytest.mark.slow
def test_a_table_is_made_and_made_again_from_its_rows(places: list[str]) -> None:
    pages = Path(places[places.index("--pages") + 1])
    run("windows", *places, "--num-steps", "20")
    page, records = (pages / "windows.md").read_text(), json.loads((pages / "windows.json").read_text())
    assert (pages / "windows.png").stat().st_size > 10_000
    assert [record["name"] for record in records][:2] == [
        "MGDM (whitened gradient), K=20, G=1",
        "LAVPS, K=20, G=1, G=0 for t ≤ 0.1, whitened, model for t ≤ 0.1",
    ]
    assert {record["images"] for record in records} == {3}
    for record in records:
        assert f"{record['lpips']:.4f}" in page
    assert records[0]["backwards"] > 0 == records[-1]["backwards"]
    assert records[-1]["model_forwards"] > 0 == records[0]["model_forwards"]
    shutil.rmtree(pages.parent / "work")  # what was published is enough to go on from
    run("windows", *places, "--num-steps", "20")
    assert json.loads((pages / "windows.json").read_text()) == records
    (pages / "windows.md").unlink()
    run("windows", *places, "--page-only", "--data", "nowhere")
    assert (pages / "windows.md").read_text() == page
    assert json.loads((pages / "windows.json").read_text()) == records


@pytest.mark.slow
def test_the_coverage_of_intervals_is_measured(places: list[str]) -> None:
    pages = Path(places[places.index("--pages") + 1])
    run("image_calibration", *places, "--samples", "4")
    records = json.loads((pages / "image_calibration.json").read_text())
    assert [record["name"] for record in records] == [
        "MGDM (whitened gradient), K=50, G=1",
        "LAVPS, K=50, G=0, linearized for t ≤ 0.5, safeguard every 4 steps",
    ]
    for record in records:
        assert 0 <= record["coverage"][0] <= record["coverage"][1] <= 1
        assert record["psnr_mean"] > record["psnr_sample"]


@pytest.mark.slow
def test_ways_of_telling_are_trained_and_compared(places: list[str]) -> None:
    pages = Path(places[places.index("--pages") + 1])
    network = pages.parent / "network.json"
    network.write_text(
        json.dumps({"kind": "unet", "widths": [16], "depth": 1, "attention": [], "head_dim": 16})
    )
    own = {"network": network, "runs": pages.parent / "runs", "steps": 3, "train-batch": 2, "num-steps": 4}
    words = [word for name, value in own.items() for word in (f"--{name}", str(value))]
    run(
        "conditionings",
        *places,
        *words,
        "--tasks",
        "sr4",
        "half-pixels",
        "--conditionings",
        "palette",
        "gradient",
    )
    records = json.loads((pages / "conditionings.json").read_text())
    assert [record["conditioning"] for record in records] == 2 * ["palette", "gradient"] + [
        "palette",
        "gradient",
    ]
    assert all(record["backwards"] == 0 < record["model_forwards"] for record in records[:4])
    assert records[4]["validation"]["zero"] == records[5]["validation"]["zero"]
    assert "| palette |" in (pages / "conditionings.md").read_text()
