"""The part of the MRI tutorial that needs deepinv runs, and agrees."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

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
