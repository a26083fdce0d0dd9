from __future__ import annotations

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
