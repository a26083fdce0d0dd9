"""Files of guided-diffusion load from their tensors alone and denoise as the published network does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import lavps
from lavps.checkpoints.adm import Assumed, _image_shape, load_adm
from support.foreign_reference import Adm, Weights, adm

INDICES = (0, 17, 500, 999)
CASES = {
    "default": Adm(),
    "no learned variance": Adm(learned=False),
    "attention twice, one channel": Adm(attention=(1, 2), colours=1),
    "no attention levels, two blocks": Adm(attention=(), blocks=2),
    "shift only": Adm(scale_shift=False),
    "convolutions": Adm(updown=False, mult=(1, 2, 2), attention=(2, 4)),
    "three levels": Adm(mult=(1, 1, 3), blocks=2, attention=(4,)),
    "heads of 64": Adm(channels=64, mult=(1, 2), heads=None),
    "one level": Adm(mult=(1,), attention=(1,)),
    "half": Adm(channels=64, mult=(0.5, 1.5), attention=(2,)),
}


def images(colours: int = 3) -> Tensor:
    return torch.randn(2, colours, 8, 8, generator=torch.Generator().manual_seed(1))


def written(path: Path, a: Adm) -> Weights:
    """A checkpoint of this architecture, random throughout."""
    weights = Weights()
    adm(weights, a, images(a.colours), torch.zeros(2), torch.zeros(2, dtype=torch.long))
    torch.save(dict(weights), path)
    return weights


def expected(weights: Weights, a: Adm, x: Tensor, index: int, y: Tensor | None = None) -> Tensor:
    """x_0 by DDPM's formula on its linear chain."""
    alpha_bar = (1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)).cumprod(0)[index]
    eps = adm(weights, a, x, torch.tensor([index, index]), y)[:, : a.colours]
    return (x - (1 - alpha_bar).sqrt().float() * eps) / alpha_bar.sqrt().float()


def at(index: int) -> Tensor:
    return torch.tensor((index + 1) / 1000, dtype=torch.float64)


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm(), float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("name", CASES)
def test_the_architecture_is_read_off_the_tensors(tmp_path: Path, name: str) -> None:
    a = CASES[name]
    weights, x = written(tmp_path / "model.pt", a), images(a.colours)
    assumed = Assumed(heads=4) if a.heads == 4 else Assumed()
    by_convention = lavps.load_prior(tmp_path / "model.pt")
    told = load_adm(tmp_path / "model.pt", assumed=assumed).prior
    with torch.no_grad():
        for index in INDICES:
            theirs = expected(weights, a, x, index)
            assert_same(told.denoise(x, at(index)), theirs)
            assert_same(by_convention.denoise(x, at(index)), theirs)


def test_the_other_order_of_rows_can_be_said(tmp_path: Path) -> None:
    a = Adm(new_order=True)
    weights, x = written(tmp_path / "model.pt", a), images()
    assumed = Assumed(heads=4, new_order=True)
    with torch.no_grad():
        theirs = expected(weights, a, x, 300)
        assert_same(load_adm(tmp_path / "model.pt", assumed=assumed).prior.denoise(x, at(300)), theirs)
        wrong = load_adm(tmp_path / "model.pt", assumed=replace(assumed, new_order=False)).prior
        assert (wrong.denoise(x, at(300)) - theirs).norm() > 1e-3 * theirs.norm()


def test_published_shapes_bring_their_own_conventions() -> None:
    from lavps.nn.adm_unet import ResidualUNetConfig

    def config(channels: int, mult: tuple[float, ...], blocks: int) -> ResidualUNetConfig:
        levels = len(mult)
        widths = tuple(int(m * channels) for m in mult)
        attends = tuple(level > levels - 4 for level in range(levels))
        return ResidualUNetConfig(
            3, 6, widths[0], widths, (blocks,) * levels, attends, channels, 4 * channels
        )

    imagenet64 = Assumed.for_network(config(192, (1, 2, 3, 4), 3))
    assert imagenet64.new_order
    assert not isinstance(imagenet64.schedule, lavps.VPLinear)
    assert Assumed.for_network(config(256, (1, 1, 2, 3, 4), 2)).heads == 4
    for channels, mult, blocks in [(256, (1, 1, 2, 2, 4, 4), 2), (128, (1, 1, 2, 2, 4, 4), 1)]:
        usual = Assumed.for_network(config(channels, mult, blocks))
        assert (usual.heads, usual.head_channels, usual.new_order) == (None, 64, False)
        assert usual.schedule == lavps.VPLinear()
    for mult, side in (
        ((1, 2, 3, 4), 64),
        ((1, 1, 2, 3, 4), 128),
        ((1, 1, 2, 2, 4, 4), 256),
        ((0.5, 1, 1, 2, 2, 4, 4), 512),
    ):
        assert _image_shape(config(128, mult, 2)) == (3, side, side)
    assert _image_shape(config(128, (1, 5), 2)) is None


def test_classes_are_chosen_by_label(tmp_path: Path) -> None:
    a = Adm(classes=5)
    weights, x = written(tmp_path / "model.pt", a), images()
    with pytest.raises(ValueError, match=r"label=0\.\.4"):
        lavps.load_prior(tmp_path / "model.pt")
    prior = lavps.load_prior(tmp_path / "model.pt", label=2)
    with torch.no_grad():
        assert_same(prior.denoise(x, at(40)), expected(weights, a, x, 40, torch.tensor([2, 2])))


@pytest.mark.parametrize("wrapping", ["ema", "state_dict", "module", "half", "safetensors"])
def test_wrapped_weights_are_found(tmp_path: Path, wrapping: str, capsys: pytest.CaptureFixture[str]) -> None:
    a = Adm()
    path = tmp_path / "model.pt"
    weights, x = written(path, a), images()
    plain = dict(weights)
    other = {name: torch.zeros_like(value) for name, value in plain.items()}
    if wrapping == "safetensors":
        path = tmp_path / "model.safetensors"
        save_file(plain, path)
    else:
        torch.save(
            {
                "ema": {"model": other, "ema": plain, "step": 3},
                "state_dict": {"state_dict": plain, "epoch": 1},
                "module": {f"module.{name}": value for name, value in plain.items()},
                "half": {name: value.half() for name, value in plain.items()},
            }[wrapping],
            path,
        )
    prior = lavps.load_prior(path)
    assert ("averaged weights" in capsys.readouterr().err) == (wrapping == "ema")
    with torch.no_grad():
        theirs, ours = expected(weights, a, x, 100), prior.denoise(x, at(100))
    assert (ours - theirs).norm() <= (1e-2 if wrapping == "half" else 1e-5) * theirs.norm()


def test_the_line_names_what_was_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "model.pt", Adm())
    lavps.load_prior(tmp_path / "model.pt")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    for word in (
        "guided-diffusion",
        "32, 96 channels",
        "learned variance",
        "assumed: 4 heads",
        "linear chain",
    ):
        assert word in said[0]


def test_incomplete_weights_are_named(tmp_path: Path) -> None:
    weights = dict(written(tmp_path / "model.pt", Adm()))
    del weights["input_blocks.1.0.out_layers.3.weight"]
    torch.save(weights, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"input_blocks\.1\.0\.out_layers\.3\.weight"):
        lavps.load_prior(tmp_path / "model.pt")
    weights = dict(written(tmp_path / "model.pt", Adm()))
    weights["surprise.weight"] = torch.zeros(3)
    torch.save(weights, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"surprise\.weight, which is not used"):
        lavps.load_prior(tmp_path / "model.pt")


def test_a_super_resolution_network_is_no_prior(tmp_path: Path) -> None:
    a = Adm()
    weights = Weights()
    adm(weights, a, torch.randn(1, 6, 8, 8), torch.zeros(1))
    torch.save(dict(weights), tmp_path / "model.pt")
    with pytest.raises(ValueError, match="no prior"):
        lavps.load_prior(tmp_path / "model.pt")
