"""Start-up of the command: what it imports, beside torch, is little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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


def test_a_restoration_imports_little_beside_torch(tmp_path: Path) -> None:
    prior = write_prior(tmp_path / "prior", front=False)
    file = save(tmp_path / "photo.png", picture(8, 8))
    words = ["restore", str(file), "--task", "denoise", "--noise", "0.1", "--prior", str(prior)]
    words += ["--evaluations", "2", "--device", "cpu", "--output", str(tmp_path / "out")]
    used = modules_after(f"from lavps.cli import main; main({words!r})")
    assert (tmp_path / "out" / "photo.png").exists()
    torch_alone = modules_after("import torch, numpy")
    new = used - torch_alone
    assert sorted({name.split(".")[0] for name in new} & HEAVY) == []
    others = {name for name in new if not name.startswith(("lavps", "torch", "PIL", "tyro"))}
    assert len(others) < 250, sorted(others)
    assert len([name for name in new if name.startswith("torch")]) < 60
