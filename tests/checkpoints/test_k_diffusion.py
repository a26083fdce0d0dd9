"""HDiT files of k-diffusion and InvFusion load into our HDiT and denoise as published."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import lavps
from lavps.checkpoints import save_prior
from support.foreign_reference import Weights
from support.hdit_reference import Hdit, hdit
from support.persistent_pickles import sigma_times

CONFIG: dict[str, Any] = {
    "model": {
        "type": "image_transformer_v2",
        "input_channels": 3,
        "self_attns": [
            {"type": "neighborhood", "d_head": 16, "kernel_size": 3},
            {"type": "global", "d_head": 16},
        ],
        "sigma_data": 0.4,
        "sigma_min": 0.01,
        "sigma_max": 160,
    }
}


def images(height: int = 16, width: int = 16) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


def drawn(a: Hdit) -> Weights:
    weights = Weights()
    labels = torch.zeros(2, dtype=torch.long)
    hdit(weights, a, images(), torch.zeros(2), labels)
    return weights


def x0(w: Weights, a: Hdit, x: Tensor, sigma: float, data: float, labels: Tensor | None = None) -> Tensor:
    norm = math.sqrt(sigma**2 + data**2)
    raw = hdit(w, a, x / norm, torch.full((len(x),), math.log(sigma) / 4), labels)
    return (data / norm) ** 2 * x + sigma * data / norm * raw


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm(), float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("form", ["safetensors", "training"])
def test_a_file_of_k_diffusion_says_all_of_itself(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    a = Hdit()
    weights = drawn(a)
    if form == "safetensors":
        path = tmp_path / "model.safetensors"
        save_file(dict(weights), path, metadata={"config": json.dumps(CONFIG)})
    else:
        path = tmp_path / "model.pth"
        other = {name: torch.ones_like(value) for name, value in weights.items()}
        torch.save({"config": CONFIG, "model": other, "model_ema": dict(weights), "step": 9}, path)
    prior = lavps.load_prior(path)
    said = capsys.readouterr().err
    assert "sigma_data 0.4" in said
    assert "attending to 3, all" in said
    assert "assumed" not in said
    sigmas = [0.05, 1.0, 20.0]
    with torch.no_grad():
        for sigma, t in zip(sigmas, sigma_times(prior, sigmas), strict=True):
            x = images() * math.hypot(sigma, 0.4)
            assert_same(prior.denoise(x, t), x0(weights, a, x, sigma, 0.4))


def test_positions_follow_the_image_whatever_its_size(tmp_path: Path) -> None:
    a = Hdit(windows=(7, None))
    weights = drawn(a)
    torch.save(dict(weights), tmp_path / "model.pt")
    prior = lavps.load_prior(tmp_path / "model.pt")
    t = sigma_times(prior, [0.8])[0]
    with torch.no_grad():
        for height, width in [(8, 8), (24, 16), (8, 20)]:
            x = images(height, width)
            assert_same(prior.denoise(x, t), x0(weights, a, x, 0.8, 0.5))


def test_without_a_configuration_the_line_says_what_was_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(dict(drawn(Hdit(windows=(7, None)))), tmp_path / "model.pt")
    lavps.load_prior(tmp_path / "model.pt")
    said = capsys.readouterr().err
    assert "attending to 7, all" in said
    assert "assumed: windows and sigma_data" in said


def test_classes_and_no_class(tmp_path: Path) -> None:
    a = Hdit(windows=(7, None), classes=3)
    weights = drawn(a)
    torch.save(dict(weights), tmp_path / "model.pt")
    for label, row in [(None, 3), (1, 1)]:
        prior = lavps.load_prior(tmp_path / "model.pt", label=label)
        t = sigma_times(prior, [0.8])[0]
        with torch.no_grad():
            assert_same(
                prior.denoise(images(), t), x0(weights, a, images(), 0.8, 0.5, torch.tensor([row, row]))
            )


def test_files_of_invfusion_without_joint_layers(tmp_path: Path) -> None:
    a = Hdit(windows=(7, None), prefix="unet.", layer=".attn")
    weights = drawn(a)
    more = {"logvar_fourier.freqs": torch.zeros(4), "logvar_linear.weight": torch.zeros(1, 4)}
    torch.save({"ema": {**weights, **more}}, tmp_path / "model.pt")
    prior = lavps.load_prior(tmp_path / "model.pt")
    t = sigma_times(prior, [2.0])[0]
    with torch.no_grad():
        assert_same(prior.denoise(images(), t), x0(weights, a, images(), 2.0, 0.5))
    joint = {"unet.mid_level.0.attn.self_attn.jk_proj.weight": torch.zeros(64, 128)}
    torch.save({**weights, **joint}, tmp_path / "joint.pt")
    with pytest.raises(ValueError, match="conditional"):
        lavps.load_prior(tmp_path / "joint.pt")


def test_it_becomes_a_model_folder(tmp_path: Path) -> None:
    torch.save(dict(drawn(Hdit())), tmp_path / "model.pt")
    prior = lavps.load_prior(tmp_path / "model.pt")
    save_prior(tmp_path / "model", prior, (3, 16, 16))
    t = torch.tensor(0.4, dtype=torch.float64)
    with torch.no_grad():
        again = lavps.load_prior(tmp_path / "model").denoise(images(), t)
        torch.testing.assert_close(again, prior.denoise(images(), t), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["shifted-window", "none"])
def test_attention_that_is_not_known_is_refused(tmp_path: Path, kind: str) -> None:
    config = {"model": {**CONFIG["model"], "self_attns": [{"type": kind}, {"type": "global"}]}}
    save_file(dict(drawn(Hdit())), tmp_path / "a.safetensors", metadata={"config": json.dumps(config)})
    with pytest.raises(ValueError, match=kind):
        lavps.load_prior(tmp_path / "a.safetensors")
