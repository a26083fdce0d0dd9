"""Bulk restoration on Ray: killed drivers and workers lose nothing and change nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.bulk_files import broken_files, contents, fill, write_sized_prior
from support.processes import titled
from support.restoring import front_entry

pytest.importorskip("ray")
PATIENCE = float(os.environ.get("LAVPS_TEST_PATIENCE", "300"))  # seconds; more beside a busy machine
SLOWED, FEW = [front_entry(100)], [front_entry(5)]


def start(folder: Path, output: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lavps.cli", "restore-bulk", str(folder / "in"), str(folder / output)]
    options = [
        "--prior",
        str(folder / "prior"),
        "--task",
        "denoise",
        "--noise",
        "0.05",
        "--device",
        "cpu",
        *words,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("RAY_ADDRESS", None)
    return subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def wait_for_pictures(folder: Path, count: int, process: subprocess.Popen[str]) -> int:
    end = time.monotonic() + PATIENCE
    while (found := len(list(folder.glob("[0-2]/*.png")))) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "nothing was restored in time"
        time.sleep(0.02)
    return found


def kill_both_ways(folder: Path, files: int, first: int, second: int, batch: str) -> None:
    """Kill the driver in mid-run, then a worker in the next run; compare with an uninterrupted run."""
    words = ["--workers", "2", "--batch-size", batch]
    driver = start(folder, "out", *words)
    wait_for_pictures(folder / "out", first, driver)
    driver.send_signal(signal.SIGKILL)
    driver.communicate(timeout=60)
    done = contents(folder / "out")
    assert first <= len([name for name in done if name.endswith(".png")]) < files - 10
    early = {name: (folder / "out" / name).stat().st_mtime_ns for name in done}

    again = start(folder, "out", *words)
    wait_for_pictures(folder / "out", second, again)
    os.kill(titled(again.pid, "_Restorer")[0], signal.SIGKILL)
    code, out, err = finish(again)
    assert code == 3, err
    assert f"{files - 10} of {files} images are restored" in out
    for name in broken_files():
        assert f"1/{name}: " in err
    restored = contents(folder / "out")
    assert len(restored) == files - 10
    assert not list((folder / "out").rglob("*.partial"))
    # What the killed run had written and recorded was not written again.
    kept = [name for name, written in early.items() if (folder / "out" / name).stat().st_mtime_ns == written]
    assert len(kept) >= len(early) - 2 * int(batch)

    code, _, err = finish(start(folder, "whole", "--workers", "0", "--batch-size", batch))
    assert code == 3, err
    assert contents(folder / "whole") == restored


def manifest(folder: Path) -> list[dict[str, object]]:
    import pyarrow.parquet as parquet

    return parquet.read_table(folder / "manifest").to_pylist()  # type: ignore[no-any-return]


@pytest.mark.slow
def test_a_killed_driver_and_a_killed_worker_change_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "in", 60)
    write_sized_prior(tmp_path / "prior", 8)
    (tmp_path / "prior" / "fronts.json").write_text(json.dumps(SLOWED))
    kill_both_ways(tmp_path, 60, first=8, second=24, batch="4")
    rows = manifest(tmp_path / "out")
    assert len({row["name"] for row in rows}) == len(rows) == 60
    failed = {row["name"]: row["reason"] for row in rows if row["status"] == "failed"}
    assert set(failed) == {f"1/{name}" for name in broken_files()}
    assert all(failed.values())
    assert "misfit" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_a_thousand_files(tmp_path: Path) -> None:
    fill(tmp_path / "in", 1000, size=64)
    write_sized_prior(tmp_path / "prior", 64)
    (tmp_path / "prior" / "fronts.json").write_text(json.dumps(FEW))
    kill_both_ways(tmp_path, 1000, first=200, second=500, batch="16")
