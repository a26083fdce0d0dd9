"""Processes that tests start and look into."""

from __future__ import annotations

import psutil


def titled(process: int, words: str) -> list[int]:
    """Processes that a process has started, and they in turn, whose command line has these words."""
    return [child.pid for child in psutil.Process(process).children(recursive=True) if words in _title(child)]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return ""
