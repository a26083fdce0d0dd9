"""A training that begins with a prior: told nothing yet, the network is that prior."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lavps
from lavps.checkpoints.folder import ModelConfig, read_config, save_model
from lavps.cli import main
from lavps.nn import build_network, build_seeded
from lavps.training.finetune import init_from

UNET: dict[str, Any] = {
    "kind": "unet", "in_channels": 1, "out_channels": 1, "widths": [16, 16], "depth": 1, "attention": [1],
    "head_dim": 16, "condition_width": 16,
}  # fmt: skip
HDIT: dict[str, Any] = {
    "kind": "hdit", "in_channels": 1, "out_channels": 1, "patch": 2, "widths": [16, 16], "depths": [1, 1],
    "attention": [3, None], "head_dim": 16, "mapping_width": 16,
}  # fmt: skip


def written(folder: Path, description: dict[str, Any], prediction: str = "velocity") -> torch.nn.Module:
    """A prior whose every weight counts (a new network's last layer is zero)."""
    network = build_seeded(description, 3)
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.add_(
                0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            )
    save_model(folder, network, ModelConfig("prior", description, lavps.Flow(), (1, 8, 8), prediction))  # type: ignore[arg-type]
    return network.eval()


@pytest.mark.parametrize("description", [UNET, HDIT], ids=["unet", "hdit"])
@pytest.mark.parametrize("more", [0, 2])
def test_inputs_that_the_prior_has_not_count_for_nothing_yet(
    tmp_path: Path, description: dict[str, Any], more: int
) -> None:
    prior = written(tmp_path, description)
    network = build_seeded(description | {"in_channels": 1 + more}, 0).eval()
    init_from(network, tmp_path, lavps.Flow(), "velocity")
    x, t = torch.randn(2, 1 + more, 8, 8), torch.tensor([0.2, 0.7])
    torch.testing.assert_close(network(x, t), prior(x[:, :1], t))
    assert network(x, t).abs().mean() > 1e-3


def test_the_new_inputs_learn(tmp_path: Path) -> None:
    written(tmp_path, UNET)
    network = build_network(UNET | {"in_channels": 2})
    init_from(network, tmp_path, lavps.Flow(), "velocity")
    network(torch.randn(2, 2, 8, 8), torch.tensor([0.2, 0.7])).square().mean().backward()
    assert network.enter.weight.grad[:, 4:].abs().sum() > 0  # type: ignore[union-attr,index]


@pytest.mark.parametrize(
    ("description", "prediction", "message"),
    [
        (UNET | {"widths": [16, 32]}, "velocity", r"another network \(widths .* here"),
        (UNET | {"depth": 2}, "velocity", "another network"),
        (UNET | {"patch": 4}, "velocity", "another network"),
        (UNET | {"in_channels": 0}, "velocity", "in_channels 1, here 0"),
        (UNET, "v", "trained to predict 'velocity' on Flow.*--prediction"),
    ],
)
def test_another_network_or_prediction_is_refused(
    tmp_path: Path, description: dict[str, Any], prediction: str, message: str
) -> None:
    written(tmp_path, UNET)
    with pytest.raises(ValueError, match=message):
        init_from(build_network(description), tmp_path, lavps.Flow(), prediction)


# --- the closest prior of the zoo -------------------------------------------------------------------------


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed zoo: a good and a bad prior of grey images of 8 x 8 pixels, one of another size."""
    folder = tmp_path / "packages" / "lavps_zoo"
    for name, size, seed in (("bad", 8, 3), ("good", 8, 0), ("large", 16, 0)):
        network = build_seeded(UNET, seed)
        if name == "bad":
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter.add_(1.0)
        about = ModelConfig("prior", UNET, lavps.Flow(), (1, size, size), "velocity", "time")
        save_model(folder / name, network, about)
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(folder.parent))
    (tmp_path / "images").mkdir()
    for number, image in enumerate(np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)):
        Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
    return folder


@pytest.mark.parametrize("more", [[], ["--no-init"], ["--network", "unet-mini"], ["--init-from", "bad"]])
def test_few_images_start_from_the_closest_prior(
    zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    words = ["train", "prior", "--data", tmp_path / "images", "--output", tmp_path / "run", "--size", 8]
    words += ["--channels", 1, "--batch-size", 2, "--steps", 1, "--cpu", "--no-tensorboard"]
    if more[:1] == ["--init-from"]:
        (tmp_path / "unet.json").write_text(json.dumps(UNET))
        more = ["--init-from", str(zoo / "bad"), "--network", str(tmp_path / "unet.json")]
    main([*map(str, words), *more])
    said = capsys.readouterr().out
    about = read_config(tmp_path / "run" / "model")
    assert ("starts from good, the closest prior of the zoo (--no-init: from scratch)" in said) == (not more)
    hashes = {name: read_config(zoo / name).weights_hash for name in ("good", "bad")}
    wanted = None if "--init-from" not in more else hashes["bad"]
    assert about.training.get("init_from") == (wanted if more else hashes["good"])
    if not more:
        assert about.network == UNET


def test_many_images_start_from_scratch(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lavps.cli.train._FEW", 6)
    words = ["train", "prior", "--data", tmp_path / "images", "--output", tmp_path / "run", "--size", 8]
    words += ["--channels", 1, "--batch-size", 2, "--steps", 1, "--cpu", "--no-tensorboard"]
    main([*map(str, words)])
    assert "starts from" not in capsys.readouterr().out
