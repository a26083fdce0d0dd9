"""The installed zoo: a wheel of data, models found by name without network, one line when there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
import zipfile
import zlib
from pathlib import Path

import pytest

import lavps
from lavps.checkpoints import local_copy, zoo_model, zoo_names
from lavps.checkpoints.folder import read_config
from lavps.cli import main
from support.restoring import picture, save, write_prior

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "zoo"
DATA = {"config.json", "model.safetensors", "README.md", "samples.png", "fronts.json"}
OFFLINE = """
import socket, sys
def refuse(*_): raise AssertionError("the network was used")
socket.socket.connect = socket.getaddrinfo = refuse
import lavps
from lavps.checkpoints import zoo_names
prior = lavps.load_prior("tiny")
print(zoo_names(), prior.image_shape, "huggingface_hub" in sys.modules)
"""


def pip(*words: object) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    command = [sys.executable, "-m", "pip", *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def build(source: Path, folder: Path) -> Path:
    pytest.importorskip("hatchling", reason="the builder, part of the extra dev")
    pip("wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation", source, "-w", folder)
    [wheel] = folder.glob("lavps_zoo-*.whl")
    return wheel


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package lavps_zoo with a prior called photos64, found by import; another folder to be in."""
    package = tmp_path / "site" / "lavps_zoo"
    write_prior(package / "photos64")
    (package / "__init__.py").write_text('"""Models."""')
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "lavps_zoo", raising=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return package


@pytest.fixture
def no_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lavps.checkpoints.zoo.find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)


# --- the wheel --------------------------------------------------------------------------------------------


def test_a_wheel_of_models_installs_and_is_found_without_network(tmp_path: Path) -> None:
    source = tmp_path / "zoo"
    source.mkdir()
    for name in ("pyproject.toml", "LICENSE", "README.md", "__init__.py"):
        shutil.copy(ZOO / name, source / name)
    write_prior(source / "tiny")
    (source / "tiny" / "notes.txt").write_text("not for the wheel")
    wheel = build(source, tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert names == {"lavps_zoo/__init__.py", "lavps_zoo/README.md"} | {
        f"lavps_zoo/tiny/{name}" for name in ("config.json", "model.safetensors", "README.md", "fronts.json")
    }
    pip("install", "-q", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel)
    paths = os.pathsep.join([str(ROOT / "src"), str(tmp_path / "site")])
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE],
        cwd=tmp_path / "wheel",
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['tiny'] (3, 8, 8) False"


def test_the_zoo_fits_into_a_wheel_and_every_model_has_its_card() -> None:
    files = [file for file in ZOO.glob("*/*") if file.name in DATA]
    assert sum(len(zlib.compress(file.read_bytes(), 1)) for file in files) < 95_000_000  # a wheel is smaller
    models = {file.parent for file in files}
    assert {"photos64", "synthfaces64"} <= {folder.name for folder in models}
    assert all((folder / "README.md").is_file() and (folder / "config.json").is_file() for folder in models)
    assert "research use only" in (ZOO / "LICENSE").read_text()


@pytest.mark.slow
def test_the_wheel_of_the_whole_zoo_is_small_enough_and_complete(tmp_path: Path) -> None:
    wheel = build(ZOO, tmp_path)
    assert wheel.stat().st_size < 95_000_000
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    models = [folder.name for folder in ZOO.iterdir() if (folder / "config.json").is_file()]
    assert {f"lavps_zoo/{name}/model.safetensors" for name in models} <= names


# --- the lookup -------------------------------------------------------------------------------------------


def test_a_name_is_a_folder_then_a_model_of_the_zoo(installed: Path) -> None:
    assert (zoo_names(), zoo_model("photos64")) == (["photos64"], installed / "photos64")
    assert local_copy("photos64") == installed / "photos64"
    assert lavps.load_prior("photos64").image_shape == read_config("photos64").image_shape
    write_prior(Path("photos64"))
    assert local_copy("photos64") == Path("photos64")
    for name in ("..", ".", "", "photos64/..", "site", "nothing"):
        assert zoo_model(name) is None


def test_the_command_describes_a_model_by_its_name(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["info", "photos64"])
    assert read_config(installed / "photos64").sha256 in capsys.readouterr().out


@pytest.mark.usefixtures("no_zoo")
def test_nothing_found_is_one_line_and_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # an import would raise
    assert zoo_names() == []
    with pytest.raises(
        FileNotFoundError,
        match=r"^synthfaces64 is no file, .*no models are installed by name: pip install ./zoo",
    ):
        lavps.load_prior("synthfaces64")


class HubError(Exception):
    """What an HTTP library raises: neither an OSError nor a ValueError."""


def fake_hub(monkeypatch: pytest.MonkeyPatch, cached: Path | None) -> list[str]:
    """A hub that cannot be reached, perhaps with an earlier download; the requests that it gets."""
    requests: list[str] = []

    class HfApi:
        def model_info(self, repository: str, timeout: float) -> None:
            requests.append(repository)
            raise HubError("[Errno -2] Name or service not known\nand more lines\nof advice")

    def snapshot_download(repository: str, local_files_only: bool = False, **_: object) -> str:
        if local_files_only and cached is not None:
            return str(cached)
        raise HubError("Cannot reach the Hub\nsecond line")

    hub = types.ModuleType("huggingface_hub")
    hub.HfApi, hub.snapshot_download = HfApi, snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    return requests


def test_a_hub_that_cannot_be_reached_is_one_line(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = fake_hub(monkeypatch, None)
    with pytest.raises(FileNotFoundError) as caught:
        lavps.load_prior("zoo/synthfaces64")
    assert str(caught.value) == (
        "zoo/synthfaces64 is no local file or folder, and the Hub did not provide it (HubError: [Errno -2] "
        "Name or service not known); installed models are photos64"
    )
    assert caught.value.__suppress_context__  # no traceback of the HTTP library
    Path("zoo/synthfaces65").mkdir(parents=True)
    with pytest.raises(
        FileNotFoundError, match=r"file or folder \(did you mean zoo/synthfaces65\?\), and the Hub"
    ):
        lavps.load_prior("zoo/synthfaces64")
    Path("zoo/synthfaces65").rmdir()
    assert requests.pop() == "zoo/synthfaces64"
    assert requests == ["zoo/synthfaces64"]  # once
    with pytest.raises(FileNotFoundError, match="the Hub did not provide it"):
        lavps.load_inference_model("zoo/synthfaces64-sr4")
    assert requests.pop() == "zoo/synthfaces64-sr4"  # and no download, which would be repeated
    save(Path("a.png"), picture(16, 16))
    with pytest.raises(SystemExit):
        main(["restore", "a.png", "--task", "denoise", "--prior", "zoo/synthfaces64"])
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("lavps restore: zoo/synthfaces64 is no local file or folder")
    with pytest.raises(FileNotFoundError, match="the Hub did not provide it"):
        read_config("zoo/synthfaces64")


def test_an_earlier_download_is_used_without_a_connection(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_hub(monkeypatch, installed / "photos64")
    assert lavps.load_prior("owner/name").image_shape == read_config(installed / "photos64").image_shape


# --- the default prior of the command ---------------------------------------------------------------------


def test_a_file_is_restored_with_photos64_where_it_is_installed(installed: Path) -> None:
    save(Path("a.png"), picture(16, 16))
    options = ["--task", "denoise", "--noise", "0.05", "--quality", "fast", "--device", "cpu"]
    main(["restore", "a.png", *options, "-o", "out.png"])
    assert Path("out.png").is_file()


@pytest.mark.usefixtures("no_zoo")
def test_without_photos64_a_prior_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    save(Path("a.png"), picture(16, 16))
    with pytest.raises(SystemExit) as end:
        main(["restore", "a.png", "--task", "denoise"])
    assert end.value.code == 1
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line == (
        "lavps restore: the default prior photos64 is neither a folder here nor a model of the installed "
        "zoo: pip install ./zoo in a checkout, or name a prior with --prior"
    )
