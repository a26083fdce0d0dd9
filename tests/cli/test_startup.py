"""Start-up of the command: what it imports, beside torch, is little."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.restoring import picture, save, write_prior

# Libraries of extras and of other commands, which take up to seconds to import.
HEAVY = {
    "accelerate", "diffusers", "fastapi", "fsspec", "gradio", "httpx", "huggingface_hub", "jinja2",
    "matplotlib", "networkx", "optuna", "pandas", "prometheus_client", "pyarrow", "pydantic", "ray",
    "requests", "scipy", "starlette", "sympy", "tensorboard", "tifffile", "torchvision", "transformers",
    "uvicorn", "yaml",
}  # fmt: skip
MODULES = "; import json; print(json.dumps(sorted(sys.modules)))"


def modules_after(code: str) -> set[str]:
    """Modules that a fresh interpreter has imported after this code."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}{MODULES}"],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Words of a restoration by a small prior."""
    prior = write_prior(tmp_path / "prior", front=False)
    file = save(tmp_path / "photo.png", picture(8, 8))
    words = ["restore", str(file), "--task", "denoise", "--noise", "0.1", "--prior", str(prior)]
    return [*words, "--evaluations", "2", "--device", "cpu", "--output", str(tmp_path / "out")]


def test_a_restoration_imports_little_beside_torch(tmp_path: Path, words: list[str]) -> None:
    used = modules_after(f"from lavps.cli import main; main({words!r})")
    assert (tmp_path / "out" / "photo.png").exists()
    torch_alone = modules_after("import torch, numpy")
    new = used - torch_alone
    assert sorted({name.split(".")[0] for name in new} & HEAVY) == []
    others = {name for name in new if not name.startswith(("lavps", "torch", "PIL", "tyro"))}
    assert len(others) < 250, sorted(others)
    assert len([name for name in new if name.startswith("torch")]) < 60


def import_seconds(code: str) -> tuple[float, float]:
    """Seconds of the imports before and after that of colorsys, which nothing here needs."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if re.match(r"import time: +\d", line)]
    names = [line.rsplit("|", 1)[1].strip() for line in lines]
    seconds = [int(line.split(":")[1].split("|")[0]) / 1e6 for line in lines]
    end = names.index("colorsys")
    assert any(name.startswith("lavps") for name in names[end:])
    return sum(seconds[:end]), sum(seconds[end:])


def test_imports_take_little_time_beside_torch(words: list[str]) -> None:
    code = f"import torch, numpy, colorsys; from lavps.cli import main; main({[*words, '--overwrite']!r})"
    runs = [import_seconds(code) for _ in range(3)]  # the clock includes what else the machine does
    assert any(rest <= 0.2 * torch_alone + 1.0 for torch_alone, rest in runs), runs
