from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from lavps.devices import resolve_device

BACKENDS = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}


@pytest.mark.parametrize(
    ("available", "chosen"),
    [
        ({"cuda", "mps", "xpu"}, "cuda"),
        ({"mps", "xpu"}, "mps"),
        ({"xpu"}, "xpu"),
        (set(), "cpu"),
    ],
)
def test_auto_is_the_first_available_device(
    available: set[str], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, backend in BACKENDS.items():
        monkeypatch.setattr(backend, "is_available", lambda name=name: name in available)
    assert resolve_device() == resolve_device("auto") == chosen


@pytest.mark.parametrize("name", ["cpu", "cuda:1", "meta"])
def test_a_named_device_is_returned_unchanged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device(name) == name


@pytest.mark.parametrize("name", BACKENDS)
def test_a_device_that_is_not_there_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKENDS[name], "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"device {name}:0 is not available: torch .* finds .*cpu"):
        resolve_device(f"{name}:0")


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
@pytest.mark.parametrize("keep", [True, False])
def test_freed_memory_is_used_again_without_page_faults(keep: bool) -> None:
    program = f"""
import resource, torch, lavps.devices
if {keep}:
    lavps.devices.keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""
    found = int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    assert (found < 100) == keep
