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
def test_a_named_device_is_returned_unchanged(name: str) -> None:
    assert resolve_device(name) == name
