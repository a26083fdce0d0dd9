"""Every row of the security page's table names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "security.md"


def test_every_attack_and_fault_has_its_test() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| attack or fault | what happens | test |")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert rows
    for row in rows:
        assert row.count("|") == 4, row
        found = re.search(r"\| `(tests/\S+\.py)::(test_\w+)` \|$", row)
        assert found, row
        assert f"def {found[2]}(" in (ROOT / found[1]).read_text(encoding="utf-8"), row
