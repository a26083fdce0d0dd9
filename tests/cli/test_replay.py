"""lavps replay makes a restoration again bit for bit or says why not; lavps doctor tells what is broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from lavps.cli import doctor, main
from lavps.guidance import Amortized, Gradient, Guidance, Linearized, switch
from lavps.minimizers import Adam, WhitenedGradient
from lavps.restoration import FileRestorer, Manifest, MeasurementSpec, RestorationConfig
from lavps.samplers import MGDM, UNBOUND, Settings
from support.restoring import picture, save, write_model, write_prior


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
         "--batch-size", "1", "--output", str(tmp_path / "out"), "--device", "cpu", "--noise", "0.05"]
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
    assert "give its path with --input" in capsys.readouterr().err
    assert replay(moved, "--input", str(moved / "elsewhere.png")) == 0


@pytest.mark.parametrize("changed", ["photo.png", "kernel.png", "prior", "warm"])
def test_what_has_changed_is_refused(
    restored: Path, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if changed.endswith(".png"):
        save(restored / changed, picture(5, 6, seed=1))
        words = f"{changed} has changed:"
    else:
        about = json.loads((restored / "out" / "photo.json").read_text())
        record = about["prior" if changed == "prior" else "model"]
        record["weights_hash"] = "0" * 64
        (restored / "out" / "photo.json").write_text(json.dumps(about))
        words = "has other weights than the one"
    assert replay(restored) == 1
    assert words in capsys.readouterr().err


# Settings as version 0.1 wrote them, without and with an inference model, and what they mean today.
FLAT = {
    "num_steps": 8, "gradient_steps_start": 1, "gradient_steps_end": None, "r_switch": 0.0,
    "minimizer": "whitened", "learning_rate": None, "safeguard": True, "r_model": None, "probe_every": 1,
    "r_step": None, "denoising_steps": 1, "renoise": "forward",
}  # fmt: skip
WHITENED = WhitenedGradient()
OLD = [
    (False, {}, Gradient(1, WHITENED), {}),
    (False, {"minimizer": "adam", "learning_rate": 0.1, "gradient_steps_start": 2},
     Gradient(2, Adam(0.1)), {}),
    (False, {"gradient_steps_end": 3, "r_switch": 0.7, "renoise": "bridge", "denoising_steps": 2},
     switch(Gradient(1, WHITENED), Gradient(3, WHITENED), at=0.3),
     {"renoise": "bridge", "denoising_steps": 2}),
    (False, {"gradient_steps_start": 1, "gradient_steps_end": 0, "r_switch": 0.5, "r_step": 0.5},
     switch(Gradient(1, WHITENED), Linearized(), at=0.5), {}),
    (False, {"gradient_steps_start": 0, "r_model": 0.0, "r_step": 0.5},
     switch(Linearized(data_variance=0.01), Linearized(), at=0.5), {}),
    (True, {"gradient_steps_start": 0}, Amortized(UNBOUND, 0), {}),
    (True, {"gradient_steps_start": 0, "safeguard": False}, Amortized(UNBOUND, 0, safeguard_every=None), {}),
    (True, {"gradient_steps_start": 1, "gradient_steps_end": 2, "r_switch": 0.5, "probe_every": 2},
     switch(Gradient(1, WHITENED), Amortized(UNBOUND, 2, WHITENED, 2), at=0.5), {}),
    # A window in which linearized steps take the model's place: it was loaded, and not used.
    (True, {"gradient_steps_end": 0, "r_switch": 0.5, "r_step": 0.5},
     switch(Gradient(1, WHITENED), Linearized(), at=0.5), {}),
    (True, {"gradient_steps_start": 0, "gradient_steps_end": 1, "r_switch": 0.7, "r_model": 0.0,
            "r_step": 0.5},
     switch(Amortized(UNBOUND, 0),
            switch(Linearized(), Amortized(Linearized(), 1, WHITENED, None), at=0.3), at=0.5), {}),
]  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "warm", write_prior(folder / "prior"))
    return folder


@pytest.mark.parametrize(("amortized", "changes", "guidance", "options"), OLD)
def test_a_manifest_of_version_0_1_is_replayed(
    models: Path,
    tmp_path: Path,
    amortized: bool,
    changes: dict[str, object],
    guidance: Guidance,
    options: dict[str, object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A fresh restoration with settings of today, its manifest rewritten in the old form by hand."""
    settings = Settings(MGDM(UNBOUND, num_steps=8, guidance=guidance, **options))
    places = str(models / "prior"), str(models / "warm") if amortized else None
    job = RestorationConfig(*places, MeasurementSpec("sr4", 0.1), samples=2, seed=5, settings=settings)
    (tmp_path / "out").mkdir()
    FileRestorer(job).restore(save(tmp_path / "photo.png", picture(2, 2)), tmp_path / "out")
    file = tmp_path / "out" / "photo.json"
    about = json.loads(file.read_text())
    assert about["settings"] == settings.to_dict()
    assert (about["model"] is not None) == amortized
    for old, code, said in (
        (FLAT | changes, 0, "identical: the 2 sample(s) of photo.png"),
        ({"num_steps": 8} | changes, 0, "identical"),  # what is left out had a default
        (FLAT | changes | {"num_steps": 9}, 1, "different: the samples are not those of"),
    ):
        file.write_text(json.dumps(about | {"settings": old}))
        assert replay(tmp_path) == code
        assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_steps": 5, "speed": 2}, "there is no setting speed"),
        ({"num_steps": 5, "minimizer": "newton"}, "minimizer must be one of adam, whitened"),
        ({"sampler": "mgdm", "num_steps": 5}, "sampler must be one of MGDM"),
    ],
)
def test_settings_of_no_version_are_refused(
    restored: Path, settings: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = restored / "out" / "photo.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"settings": settings}))
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
    save(restored / "out" / "photo.json", picture(8, 8), format="PNG")  # the picture in place of its manifest
    assert replay(restored) == 1
    said = capsys.readouterr().err
    assert "is no JSON file; give the one that lavps restore wrote" in said
    assert len(said.splitlines()) == 1


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
