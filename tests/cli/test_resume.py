"""Restorations that were interrupted: the same command continues, and gives the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from lavps.cli import main
from lavps.guidance import Amortized, Gradient, switch
from lavps.restoration import resume
from lavps.samplers import MGDM, UNBOUND, Settings
from lavps.tiling import partial
from support.restoring import picture, save, write_model, write_prior

# The command, with its state saved after every step.
COMMAND = "import sys, lavps.restoration.resume as resume; resume.INTERVAL = 0.0; "
COMMAND += "from lavps.cli import main; main(['restore', *sys.argv[1:]])"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_prior(folder / "prior", front=False)
    write_model(folder / "warm", folder / "prior", front=False)
    return folder


def options(models: Path, output: Path, *more: object) -> list[str]:
    words = ["--prior", models / "prior", "--task", "sr2", "--noise", 0.05, "--device", "cpu", "-o", output]
    return [*map(str, [*words, *more])]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".json"}


def result(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "photo.json").read_text())["result"]
    return {name: value for name, value in values.items() if name != "seconds"}


def restore(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run the command, and return what it prints."""
    capsys.readouterr()
    main(["restore", *words])
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_a_killed_run_goes_on_to_the_same_bytes(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    file, state = save(tmp_path / "photo.png", picture(6, 8)), tmp_path / "out" / ".photo.state"
    words = [str(file), "--samples", "2", "--batch-size", "1", "--evaluations", "30"]
    command = [sys.executable, "-c", COMMAND, *words, *options(models, tmp_path / "out")]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    killed = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    end = time.monotonic() + 120
    while not state.exists() and time.monotonic() < end:
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.002)
    killed.send_signal(signal.Signals[kind])
    said = killed.communicate(timeout=60)
    assert killed.returncode == (-9 if kind == "SIGKILL" else 130), said
    assert not (tmp_path / "out" / "photo.json").exists()
    if kind != "SIGKILL":
        assert "0 of 1 files are restored" in said[1]
        assert "the same command continues" in said[1]
    said = restore(capsys, *words, *options(models, tmp_path / "out"))
    assert "; continues an interrupted run, of which " in said
    said = restore(capsys, *words, *options(models, tmp_path / "whole"))
    assert "continues" not in said
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")  # and no state is left
    assert result(tmp_path / "out") == result(tmp_path / "whole")


class Stop(BaseException):
    """An interruption that no handler expects, as by SIGKILL."""


@pytest.mark.parametrize("at", [2, 5, 6, 9])
@pytest.mark.parametrize("sampler", ["wiener", "gibbs", "warm"])
def test_a_run_goes_on_after_any_step(
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sampler: str,
    at: int,
) -> None:
    file = str(save(tmp_path / "photo.png", picture(8, 8)))
    words = ["--samples", "2", "--batch-size", "1", "--evaluations", "5"]
    if sampler != "wiener":
        guidance = Gradient(1) if sampler == "gibbs" else switch(Gradient(1), Amortized(UNBOUND, 1), at=0.5)
        settings = Settings(MGDM(UNBOUND, num_steps=7, guidance=guidance))
        entry = {"settings": settings.to_dict(), "score": 0.1}
        entry |= {"forwards": 1, "backwards": 1, "model_forwards": 0}
        folder = models / ("prior" if sampler == "gibbs" else "warm")
        (folder / "fronts.json").write_text(json.dumps([entry]))
        words = ["--samples", "2", "--batch-size", "1"]
        words += [] if sampler == "gibbs" else ["--inference-model", str(models / "warm")]
    try:
        main(["restore", file, *words, *options(models, tmp_path / "whole")])
        monkeypatch.setattr(resume, "INTERVAL", 0.0)
        monkeypatch.setattr(resume, "_SHARE", 0.0)
        saved, calls = resume.RunFile.save, []

        def save_and_stop(self: resume.RunFile, state: Any) -> None:
            saved(self, state)
            calls.append(state)
            if len(calls) == at:
                raise Stop

        monkeypatch.setattr(resume.RunFile, "save", save_and_stop)
        with pytest.raises(Stop):
            main(["restore", file, *words, *options(models, tmp_path / "out")])
        capsys.readouterr()
        main(["restore", file, *words, *options(models, tmp_path / "out")])
        assert "continues an interrupted run" in capsys.readouterr().out
    finally:
        (models / "prior" / "fronts.json").unlink(missing_ok=True)
        (models / "warm" / "fronts.json").unlink(missing_ok=True)
    assert len(calls) == 10  # no step is repeated: two samples of five steps
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert result(tmp_path / "out") == result(tmp_path / "whole")


@pytest.mark.parametrize("evaluations", [1, 5])
@pytest.mark.parametrize("at", [2, 17])
def test_a_large_image_goes_on_within_an_evaluation(
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    evaluations: int,
    at: int,
) -> None:
    file = str(save(tmp_path / "photo.png", picture(20, 12)))
    words = [file, "--evaluations", str(evaluations), "--tile-batch", "4"]
    main(["restore", *words, *options(models, tmp_path / "whole")])
    line = capsys.readouterr().out.splitlines()[0]
    windows = int(line.split(" windows")[0].split()[-1])
    with monkeypatch.context() as patch:
        patch.setattr(resume, "INTERVAL", 0.0)
        patch.setattr(partial, "_SHARE", 0.0)
        saved, calls = partial.PartialEvaluation.save, list[Any]()

        def save_and_stop(self: partial.PartialEvaluation, *given: Any) -> None:
            saved(self, *given)
            calls.append(given)
            if len(calls) == min(at, evaluations * windows // 4 - 1):
                raise Stop

        patch.setattr(partial.PartialEvaluation, "save", save_and_stop)
        with pytest.raises(Stop):
            main(["restore", *words, *options(models, tmp_path / "out")])
    capsys.readouterr()
    main(["restore", *words, *options(models, tmp_path / "out")])
    finished = sum(given[3] == windows for given in calls[:-1])
    done = (finished * windows + calls[-1][3]) / (evaluations * windows)
    assert f"continues an interrupted run, of which {done:.0%} is done" in capsys.readouterr().out
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert result(tmp_path / "out") == result(tmp_path / "whole")


@pytest.mark.parametrize("change", ["seed", "input", "damage"])
def test_a_state_of_another_run_is_ignored(
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: str,
) -> None:
    file, state = save(tmp_path / "photo.png", picture(8, 8)), tmp_path / "out" / ".photo.state"
    words = ["restore", str(file), "--evaluations", "4"]
    monkeypatch.setattr(resume, "INTERVAL", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr("lavps.restoration.job.write_atomically", lambda *given: (_ for _ in ()).throw(Stop))
        with pytest.raises(Stop):
            main([*words, *options(models, tmp_path / "out")])
    assert state.exists()
    more = ["--seed", "1"] if change == "seed" else []
    if change == "input":
        save(file, picture(8, 8, seed=1))
    if change == "damage":
        with safe_open(state, framework="pt") as stored:
            key = json.loads(stored.metadata()["run"])["key"]
        windows = partial.PartialEvaluation(state.with_name(f"{state.name}.windows"), key, 0.0)
        windows.save({"x": torch.zeros(1)}, torch.zeros(1), 1, 1)  # of a later step
        state.write_bytes(state.read_bytes()[:-10])
    capsys.readouterr()
    main([*words, *options(models, tmp_path / "out", *more)])
    main([*words, *options(models, tmp_path / "fresh", *more)])
    assert "continues" not in capsys.readouterr().out
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_a_short_run_writes_no_state(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("a state was written")

    monkeypatch.setattr(resume, "atomically", refuse)
    file = save(tmp_path / "photo.png", picture(8, 8))
    main(["restore", str(file), "--evaluations", "4", *options(models, tmp_path / "out")])


# --- a second run into the same folder --------------------------------------------------------------------


def test_a_second_run_restores_what_is_missing(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(save(tmp_path / name, picture(8, 8))) for name in ("a.png", "b.png", "c.png")]
    words = ["--evaluations", "3", *options(models, tmp_path / "out")]
    main(["restore", *files[:2], *words])
    (tmp_path / "out" / "b-comparison.png").unlink()
    before = (tmp_path / "out" / "a.json").stat().st_mtime_ns
    capsys.readouterr()
    main(["restore", *files, *words])
    said = capsys.readouterr().out
    assert "a.png" not in said
    assert "b.png: explains" in said or "b.png: roughly" in said or "b.png: does" in said
    assert "3 of 3 files are restored" in said
    assert said.rstrip().endswith("(1 by an earlier run)")
    assert (tmp_path / "out" / "a.json").stat().st_mtime_ns == before
    assert (tmp_path / "out" / "b-comparison.png").exists()


@pytest.mark.parametrize(
    ("more", "name"),
    [(["--seed", "3"], "seed"), (["--evaluations", "4"], "settings"), (["--noise", "0.1"], "noise")],
)
def test_results_of_other_settings_are_not_replaced(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], name: str
) -> None:
    file = str(save(tmp_path / "photo.png", picture(8, 8)))
    words = ["restore", file, "--evaluations", "3", *options(models, tmp_path / "out")]
    main(words)
    before = contents(tmp_path / "out")
    with pytest.raises(SystemExit) as end:
        main([*words, *more])
    assert end.value.code == 1
    error = capsys.readouterr().err
    assert f"holds results of other settings ({name}): choose another folder, or give --overwrite" in error
    assert contents(tmp_path / "out") == before
    main([*words, *more, "--overwrite"])
    assert contents(tmp_path / "out") != before


def test_a_file_that_is_no_manifest_is_not_replaced(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(save(tmp_path / "photo.png", picture(8, 8)))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "photo.json").write_text("{}")
    with pytest.raises(SystemExit) as end:
        main(["restore", file, "--evaluations", "3", *options(models, tmp_path / "out")])
    assert end.value.code == 1
    assert "is no manifest of lavps restore" in capsys.readouterr().err
    assert (tmp_path / "out" / "photo.json").read_text() == "{}"
