"""The recipes: every command says what it does, and the paper's configurations run on a narrow copy."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

RECIPES = Path(__file__).parents[1] / "recipes"


def run(name: str, *arguments: str | Path) -> str:
    """What a recipe prints."""
    done = subprocess.run(
        [sys.executable, str(RECIPES / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


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


@pytest.mark.parametrize("name", ["zoo.py", "speedup.py", "architectures.py", "conditionings.py"])
def test_a_recipe_says_what_it_does(name: str) -> None:
    assert "usage:" in run(name, "--help")


def test_the_zoo_lists_its_models_at_both_scales() -> None:
    listed = run("zoo.py", "--list")
    for name in (
        "faces64 ",
        "faces64-sr4 ",
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
    run("zoo.py", prior, f"{prior}-sr4", f"{prior}-random-motion-blur", *where)
    for name in (prior, f"{prior}-sr4", f"{prior}-random-motion-blur"):
        assert (tmp_path / "runs" / name / "model" / "model.safetensors").exists()
