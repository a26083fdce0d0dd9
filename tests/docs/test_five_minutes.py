"""The README's quick start, as a new user tries it: its commands, one after another, in a shell."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lavps.io import read_image

ROOT = Path(__file__).parents[1].parent
TRANSCRIPT = (ROOT / "README.md").read_text().split("\n## Quick start\n")[1]
BLOCK = re.search(r"```\n(.*?)```", TRANSCRIPT, re.S)[1]  # type: ignore[index]
COMMANDS = BLOCK.replace("\\\n", " ").splitlines()
RESTORED = [command for command in COMMANDS if command.startswith("lavps restore")]


def run(command: str, folder: Path, environment: dict[str, str]) -> float:
    """Seconds that a command took."""
    start = time.monotonic()
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return time.monotonic() - start


def psnr(file: Path, truth: Path) -> float:
    return float(-10 * torch.log10((read_image(file).pixels - read_image(truth).pixels).square().mean() / 4))


def check(folder: Path) -> None:
    """Pictures, uncertainty and manifests are there, and near the truth that nobody was shown."""
    for name, least in (("small", 27.2), ("hole", 29.5), ("shaken", 30.6)):
        outputs = folder / "restored"
        about = json.loads((outputs / f"{name}.json").read_text())
        assert about["result"]["verdict"].startswith("explains the measurement")
        for end in ("1", "2", "3", "4", "mean", "uncertainty", "comparison"):
            assert (outputs / f"{name}-{end}.png").is_file()
        found = psnr(outputs / f"{name}-mean.png", ROOT / "examples" / "truth" / f"{name}.png")
        assert found > least, (name, found)
    about = json.loads((outputs / "grainy.json").read_text())
    assert about["measurement"]["noise"] == pytest.approx(0.2, rel=0.1)  # estimated
    assert about["result"]["verdict"].startswith("explains the measurement")
    found = psnr(outputs / "grainy.png", ROOT / "examples" / "truth" / "grainy.png")
    assert found > 28.0, found


def test_what_the_examples_are_is_restored(tmp_path: Path) -> None:
    for name in ("examples", "zoo"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    assert len(RESTORED) == 4
    for command in RESTORED:
        run(command, tmp_path, os.environ | {"PATH": path})
    check(tmp_path)


@pytest.mark.slow
def test_from_an_empty_folder_to_restored_files(tmp_path: Path) -> None:
    """All commands, the clone and the installation too; needs a package index."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a checkout")
    folder, path = tmp_path, os.environ["PATH"]
    elsewhere = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for command in COMMANDS:
        seconds = run(command.replace("REPOSITORY", str(ROOT)), folder, elsewhere | {"PATH": path})
        print(f"{seconds:6.1f} s  {command}")
        if command.startswith("git clone"):
            folder = tmp_path / "lavps"
        if "venv" in command:
            path = f"{folder / '.venv' / 'bin'}{os.pathsep}{path}"
    check(folder)
