"""The page about migration runs with deepinv."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepinv")


def test_the_blocks_of_the_migration_page_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    page = Path("docs", "howto", "migrate.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"```py\n(.*?)```", page, re.S):
        exec(compile(block, "migrate.md", "exec"), names)
    assert names["samples"].shape == (1, 4, 3, 64, 64)
    assert names["posterior"].chi_square.mean() < 3
    error = [(names[name] - names["x"]).square().mean() for name in ("restored", "y")]
    assert error[0] < error[1]  # half of the pixels of y are missing
