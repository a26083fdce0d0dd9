"""Processes that tests start and look into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def descendants(process: int) -> Iterator[int]:
    """Processes that a process has started, and they in turn."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    waiting = [process]
    while waiting:
        parent = waiting.pop()
        children = [child for child, its in parents.items() if its == parent]
        waiting += children
        yield from children


def titled(process: int, words: str) -> list[int]:
    """Those of them whose command line has these words."""
    return [child for child in descendants(process) if words in _title(child)]


def _title(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:  # it has ended
        return ""
