"""The part of the MRI tutorial that needs deepinv runs, and agrees."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

pytest.importorskip("deepinv")


def test_the_mri_tutorial_runs_with_deepinv(capsys: pytest.CaptureFixture[str]) -> None:
    mpl.use("Agg")
    script = Path(__file__).parents[2] / "docs" / "tutorials" / "plot_6_mri.py"
    found = runpy.run_path(str(script))
    printed = capsys.readouterr().out
    difference = re.search(r"their operator and ours: (\S+)", printed)
    assert difference is not None
    assert float(difference[1]) < 1e-5
    assert (found["posterior"].mean[0, 0] - found["truth"][0, 0]).abs().mean() < 0.1


def test_the_block_of_the_migration_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    page = Path("docs", "howto", "migrate.md").read_text()
    names: dict[str, Any] = {}
    exec(compile(re.findall(r"```py\n(.*?)```", page, re.S)[0], "migrate.md", "exec"), names)
    assert names["samples"].shape == (1, 4, 3, 64, 64)
    assert names["posterior"].chi_square.mean() < 3
