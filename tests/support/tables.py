"""The one-liners of the tables of checkpoints and operators."""

from __future__ import annotations

import re
from pathlib import Path

HOWTO = Path(__file__).parents[1].parent / "docs" / "howto"


def lines_of(page: str, heading: str) -> list[str]:
    """The code in the last column of the table under a heading of a page."""
    section = (HOWTO / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\|.*\| `([^`]+)` \|$", section, re.M)


CHECKPOINTS, OPERATORS = (
    lines_of("checkpoints.md", "Any checkpoint"),
    lines_of("operators.md", "Any operator"),
)


def about(lines: list[str], word: str) -> list[str]:
    """The lines in which a word stands."""
    return [line for line in lines if word in line]
