"""A training that lasts as long as it may: a few timed steps, a plan, and a schedule that fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lavps.cli import main, training
from lavps.evaluation.typicality import REFERENCE

UNET = {"kind": "unet", "widths": [16], "depth": 1, "attention": [], "head_dim": 16, "condition_width": 16}


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "images").mkdir()
    for number, image in enumerate(np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)):
        Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
    (tmp_path / "unet.json").write_text(json.dumps(UNET))
    options = {
        "data": tmp_path / "images", "output": tmp_path / "run", "network": tmp_path / "unet.json",
        "size": 8, "channels": 1, "batch-size": 4,
    }  # fmt: skip
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return ["train", "prior", "--no-tensorboard", "--cpu", *given]


def trained(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "run" / "config.json").read_text())["trainer"]
    return values


def test_hours_are_planned_and_kept(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*words, "--hours", "0.0005"])
    said = capsys.readouterr()
    plan = next(line for line in said.out.splitlines() if line.startswith("plan: "))
    config = trained(tmp_path)
    steps = config["steps"]
    assert plan.startswith(f"plan: {steps} steps of 4 images, {4 * steps} in all, ")
    assert "epochs of 6; " in plan
    assert 0.01 < float(plan.split("first loss ")[1]) < 100
    assert "6 images are too few to hold one out" in said.err
    assert config["warmup_steps"] == min(500, steps // 10)
    assert config["checkpoint_every"] <= max(steps // 10, 1)
    assert not (tmp_path / "run" / "model" / REFERENCE).exists()  # six images are no reference
    main([*words, "--hours", "0.0005"])  # a run that is complete keeps its number of steps
    assert trained(tmp_path) == config


def test_hours_and_steps_are_refused_together(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*words, "--hours", "1", "--steps", "5"])
    assert end.value.code == 1
    assert "give --hours or --steps, not both" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--hours", "-1"])
    assert "--hours must be above 0" in capsys.readouterr().err
    assert not (tmp_path / "run" / "model").exists()


def test_no_default_takes_days_on_a_cpu(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert training._HOURS == 2.0
    monkeypatch.setattr(training, "_HOURS", 0.0003)
    main(words)
    assert "plan: " in capsys.readouterr().out
    assert trained(tmp_path)["steps"] < 10_000


def test_a_number_of_steps_changes_nothing(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*words, "--steps", "2"])
    assert "plan: " not in capsys.readouterr().out
    assert (trained(tmp_path)["steps"], trained(tmp_path)["warmup_steps"]) == (2, 500)
