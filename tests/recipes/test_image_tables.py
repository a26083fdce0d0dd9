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
    for source, name in ((assets.prior, "synthfaces64"), (assets.inference, "synthfaces64-sr4")):
        shutil.copytree(source, folder / "zoo" / name)
    config = folder / "zoo" / "synthfaces64-sr4" / "config.json"
    about = json.loads(config.read_text()) | {"training": {"steps": 3, "batch_size": 2}}
    config.write_text(json.dumps(about))
    for split, name in (("validation", "val"), ("test", "test")):
        with tarfile.open(folder / f"synthfaces64-{name}.tar", "w") as shard:
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
    sizes = ("--steps", "8", "16", "--ends", "0", "1")
    run("paper", *places, *sizes)
    page, records = (pages / "paper.md").read_text(), json.loads((pages / "paper.json").read_text())
    for figure in ("cost", "shifts"):
        assert (pages / "paper" / f"{figure}.png").stat().st_size > 10_000
    assert [(r["task"], r["family"], r["steps"], r["end"]) for r in records] == [
        *[("sr4", family, k, end) for k in (8, 16) for end in (0, 1) for family in ("MGDM (Adam)", "LAVPS")],
        ("sr4", "schedule for any task", 8, None),
        ("sr8", "MGDM (Adam)", 16, 1),
        ("sr8", "LAVPS", 16, 1),
        ("sr8", "LAVPS", 16, 0),
    ]
    assert {record["images"] for record in records} == {3}
    for record in records:
        assert f"{record['lpips']:.4f}" in page
        assert (record["model_forwards"] > 0) == (record["family"] == "LAVPS")
    shutil.rmtree(pages.parent / "work")  # what was published is enough to go on from
    run("paper", *places, *sizes)
    assert json.loads((pages / "paper.json").read_text()) == records
    (pages / "paper.md").unlink()
    run("paper", *places, *sizes, "--page-only", "--data", "nowhere")
    assert (pages / "paper.md").read_text() == page
    assert json.loads((pages / "paper.json").read_text()) == records
