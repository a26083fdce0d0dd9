"""The one-liners of the README's tables."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1].parent / "README.md"


def lines_of(heading: str) -> list[str]:
    """The code in the last column of the table under a heading."""
    section = README.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\|.*\| `([^`]+)` \|$", section, re.M)


CHECKPOINTS, OPERATORS = lines_of("Any checkpoint"), lines_of("Any operator")


def about(lines: list[str], word: str) -> list[str]:
    """The lines in which a word stands."""
    return [line for line in lines if word in line]
