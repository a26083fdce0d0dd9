"""Running a recipe as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(name: str, *arguments: str | Path) -> str:
    """Run a recipe and return its standard output."""
    done = subprocess.run(
        [sys.executable, "-m", f"recipes.{name}.run", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
