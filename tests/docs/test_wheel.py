"""A wheel built from the repository holds the package and nothing else, installs, and works."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMOKE = """
import sys, lavps
from lavps.evaluation import oracle_mixture, oracle_problem, score
assert sys.prefix in lavps.__file__, lavps.__file__
prior = oracle_mixture()
_, problem = oracle_problem(prior, "sr4", observations=1)
posterior = lavps.MGDM(prior, num_steps=20).sample(problem, 32)
distance = score(posterior.samples, problem, lavps.exact_posterior(prior, problem)).sw2
assert distance < 0.3, distance
print("lavps", lavps.__version__, "works")
"""


def run(*command: str | Path, cwd: Path | None = None, **extra: str) -> str:
    """Run a command away from the repository, so that nothing of it is found by accident."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | {"OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"} | extra,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="the builder, part of the extra dev")
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", ROOT, "-w", folder)
    [found] = folder.glob("*.whl")
    return found


def test_it_holds_every_module_and_nothing_else(wheel: Path) -> None:
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "lavps").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {Path(name).suffix for name in expected} <= {".py", ".typed", ".jinja", ".json"}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    about = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - about == expected
    assert {name.split("/", 1)[1] for name in about} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }
    assert wheel.stat().st_size < 2_000_000, "a wheel of code, not of weights"


def environment(folder: Path) -> Path:
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin"


def smoke(bin_folder: Path, away: Path) -> None:
    assert "works" in run(bin_folder / "python", "-c", SMOKE, cwd=away)
    assert "restore" in run(bin_folder / "lavps", "--help", cwd=away)


def test_it_installs_in_a_clean_environment_and_samples(wheel: Path, tmp_path: Path) -> None:
    """The dependencies are those of this environment, lent by path; the package is the wheel's alone."""
    bin_folder = environment(tmp_path / "venv")
    run(bin_folder / "python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel)
    place = run(bin_folder / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(place, "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    smoke(bin_folder, tmp_path)


@pytest.mark.slow
def test_it_installs_with_its_dependencies_from_an_index(wheel: Path, tmp_path: Path) -> None:
    """Nothing lent: what a user's pip does, torch included."""
    bin_folder = environment(tmp_path / "venv")
    run(bin_folder / "python", "-m", "pip", "install", "-q", wheel)
    smoke(bin_folder, tmp_path)
    installed = run(bin_folder / "python", "-m", "pip", "list", "--format=freeze").lower()
    assert not {"scipy", "matplotlib", "accelerate", "torchvision"} & {
        line.split("==")[0] for line in installed.splitlines()
    }, "what is optional stays out"
