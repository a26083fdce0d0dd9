"""Model files that claim more than they hold are refused by their name, before anything is allocated."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import lavps
from lavps.checkpoints.folder import read_config
from lavps.checkpoints.reading import read_checkpoint
from lavps.checkpoints.safe_pickle import Instance, read_pickle
from support.restoring import write_prior


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_prior(tmp_path / "model")


def changed(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def network_of(folder: Path) -> dict[str, Any]:
    network: dict[str, Any] = json.loads((folder / "config.json").read_text())["network"]
    return network


def refusal(path: Path, megabytes: int = 2000) -> str:
    """The error of loading a prior, in a process with little more memory than it needs for a small one."""
    small = write_prior(path.parent / "small")
    script = f"""
import resource, sys, lavps
lavps.load_prior(sys.argv[2])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {megabytes} * 2**20, resource.RLIM_INFINITY))
try:
    lavps.load_prior(sys.argv[1])
except ValueError as error:
    print(error)
"""
    words = [sys.executable, "-c", script, str(path), str(small)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"widths": [60_000]}, "describes a network of"),
        ({"widths": [10**9]}, "widths is 1000000000, more than"),
        ({"depth": 1_000_000}, "depth is 1000000, more than"),
        ({"widths": [16] * 1000}, "widths has 1000 entries"),
        ({"widths": "wide"}, "describes no network"),
        ({"condition_width": 60_000}, "describes a network of"),
        ({"colour": "red"}, "describes no network"),
    ],
)
def test_a_network_larger_than_its_weights_is_not_built(
    folder: Path, values: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(folder, network=network_of(folder) | values)
    monkeypatch.setattr("lavps.checkpoints.folder.build_network", None)  # reached only by networks that fit
    with pytest.raises(ValueError, match=reason) as error:
        lavps.load_prior(folder)
    assert str(folder / "config.json") in str(error.value)


@pytest.mark.parametrize(
    "shape", [[], [3, 8, -8], [3, 8, 8.5], ["3", 8, 8], [3, 8, 10**9], [3, True, 8], [1] * 9, "388", None]
)
def test_an_invalid_image_shape_is_refused(folder: Path, shape: Any) -> None:
    changed(folder, image_shape=shape)
    with pytest.raises(ValueError, match=r"config\.json"):
        read_config(folder)


@pytest.mark.parametrize("text", ["[]", "null", "{", "[" * 100_000, '{"format": 1, "schedule": 3}'])
def test_a_configuration_that_is_none_is_refused_by_its_name(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        read_config(folder)


def test_the_hash_of_the_weights_is_computed(folder: Path) -> None:
    changed(folder, weights_hash="0" * 64)
    with pytest.raises(ValueError, match=r"model\.safetensors has the weights_hash"):
        lavps.load_prior(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_not_read(folder: Path, name: str, kind: str) -> None:
    (folder / name).unlink()
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero")
    with pytest.raises(
        (ValueError, FileNotFoundError), match=name if name == "model.safetensors" else "model"
    ):
        lavps.load_prior(folder)
    with pytest.raises(ValueError, match="is no regular file"):
        read_checkpoint(folder / name)


def rebuilt(storage: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> Any:
    class Expanded:
        def __reduce__(self) -> Any:
            flat = storage.untyped_storage()
            typed = torch.storage.TypedStorage(wrap_storage=flat, dtype=storage.dtype, _internal=True)
            return torch._utils._rebuild_tensor_v2, (typed, 0, size, stride, False, {})

    return Expanded()


@pytest.mark.parametrize("form", ["pickle", "torch", "half"])
def test_a_tensor_larger_than_its_data_is_refused(tmp_path: Path, form: str) -> None:
    path, size = tmp_path / "model.pt", (50_000, 50_000)
    one = torch.zeros(1, dtype=torch.float16 if form == "half" else torch.float32)
    if form == "pickle":
        path.write_bytes(pickle.dumps({"time_embed.0.weight": rebuilt(one, size, (0, 0))}))
    else:
        torch.save({"time_embed.0.weight": one.expand(size)}, path)
    assert path.stat().st_size < 4096
    reason = refusal(path)
    assert "model.pt is refused" in reason
    assert "larger than its data" in reason


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    torch.save({"time_embed.0.weight": torch.zeros(1000, 1000)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "model.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for member in plain.infolist():
            packed.writestr(member.filename, plain.read(member))
    with pytest.raises(ValueError, match=r"model\.pt cannot be read.*compressed"):
        read_checkpoint(tmp_path / "model.pt")


def test_nested_pickles_end(tmp_path: Path) -> None:
    path = tmp_path / "model.pkl"
    value: Any = ["end"]
    for _ in range(60):  # 2^60 paths
        value = [value, value]
    path.write_bytes(pickle.dumps({"weights": value}))
    with pytest.raises(ValueError, match=r"model\.pkl holds no weights"):
        read_checkpoint(path)
    path.write_bytes(b"\x80\x04" + b"(" * 10 + b"l" + b"]" * 100_000 + b"a" * 99_999 + b".")
    with pytest.raises(ValueError, match=r"model\.pkl is refused"):
        read_checkpoint(path)
    path.write_bytes(b"\x80\x04Nr\xff\xff\xff\x7f.")  # an object of number 2^31 - 1
    with pytest.raises(pickle.UnpicklingError, match="number 2147483647"):
        read_pickle(path)


def test_modules_that_hold_each_other_many_times_end() -> None:
    module = Instance("Linear", {"_parameters": {"weight": torch.zeros(1)}})
    for _ in range(40):
        module = Instance("Block", {"_modules": {"a": module, "b": module}})
    with pytest.raises(pickle.UnpicklingError, match="modules"):
        module.tensors()
