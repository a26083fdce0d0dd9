"""lavps replay makes a restoration again bit for bit or says why not; lavps doctor tells what is broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from lavps.cli import doctor, main
from lavps.restoration import Manifest
from restoring import picture, save, write_model, write_prior


@pytest.fixture
def restored(tmp_path: Path) -> Path:
    """A folder with models, a measured file, and what was restored of it."""
    write_prior(tmp_path / "prior")
    write_model(tmp_path / "warm", tmp_path / "prior")
    save(tmp_path / "photo.png", picture(5, 6))
    kernel = np.zeros((3, 3), np.uint8)
    kernel[1] = 80
    save(tmp_path / "kernel.png", kernel)
    main(
        ["restore", str(tmp_path / "photo.png"), "--kernel", str(tmp_path / "kernel.png"), "--samples", "2",
         "--prior", str(tmp_path / "prior"), "--inference-model", str(tmp_path / "warm"), "--seed", "9",
         "--batch", "1", "--output", str(tmp_path / "out"), "--device", "cpu"]
    )  # fmt: skip
    return tmp_path


def replay(folder: Path, *words: str) -> object:
    try:
        main(["replay", str(folder / "out" / "photo.json"), *words])
    except SystemExit as end:
        return end.code
    return 0


def test_a_restoration_is_made_again_to_the_last_bit(
    restored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(restored, "--output", str(restored / "again")) == 0
    assert "identical: the 2 sample(s) of photo.png" in capsys.readouterr().out
    written = Manifest.read(restored / "out" / "photo.json")
    again = Manifest.read(restored / "again" / "photo.json")
    assert again.outputs == written.outputs
    for name in written.outputs:
        assert (restored / "again" / name).read_bytes() == (restored / "out" / name).read_bytes()
    # The folder as a whole may move: paths are relative to the manifest.
    shutil.move(restored, restored.with_name("moved"))
    moved = restored.with_name("moved")
    assert replay(moved) == 0
    shutil.move(moved / "photo.png", moved / "elsewhere.png")
    assert replay(moved) == 1
    assert "say where with --input" in capsys.readouterr().err
    assert replay(moved, "--input", str(moved / "elsewhere.png")) == 0


@pytest.mark.parametrize("changed", ["photo.png", "kernel.png", "prior", "warm"])
def test_what_has_changed_is_refused(
    restored: Path, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if changed.endswith(".png"):
        save(restored / changed, picture(5, 6, seed=1))
        words = f"{changed} has changed since"
    else:
        about = json.loads((restored / "out" / "photo.json").read_text())
        record = about["prior" if changed == "prior" else "model"]
        record["weights_hash"] = "0" * 64
        (restored / "out" / "photo.json").write_text(json.dumps(about))
        words = "has other weights than the one"
    assert replay(restored) == 1
    assert words in capsys.readouterr().err


def test_a_difference_is_found_and_versions_are_named(
    restored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = json.loads((restored / "out" / "photo.json").read_text())
    about["sampling"]["seed"] += 1
    about["machine"]["versions"]["torch"] = "1.0"
    (restored / "out" / "photo.json").write_text(json.dumps(about))
    assert replay(restored) == 1
    said = capsys.readouterr().out
    assert "different: the samples are not those of" in said
    assert "note: torch was 1.0, is " in said
    (restored / "out" / "photo.json").write_text("{}")
    assert replay(restored) == 1
    assert "is no manifest of lavps restore" in capsys.readouterr().err


def test_the_doctor_finds_this_installation_well(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    said = capsys.readouterr().out
    for words in (
        "python: 3",
        "torch: 2",
        "threads:",
        "devices: cpu",
        "torchvision:",
        "self-test:",
        "all is well",
    ):
        assert words in said
    for extra, modules in doctor._EXTRAS.items():
        check = doctor._extra(extra, (*modules, "no_such_module"))
        assert f'pip install "lavps[{extra}]"' in check.advice
        assert not check.broken


def test_the_doctor_finds_a_torchvision_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "torchvision", raising=False)
    check = doctor._torchvision()
    assert "nms does not exist" in check.found
    assert "pip uninstall torchvision" in check.advice


def test_the_doctor_fails_where_samples_are_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_TOLERANCE", 1e-3)  # of 32 samples no sampler's mean is as near as this
    with pytest.raises(SystemExit) as end:
        main(["doctor"])
    assert end.value.code == 1
    said = capsys.readouterr()
    assert "BROKEN  self-test" in said.out
    assert "broken: self-test" in said.err
