"""The page about migration runs with deepinv."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepinv")


def test_the_block_of_the_migration_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    page = Path("docs", "howto", "migrate.md").read_text()
    names: dict[str, Any] = {}
    exec(compile(re.findall(r"```py\n(.*?)```", page, re.S)[0], "migrate.md", "exec"), names)
    assert names["samples"].shape == (1, 4, 3, 64, 64)
    assert names["posterior"].chi_square.mean() < 3
