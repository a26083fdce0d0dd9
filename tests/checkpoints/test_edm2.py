"""EDM2's pickles denoise as the published network does, its normalised weights stored once."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lavps
from lavps.checkpoints import save_prior
from support.edm2_reference import Edm2, edm2
from support.foreign_reference import Weights
from support.persistent_pickles import Persistent, sigma_times, tree, write


def images() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def written(path: Path, a: Edm2) -> Weights:
    weights = Weights()
    edm2(weights, a, images(), torch.zeros(2), torch.zeros(2, a.classes))
    outer = Persistent("Precond", {}, label_dim=a.classes, sigma_data=0.5)
    outer.add_module("unet", tree("UNet", a.kwargs, weights))
    logvar = {"freqs": torch.zeros(4), "phases": torch.zeros(4)}
    outer.add_module("logvar_fourier", tree("MPFourier", {}, logvar))
    write(path, {"ema": outer, "encoder": None})
    return weights


def x0(weights: Weights, a: Edm2, x: Tensor, sigma: float, onehot: Tensor | None = None) -> Tensor:
    norm = math.hypot(sigma, 0.5)
    raw = edm2(weights, a, x / norm, torch.full((2,), math.log(sigma) / 4), onehot)
    return (0.5 / norm) ** 2 * x + 0.5 * sigma / norm * raw


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm(), float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("a", [Edm2(), Edm2(mult=(1, 1, 2), attention=(4, 2))], ids=["two", "three levels"])
def test_a_pickle_denoises_as_published(tmp_path: Path, a: Edm2, capsys: pytest.CaptureFixture[str]) -> None:
    weights = written(tmp_path / "net.pkl", a)
    prior = lavps.load_prior(tmp_path / "net.pkl")
    assert "EDM2" in capsys.readouterr().err
    sigmas = [0.05, 1.0, 30.0]
    with torch.no_grad():
        for sigma, t in zip(sigmas, sigma_times(prior, sigmas), strict=True):
            x = images() * math.hypot(sigma, 0.5)
            assert_same(prior.denoise(x, t), x0(weights, a, x, sigma))


def test_classes_become_part_of_the_network_and_of_its_folder(tmp_path: Path) -> None:
    a = Edm2(classes=3)
    weights = written(tmp_path / "net.pkl", a)
    for label in (None, 2):
        onehot = torch.zeros(2, 3)
        if label is not None:
            onehot[:, label] = 1
        prior = lavps.load_prior(tmp_path / "net.pkl", label=label)
        save_prior(tmp_path / f"model{label}", prior, (3, 8, 8))
        again = lavps.load_prior(tmp_path / f"model{label}")
        t = sigma_times(prior, [2.0])[0]
        with torch.no_grad():
            theirs = x0(weights, a, 2 * images(), 2.0, onehot)
            assert_same(prior.denoise(2 * images(), t), theirs)
            assert_same(again.denoise(2 * images(), t), theirs)
