"""The recipes: layout, commands, pages, and the paper's configurations on a narrow copy."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.recipes import ROOT, run
from support.restoring import SIZE, write_prior

STUDIES = sorted(path.parent.name for path in ROOT.glob("recipes/*/run.py"))


def write_shard(path: Path, count: int, side: int) -> None:
    """A tar of random images."""
    with tarfile.open(path, "w") as shard:
        for place in range(count):
            pixels = np.random.default_rng(place).integers(0, 255, (side, side, 3), dtype=np.uint8)
            data = io.BytesIO()
            Image.fromarray(pixels).save(data, "PNG")
            entry = tarfile.TarInfo(f"{place:03d}.png")
            entry.size = data.tell()
            data.seek(0)
            shard.addfile(entry, data)


@pytest.mark.parametrize("name", ["zoo", "paper", "calibration", "photos"])
def test_a_recipe_says_what_it_does(name: str) -> None:
    assert "usage:" in run(name, "--help")


def test_a_study_imports_its_own_folder_and_common_only() -> None:
    for path in ROOT.glob("recipes/*/*.py"):
        for names in re.findall(r"^from (\.\S*) import", path.read_text(), re.M):
            own = names.startswith("..common") or not names.startswith("..")
            assert own, f"{path.relative_to(ROOT)} imports {names}"


def test_the_readme_lists_every_study() -> None:
    listed = re.findall(r"`python -m recipes\.(\w+)\.run", (ROOT / "recipes" / "README.md").read_text())
    assert sorted(set(listed)) == STUDIES


@pytest.mark.parametrize("page", sorted(ROOT.glob("benchmarks/*.md")), ids=lambda path: path.stem)
def test_a_page_names_its_command_and_follows_the_style(page: Path) -> None:
    text = page.read_text()
    assert f"python -m recipes.{page.stem}.run" in text
    assert not re.search(r"rival|equal quality|(?<![\d\w/])\.\d", text)
    assert text.count("**NFE**") <= 1


def test_only_amortized_guidance_passes_through_a_model() -> None:
    for record in json.loads((ROOT / "benchmarks" / "paper.json").read_text()):
        trained = record["name"].startswith("LAVPS")
        assert trained == (record["model_forwards"] > 0), record["name"]
        assert record["linearized_steps"] == 0, record["name"]


def test_the_zoo_lists_its_models_at_both_scales() -> None:
    listed = run("zoo", "--list")
    for name in (
        "synthfaces64 ",
        "synthfaces64-sr4 ",
        "ffhq256 ",
        "ffhq256-motion-blur ",
        "imagenet256-random-rectangle ",
    ):
        assert name in listed


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["ffhq256", "imagenet256"])
def test_the_configurations_of_the_paper_take_a_step(prior: str, tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_shard(tmp_path / f"{prior}-{split}.tar", 2, 256)
    where = ("--data", tmp_path, "--runs", tmp_path / "runs", "--zoo", tmp_path / "zoo", "--smoke")
    run("zoo", prior, f"{prior}-sr4", f"{prior}-random-motion-blur", *where)
    for name in (prior, f"{prior}-sr4", f"{prior}-random-motion-blur"):
        assert (tmp_path / "runs" / name / "model" / "model.safetensors").exists()


def test_coverage_and_alarms_are_measured_and_resumed(tmp_path: Path) -> None:
    write_prior(tmp_path / "tiny", front=False)
    for split, count in (("val", 14), ("test", 4)):
        write_shard(tmp_path / f"tiny-{split}.tar", count, SIZE)
    where = (
        "--data",
        tmp_path,
        "--prior",
        tmp_path / "tiny",
        "--work",
        tmp_path / "work",
        "--pages",
        tmp_path,
    )
    sizes = ("--count", 12, "--test-count", 2, "--alarms", 2, "--references", 14, "--rights", 3)
    options = (*where, *sizes, "--tasks", "sr4", "--evaluations", 3)
    run("calibration", *options)
    (record,) = json.loads((tmp_path / "calibration.json").read_text())
    assert [row["level"] for row in record["levels"]] == [0.5, 0.8, 0.9]
    assert record["references"] == 12 + 2
    assert {kind: len(values) for kind, values in record["p_values"].items()} == {
        "right": 3,
        "noise": 2,
        "wrong": 2,
        "coarse": 2,
    }
    page = (tmp_path / "calibration.md").read_text()
    assert f"{record['levels'][2]['scale']:.2f}" in page
    files = [file for file in (tmp_path / "work").rglob("*") if file.is_file()]
    stored = {file: file.stat().st_mtime_ns for file in files}
    run("calibration", *options)
    assert json.loads((tmp_path / "calibration.json").read_text()) == [record]
    assert {file: file.stat().st_mtime_ns for file in files} == stored
    assert len(files) > 20


def test_times_of_the_samplers_are_measured(tmp_path: Path) -> None:
    prior = Path(__file__).parents[2] / "zoo" / "synthfaces64"
    sizes = ("--tasks", "sr4", "--images", 1, "--batches", 1)
    run("overhead", "--prior", prior, "--pages", tmp_path, *sizes)
    found = json.loads((tmp_path / "overhead.json").read_text())["results"]
    assert {r["sampler"]: (r["forwards"], r["backwards"]) for r in found} == {
        "DiffPIR": (8, 0),
        "WienerPIR": (8, 0),
        "TunedPIR (universal)": (8, 0),
        "few-step model": (4, 0),
        "MGDM": (13, 6),
    }
    assert all(0.5 < r["ratio"] < 5 for r in found)
    assert "block means and masks at batch 1" in (tmp_path / "overhead.md").read_text()
    networks = json.loads((tmp_path / "overhead.json").read_text())["networks"]
    assert all(row["fp32"] > 0 and row["bf16"] > 0 for row in networks)
    assert "## Precision" in (tmp_path / "overhead.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("mode", [(), ("--ray",)], ids=["process", "ray"])
def test_no_accepted_job_is_lost_by_the_service(tmp_path: Path, mode: tuple[str, ...]) -> None:
    """A short run of load, mutated images and soak; the page has a long one."""
    pytest.importorskip("ray")
    sizes = ("--clients", 8, "--seconds", 5, "--requests", 40, "--images", 100, "--soak-minutes", 1)
    run("service", *mode, *map(str, sizes), "--pages", tmp_path)
    (result,) = (
        value
        for key, value in json.loads((tmp_path / "service.json").read_text()).items()
        if key != "versions"
    )
    assert result["load"]["restored"] >= 8
    assert result["load"]["errors"] == 0
    assert sum(result["images"]["answers"].values()) == 100
    assert result["images"]["peak_mebibytes"] < 1024
    soak = result["soak"]
    assert soak["faults"]
    assert soak["healthy"]
    assert sum(soak["ends"].values()) == soak["accepted"] > 0
    assert set(soak["ends"]) <= {"done", "failed", "unknown, folder deleted"}
