"""EDM's pickles are read without executing them and denoise as the published networks do."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lavps
from lavps.checkpoints import save_prior
from support.foreign_reference import Edm, Weights, edm
from support.persistent_pickles import precondition, sigma_times, tree, write

CASES = {
    "DDPM++": Edm(),
    "NCSN++": Edm(taps=(1, 3, 3, 1), fourier=True, residual=True),
    "DDPM++, three levels": Edm(mult=(1, 2, 2), blocks=2, attention=(8, 4), augment=9),
    "ADM": Edm(song=False, channels=64, mult=(1, 2), attention=(8,)),
}
SIGMAS = [0.02, 0.7, 5.0, 70.0]


def images() -> Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def written(path: Path, a: Edm, kind: str = "EDMPrecond", **numbers: float) -> Weights:
    weights = Weights()
    edm(weights, a, images(), torch.zeros(2), torch.zeros(2, a.classes))
    model = tree("SongUNet" if a.song else "DhariwalUNet", a.kwargs, weights)
    content = {"ema": precondition(kind, model, a.classes, **numbers), "loss_fn": None, "augment_pipe": None}
    write(path, content)
    return weights


def edm_x0(weights: Weights, a: Edm, x: Tensor, sigma: float, onehot: Tensor | None = None) -> Tensor:
    """The paper's preconditioning with sigma_data = 0.5."""
    c_skip, c_in = 0.25 / (sigma**2 + 0.25), 1 / math.sqrt(sigma**2 + 0.25)
    c_out = 0.5 * sigma * c_in
    c = torch.full((2,), math.log(sigma) / 4)
    return c_skip * x + c_out * edm(weights, a, c_in * x, c, onehot)


def assert_same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    assert (ours - theirs).norm() <= tolerance * theirs.norm(), float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("name", CASES)
def test_a_pickle_denoises_as_published(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    a = CASES[name]
    weights = written(tmp_path / "net.pkl", a, sigma_data=0.5)
    prior = lavps.load_prior(tmp_path / "net.pkl")
    said = capsys.readouterr().err
    assert "SongUNet" in said or not a.song
    assert "averaged weights" in said
    with torch.no_grad():
        for sigma, t in zip(SIGMAS, sigma_times(prior, SIGMAS), strict=True):
            x = images() * math.sqrt(0.25 + sigma**2)
            assert_same(prior.denoise(x, t), edm_x0(weights, a, x, sigma))


@pytest.mark.parametrize("song", [True, False])
def test_classes_become_part_of_the_network(tmp_path: Path, song: bool) -> None:
    a = Edm(song=song, channels=16 if song else 64, classes=4, attention=())
    weights = written(tmp_path / "net.pkl", a, sigma_data=0.5)
    for label in (None, 0, 3):
        onehot = torch.zeros(2, 4)
        if label is not None:
            onehot[:, label] = 1
        prior = lavps.load_prior(tmp_path / "net.pkl", label=label)
        t = sigma_times(prior, [2.0])[0]
        with torch.no_grad():
            assert_same(prior.denoise(2 * images(), t), edm_x0(weights, a, 2 * images(), 2.0, onehot))


def test_the_older_preconditionings(tmp_path: Path) -> None:
    a = Edm()
    weights = written(tmp_path / "ve.pkl", a, "VEPrecond", sigma_min=0.02, sigma_max=100.0)
    prior = lavps.load_prior(tmp_path / "ve.pkl")
    with torch.no_grad():
        for sigma, t in zip(SIGMAS, sigma_times(prior, SIGMAS), strict=True):
            theirs = images() + sigma * edm(weights, a, images(), torch.full((2,), math.log(sigma / 2)))
            assert_same(prior.denoise(images(), t), theirs)
    weights = written(tmp_path / "vp.pkl", a, "VPPrecond", beta_d=19.9, beta_min=0.1, M=1000)
    prior = lavps.load_prior(tmp_path / "vp.pkl")
    with torch.no_grad():
        for sigma, t in zip(SIGMAS, sigma_times(prior, SIGMAS), strict=True):
            time = (math.sqrt(0.01 + 2 * 19.9 * math.log1p(sigma**2)) - 0.1) / 19.9
            x, shrink = images() * (1 + sigma), 1 / math.sqrt(1 + sigma**2)
            theirs = x - sigma * edm(weights, a, shrink * x, torch.full((2,), 999 * time))
            assert_same(prior.denoise(float(prior.schedule.alpha(t)) * x, t), theirs, 2e-5)


def test_a_converted_pickle_is_a_model_folder(tmp_path: Path) -> None:
    written(tmp_path / "net.pkl", Edm(), sigma_data=0.5)
    prior = lavps.load_prior(tmp_path / "net.pkl")
    save_prior(tmp_path / "model", prior, (3, 16, 16))
    again = lavps.load_prior(tmp_path / "model")
    t = torch.tensor(0.4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(again.denoise(images(), t), prior.denoise(images(), t), rtol=0, atol=0)


def test_networks_that_are_not_known_are_named(tmp_path: Path) -> None:
    write(
        tmp_path / "net.pkl", {"ema": precondition("EDMPrecond", tree("NewUNet", {}, {}), 0, sigma_data=0.5)}
    )
    with pytest.raises(ValueError, match=r"lacks model\.map_layer0\.weight"):
        lavps.load_prior(tmp_path / "net.pkl")
