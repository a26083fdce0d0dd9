"""Faults of a bulk run: bad names, a full disk, signals, other settings, items that end the process."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from lavps.apps.bulk import stores
from lavps.apps.bulk.engine import storage_error
from lavps.cli import main
from support.bulk_files import contents, fill
from support.restoring import picture, save, write_prior

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def prior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prior(tmp_path_factory.mktemp("models") / "prior")


def words_of(prior: Path, source: Path, out: Path, *words: object) -> list[str]:
    task = [] if "--task" in words else ["--task", "denoise"]
    task += [] if "--noise" in words else ["--noise", "0.05"]
    options = ["--prior", prior, "--device", "cpu", "--workers", "0", *task, *words]
    return ["restore-bulk", str(source), str(out), *map(str, options)]


def bulk(prior: Path, source: Path, out: Path, *words: object) -> int:
    try:
        main(words_of(prior, source, out, *words))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def failures(out: Path) -> dict[str, str]:
    rows = parquet.read_table(out / "manifest").to_pylist()
    return {row["name"]: row["reason"] for row in rows if row["status"] == "failed"}


@pytest.mark.parametrize("form", ["files", "members"])
def test_a_name_that_cannot_be_written_fails_its_own_item(prior: Path, tmp_path: Path, form: str) -> None:
    long, source = "x" * 250 + ".png", tmp_path / "in"
    source.mkdir()
    for name in ("a.png", long, "b.png"):
        save(source / name, picture(8, 8))
    if form == "members":
        with tarfile.open(tmp_path / "in.tar", "w") as archive:
            for name in ("a.png", long, "b.png"):
                archive.add(source / name, name if name != long else "y" * 300 + ".png")
        source, long = tmp_path / "in.tar", "y" * 300 + ".png"
    assert bulk(prior, source, tmp_path / "out", "--format", "files") == 3
    failed = failures(tmp_path / "out")
    assert set(failed) == {long}
    assert "cannot be written: File name too long" in failed[long]
    assert len(contents(tmp_path / "out")) == 2


def test_a_full_disk_is_one_line_and_the_run_resumes(
    prior: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fill(tmp_path / "in", 20)
    assert bulk(prior, source, tmp_path / "whole", "--batch-size", 2) == 3
    capsys.readouterr()
    left, written = [9], stores.write_atomically

    def write(path: str, content: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as a write fails: without a name
        written(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(stores, "write_atomically", write)
        assert bulk(prior, source, tmp_path / "out", "--batch-size", 2) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "space" in line]
    assert line.startswith(f"lavps restore-bulk: No space left on device: {tmp_path / 'out'}")
    assert bulk(prior, source, tmp_path / "out", "--batch-size", 2) == 3
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_the_error_of_a_file_is_found_within_those_of_ray() -> None:
    class WrappedError(Exception):
        cause: BaseException | None = None

    inner, outer, other = WrappedError(), WrappedError(), WrappedError()
    inner.__cause__ = OSError(errno.ENOSPC, "No space left on device", "/out/a.png")
    outer.cause = inner
    found = storage_error(outer)
    assert found is not None
    assert (found.errno, found.filename) == (errno.ENOSPC, "/out/a.png")
    assert storage_error(other) is None


def test_sigterm_is_an_interrupt(prior: Path, tmp_path: Path) -> None:
    source = fill(tmp_path / "in", 60)
    words = words_of(prior, source, tmp_path / "out", "--quality", "best", "--batch-size", "2")
    process = subprocess.Popen([sys.executable, "-m", "lavps.cli", *words], stderr=subprocess.PIPE)
    end = time.monotonic() + 300
    while not list((tmp_path / "out").rglob("*-1.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted: run the same command to continue" in errors
    assert b"Traceback" not in errors


def test_other_settings_are_refused_unless_they_overwrite(
    prior: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    save(tmp_path / "in" / "a.png", picture(8, 8))
    out = tmp_path / "out"
    assert bulk(prior, tmp_path / "in", out) == 0
    first = contents(out)
    assert bulk(prior, tmp_path / "in", out, "--seed", 1) == 1
    error = capsys.readouterr().err
    assert "other settings (seed)" in error
    assert "--overwrite" in error
    assert contents(out) == first
    assert bulk(prior, tmp_path / "in", out, "--batch-size", 3) == 0  # no part of the result
    assert bulk(prior, tmp_path / "in", out, "--seed", 1, "--overwrite") == 0
    assert contents(out) != first
    assert bulk(prior, tmp_path / "in", out, "--seed", 1) == 0


def test_an_item_that_ends_the_process_is_reported_without_ray(prior: Path, tmp_path: Path) -> None:
    source, script = tmp_path / "in", tmp_path / "camera.py"
    source.mkdir()
    for number in range(4):
        save(source / f"{number}.png", picture(8, 8, seed=number))
    save(source / "deadly.png", 0 * picture(8, 8))
    script.write_text(
        "import os\n"
        "from lavps.restoration import spec\n"
        "measured = spec.MeasurementSpec._problem\n"
        "def problem(self, y, *others):\n"
        "    if float(y.max()) == -1:\n"
        "        os._exit(139)\n"
        "    return measured(self, y, *others)\n"
        "spec.MeasurementSpec._problem = problem\n"
        "def camera(x):\n"
        "    return x\n"
    )
    words = words_of(prior, source, tmp_path / "out", "--task", f"{script}:camera")
    run = subprocess.run(
        [sys.executable, "-m", "lavps.cli", *words], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 3, run.stderr
    assert set(failures(tmp_path / "out")) == {"deadly.png"}
    assert "deadly.png: the item ended the process that restored it" in run.stderr
    assert len(contents(tmp_path / "out")) == 4
