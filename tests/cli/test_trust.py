"""Files from elsewhere execute nothing: a Python file runs only where the user names or trusts it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lavps.cli import main
from support.restoring import picture, save, write_prior

pytest.importorskip("pyarrow")
SCRIPT = """
from pathlib import Path
Path(__file__).with_name("executed").touch()
def negative(x):
    return -x
"""


@pytest.fixture(scope="module")
def prior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prior(tmp_path_factory.mktemp("models") / "prior")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of measurements whose manifest names a Python file in it."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "ops.py").write_text(SCRIPT)
    np.save(folder / "a.npy", np.zeros((3, 8, 8), np.float32))
    entry = {"item": 0, "image_shape": [3, 8, 8], "measurement": "a.npy"}
    about = {"task": f"{folder / 'ops.py'}:negative", "noise": 0.05, "seed": 0, "measurements": [entry]}
    (folder / "manifest.json").write_text(json.dumps(about))
    return folder


def code_of(*words: object) -> int:
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize("command", ["restore", "restore-bulk"])
def test_a_manifest_executes_nothing_unless_it_is_trusted(
    command: str, prior: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = (
        ["--output", data.parent / "out"] if command == "restore" else [data.parent / "out", "--workers", 0]
    )
    words = [command, data, *place, "--prior", prior, "--device", "cpu"]
    assert code_of(*words) == 3
    assert not (data / "executed").exists()
    errors = capsys.readouterr().err
    assert "--trust-manifest" in errors
    assert f"--operator {data / 'ops.py'}:negative" in errors
    assert code_of(*words, "--trust-manifest") == 0
    assert (data / "executed").exists()


def test_a_file_named_on_the_command_line_is_executed(prior: Path, data: Path) -> None:
    words = ["restore", data, "--output", data.parent / "out", "--prior", prior, "--device", "cpu"]
    assert code_of(*words, "--operator", f"{data / 'ops.py'}:negative") == 0
    assert (data / "executed").exists()


@pytest.mark.parametrize("forged", [False, True])
def test_a_replay_executes_nothing_unless_it_is_trusted(
    forged: bool, prior: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo, out = save(data.parent / "photo.png", picture(8, 8)), data.parent / "out"
    words = ["restore", photo, "--output", out, "--prior", prior, "--device", "cpu", "--noise", 0.05]
    assert code_of(*words, "--operator", f"{data / 'ops.py'}:negative") == 0
    (data / "executed").unlink()
    if forged:  # a task without the record of its file
        about = json.loads((out / "photo.json").read_text())
        about["measurement"]["script"] = None
        (out / "photo.json").write_text(json.dumps(about))
    capsys.readouterr()
    assert code_of("replay", out / "photo.json") == 1
    assert "--trust-manifest" in capsys.readouterr().err
    assert not (data / "executed").exists()
    assert code_of("replay", out / "photo.json", "--trust-manifest") == int(forged)
    assert (data / "executed").exists() != forged
