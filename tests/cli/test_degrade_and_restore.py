"""The commands about images: measurements that can be made again, and descriptions in plain words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lavps
from lavps.checkpoints.folder import ModelConfig, save_model
from lavps.cli import main
from lavps.io import read_image
from lavps.nn import build_network


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    Image.fromarray(random.integers(0, 256, (16, 24, 3), dtype=np.uint8)).save(tmp_path / "images/a.png")
    Image.fromarray(random.integers(0, 256, (17, 21), dtype=np.uint8)).save(tmp_path / "images/b.tif")
    return tmp_path


def degrade(folder: Path, output: str, *options: str) -> dict[str, object]:
    main(["degrade", str(folder / "images"), "--output", str(folder / output), *options])
    manifest: dict[str, object] = json.loads((folder / output / "manifest.json").read_text())
    return manifest


# --- degrade ----------------------------------------------------------------------------------------------


def test_a_measurement_is_that_of_its_seed_and_item(folder: Path) -> None:
    manifest = degrade(folder, "out", "--task", "random-pixels", "--noise", "0.1", "--seed", "5")
    first, second = manifest["measurements"]  # type: ignore[misc]
    assert (first["item"], second["item"], manifest["failures"]) == (0, 1, [])
    x = read_image(folder / "images/b.tif").pixels[None]
    operator = lavps.operators.named_family("random-pixels", x.shape[1:]).draw([1], x.shape[1:], 5)
    problem = lavps.InverseProblem.simulate(x, operator, lavps.GaussianNoise(0.1), 5, [1])
    assert torch.equal(torch.from_numpy(np.load(folder / "out/b.npy")), problem.y[0])
    assert torch.equal(read_image(folder / "out/b.npy").pixels, problem.y[0])
    picture = read_image(folder / "out/a.png")
    assert (picture.size, picture.channels, picture.depth) == ((16, 24), 3, 8)


def test_sizes_are_cropped_to_what_the_operator_needs(folder: Path) -> None:
    with pytest.raises(SystemExit) as end:
        degrade(folder, "out", "--task", "sr4")
    assert end.value.code == 3  # a is done, b is not
    manifest = json.loads((folder / "out/manifest.json").read_text())
    assert [record["image"] for record in manifest["measurements"]] == ["a.png"]
    assert "divisible by 4" in manifest["failures"][0]["reason"]
    manifest = degrade(folder, "cropped", "--task", "sr4", "--crop", "4", "--noise", "1e-6")
    assert [record["measurement_shape"] for record in manifest["measurements"]] == [[3, 4, 6], [1, 4, 5]]
    middle = read_image(folder / "images/b.tif").pixels[:, :16, :20]
    means = torch.nn.functional.avg_pool2d(middle, 4)
    torch.testing.assert_close(torch.from_numpy(np.load(folder / "cropped/b.npy")), means, atol=1e-4, rtol=0)


def test_measurements_that_are_no_pictures_are_numbers_only(folder: Path) -> None:
    (folder / "mine.py").write_text("def spectrum(x):\n    import torch\n    return torch.fft.fft2(x)\n")
    manifest = degrade(folder, "out", "--task", f"{folder / 'mine.py'}:spectrum")
    assert "picture" not in manifest["measurements"][0]  # type: ignore[index]
    assert np.load(folder / "out/a.npy").dtype == np.complex64
    assert not (folder / "out/a.png").exists()


def test_what_would_overwrite_or_makes_no_sense_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(images: str, output: str, task: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["degrade", str(folder / images), "--task", task, "--output", str(folder / output)])
        assert end.value.code == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "did you mean 'sr4'" in refused("images", "out", "sr4x")
    before = (folder / "images/a.png").read_bytes()
    assert "would be overwritten" in refused("images", "images", "sr4")
    assert (folder / "images/a.png").read_bytes() == before
    Image.new("L", (8, 8)).save(folder / "images/a.tif")
    assert "several images are called a" in refused("images", "out", "sr4")
    (folder / "none").mkdir()
    assert "files in" in refused("none", "out", "sr4")
    assert not (folder / "out").exists()


# --- info -------------------------------------------------------------------------------------------------


def test_an_image_is_described(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = Image.open(folder / "images/a.png").convert("RGBA").convert("P")
    image.save(folder / "palette.png", transparency=0, dpi=(72, 72))
    main(["info", str(folder / "palette.png")])
    said = capsys.readouterr().out
    for words in (
        "PNG image of 24 x 16 pixels, upright (width x height)",
        "mode P, 8 bit",
        "kept, not restored",
        "resolution: 72 x 72",
        "palette where",
    ):
        assert words in said


def test_an_operator_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    main(["info", "sr2", "--shape", "1", "8", "8"])
    said = capsys.readouterr().out
    assert "AveragePool" in said
    assert "(1, 8, 8) -> measurements (1, 4, 4)" in said
    assert "adjoint error" in said


def test_a_model_is_described(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = {"kind": "unet", "widths": [16], "depth": 1, "attention": [], "head_dim": 16,
               "condition_width": 16, "in_channels": 1, "out_channels": 1}  # fmt: skip
    config = ModelConfig("prior", network, lavps.Flow(), (1, 8, 8), "velocity", "time",
                         training={"validation": {"mse": 0.25}})  # fmt: skip
    saved = save_model(folder / "model", build_network(network), config)
    main(["info", str(folder / "model")])
    said = capsys.readouterr().out
    for words in ("A prior", "8 x 8 pixels, 1 channel", "Flow", "velocity", saved.sha256, "mse: 0.25"):
        assert words in said
