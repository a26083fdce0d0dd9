"""The README's examples run as they are, and so do the commands of the page on inference models."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from PIL import Image
from recipes.common.cells import verdicts
from recipes.common.study import TASKS
from recipes.paper.run import match

from lavps.cli import main
from lavps.io import read_image
from support.problems import images

ROOT = Path(__file__).parents[1].parent
README = ROOT / "README.md"
TRAINING = ROOT / "docs" / "howto" / "train_inference.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)


LINES = TRAINING.read_text().replace("\\\n", " ")
COMMANDS = re.findall(r"^lavps (train .*)$", LINES, re.M)
ON_FILES = re.findall(r"^lavps ((?:degrade|restore|replay|doctor).*)$", LINES, re.M)
# Fronts with few steps, for the folders of the prior and of the inference model.
COST = {"score": 0.1, "forwards": 5, "backwards": 2, "model_forwards": 2}
GUIDANCE = {"prior": {"kind": "Gradient", "steps": 1}, "sr4": {"kind": "Amortized", "model": None}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images in which the page's trainings have run, with small networks and two steps each."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "images").mkdir()
    for number, pixels in enumerate(images(4, (3, 64, 64)).add(1).mul(127.5).byte().permute(0, 2, 3, 1)):
        Image.fromarray(pixels.numpy()).save(folder / "images" / f"{number}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in COMMANDS:
            short = ["--network", "unet-mini", "--steps", "2", "--batch-size", "2", "--warmup-steps", "1"]
            main([*command.split(), *short, "--cpu"])
    for model, guidance in GUIDANCE.items():
        settings = {"sampler": "MGDM", "num_steps": 4, "guidance": guidance}
        front = [{"settings": settings} | COST]
        (folder / "runs" / model / "model" / "fronts.json").write_text(json.dumps(front))
    Image.fromarray(pixels.numpy()[:16, :16]).save(folder / "photo.png")
    Image.new("L", (16, 16), 255).save(folder / "mask.png")
    return folder


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_runs(
    number: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("examples", "zoo"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"README.md, example {number}", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    if "oracle_mixture" in BLOCKS[number]:
        assert [line.split()[0] for line in lines] == ["MGDM", "MMPS", "DPS"]
        assert all(float(line.split()[2].rstrip(",")) < 0.12 for line in lines), lines
    else:
        assert read_image(tmp_path / "restored.png").pixels.shape == (3, 64, 64)


def test_the_commands_on_files_run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    for command in ON_FILES:
        main(command.split())
    assert (trained / "restored" / "photo-comparison.png").is_file()
    assert (trained / "restored" / "3.npy").is_file()


def test_there_are_examples() -> None:
    assert len(BLOCKS) == 2
    assert [command.split()[0] for command in ON_FILES].count("restore") == 4
    assert [command.split()[1] for command in COMMANDS] == ["prior", "inference"]


ROW = re.compile(r"^\| (photographs: )?([^|]*) \| (\d+) \| ([^|]*) \| (\d+) \|((?: \d of \d \|){4})$", re.M)
SCHEDULE = "TunedPIR (universal)"


def scores(study: str, images: int) -> dict[tuple[str, str, int], dict[str, list[float]]]:
    """LPIPS and CRPS of every image by task, sampler and number of evaluations, of tasks with all images."""
    records = json.loads((ROOT / "benchmarks" / f"{study}.json").read_text())
    return {(r["task"], r["name"], r["evaluations"]): r for r in records if r["images"] == images}


def test_the_results_of_the_front_page_are_those_of_the_studies() -> None:
    text = README.read_text()
    assert "on 48\nsynthetic faces" in text
    assert "on 32 crops" in text
    faces, photographs = scores("few_steps", 48), scores("few_steps_photos", 32)
    rows = ROW.findall(text)
    assert len(rows) == len(re.findall(r"^\|.*\d of \d.*\d of \d.*$", text, re.M)) >= 10
    for kind, name, own, other, count, stated in rows:
        study = photographs if kind else faces
        mine = SCHEDULE if name == "schedule for any task" else name
        found = [
            verdicts(record, study[task, other, int(count)])
            for (task, sampler, evaluations), record in study.items()
            if (sampler, evaluations) == (mine, int(own)) and (task, other, int(count)) in study
        ]
        shares = [f"{sum(column)} of {len(found)}" for column in zip(*found, strict=True)]
        assert re.findall(r"\d of \d", stated) == shares, (name, own, other, count)
        if not kind and (name, count) == ("few-step model", "25") and other == "DiffPIR":
            assert shares == ["3 of 3", "3 of 3", "2 of 3", "0 of 3"]  # the sentence above the table


def test_the_front_page_says_where_others_are_ahead() -> None:
    study = scores("few_steps", 48)
    assert "On JPEG at quality 5, DiffPIR is ahead of the schedule at 4 evaluations" in README.read_text()
    _, lower, better, _ = verdicts(study["jpeg", "DiffPIR", 4], study["jpeg", SCHEDULE, 4])
    assert lower
    assert better


def test_the_gradients_of_the_front_page_are_those_of_the_study() -> None:
    study = scores("baselines", 24)
    for task in ("sr4", "motion-blur"):
        _, lower, _, higher = verdicts(study[task, "few-step model", 4], study[task, "Pi-GDM", 25])
        assert higher
        assert lower == (task == "sr4")


@pytest.mark.parametrize(
    ("study", "shares"), [("few_steps_inception", (4, 5)), ("few_steps_photos_inception", (2, 4))]
)
def test_the_inception_distances_of_the_front_page_are_those_of_the_study(
    study: str, shares: tuple[int, int]
) -> None:
    records = json.loads((ROOT / "benchmarks" / f"{study}.json").read_text())
    first = []
    for task in dict.fromkeys(r["task"] for r in records):
        there = [r for r in records if r["task"] == task]
        first.append(min(there, key=lambda r: sum(r["distance"]))["name"])
    assert (first.count("DiffPIR"), len(first)) == shares


def test_the_speed_up_of_the_front_page_is_that_of_the_study() -> None:
    """Against the cheapest MGDM that is non-inferior to the best one, on every task."""
    records = json.loads((ROOT / "benchmarks" / "paper.json").read_text())
    assert {record["images"] for record in records} == {20}
    found = [match([r for r in records if r["task"] == task]) for task in TASKS]
    ratios = sorted(one["ratio"] for one in found)
    words = f"{ratios[0]:.1f} to {ratios[-1]:.1f}\ntimes fewer [evaluations](benchmarks/paper.md)"
    assert words in README.read_text()


def test_the_coverage_of_the_front_page_is_that_of_the_study() -> None:
    records = json.loads((ROOT / "benchmarks" / "calibration.json").read_text())
    assert {record["task"] for record in records} == set(TASKS)
    assert {record["prior"] for record in records} == {"synthfaces64", "photos64"}
    levels = [row for record in records for row in record["levels"]]
    assert {row["level"] for row in levels} == {0.5, 0.8, 0.9}
    gap = max(100 * abs(row["test_after"][0] - row["level"]) for row in levels)
    assert f"covered that within {math.ceil(10 * gap) / 10:.1f} points" in README.read_text()


def test_the_figures_of_the_front_page_are_what_their_caption_says() -> None:
    records = json.loads((ROOT / "benchmarks" / "showcase.json").read_text())
    assert {record["forwards"] for record in records} == {25}
    assert "25 evaluations per sample" in README.read_text()
    animation = ROOT / "benchmarks" / "showcase.webp"
    assert animation.stat().st_size < 1_000_000
    with Image.open(animation) as frames:
        assert frames.n_frames >= 25


def test_the_supported_versions_of_the_front_page_are_those_of_the_package() -> None:
    package = (ROOT / "pyproject.toml").read_text()
    text = README.read_text()
    assert f"Python {re.search(r'requires-python = .>=([0-9.]+)', package)[1]} or newer" in text  # type: ignore[index]
    assert f"torch {re.search(r'.torch>=([0-9.]+)', package)[1]} or newer" in text  # type: ignore[index]
