"""Probable mistakes are named in words, with the command that was probably meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lavps.cli import main
from lavps.priors.precision import Precision
from lavps.restoration import MeasurementSpec
from lavps.restoration.doubts import doubts
from support.restoring import picture, save, write_prior

SHAPE = (3, 8, 8)


def masked(folder: Path, white: float, painted: bool = False) -> list[str]:
    """The doubts about an image whose mask has this share of white, the black part painted or not."""
    known = np.zeros((40, 40), np.uint8)
    known[: round(40 * white)] = 255
    levels = picture(40, 40)
    if painted:
        levels[known == 0] = 255
    file, mask = save(folder / "photo.png", levels), save(folder / "mask.png", known)
    return doubts(file, MeasurementSpec(mask=mask, noise=0.05).read(file, SHAPE), SHAPE)


def test_a_mask_that_is_white_where_the_image_is_damaged_is_named(tmp_path: Path) -> None:
    (text,) = masked(tmp_path, 0.2)
    assert "only 20% of the image is known: white marks known pixels" in text
    command = text.split('python -c "')[1].split('" and give')[0]
    exec(command)  # the command that is proposed
    given = Path(text.split("--mask ")[1])
    assert np.array_equal(np.array(Image.open(given)), 255 - np.array(Image.open(tmp_path / "mask.png")))
    assert not doubts(
        tmp_path / "photo.png", MeasurementSpec(mask=given, noise=0.05).read(tmp_path / "photo.png"), SHAPE
    )


@pytest.mark.parametrize(("white", "painted"), [(0.8, False), (0.8, True), (0.2, True)])
def test_a_mask_as_it_should_be_is_not_doubted(tmp_path: Path, white: float, painted: bool) -> None:
    assert masked(tmp_path, white, painted) == []


@pytest.mark.parametrize(("side", "task", "count"), [(40, "sr4", 1), (20, "sr4", 0), (40, "denoise", 0)])
def test_super_resolution_of_a_large_photograph_is_doubted(
    tmp_path: Path, side: int, task: str, count: int
) -> None:
    file = save(tmp_path / "photo.png", picture(side, side + 8))
    found = doubts(file, MeasurementSpec(task, noise=0.05).read(file, SHAPE), SHAPE)
    assert len(found) == count
    if count:
        assert "sr4 enlarges the file to 192x160 pixels" in found[0]
        assert f"lavps restore {file} --task denoise" in found[0]
        assert f"lavps degrade {file} --task sr4 --output measured" in found[0]


@pytest.mark.parametrize(("noise", "count"), [(12.0, 1), (1.0, 0), (0.1, 0)])
def test_a_noise_in_grey_levels_is_doubted(tmp_path: Path, noise: float, count: int) -> None:
    file = save(tmp_path / "photo.png", picture(16, 16))
    found = doubts(file, MeasurementSpec("denoise", noise=noise).read(file, SHAPE), SHAPE)
    assert len(found) == count
    assert count == 0 or "12 grey levels of 255 are --noise 0.094" in found[0]


def test_doubts_are_printed_before_sampling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prior = write_prior(tmp_path / "prior", front=False)
    file = save(tmp_path / "photo.png", picture(40, 40))
    main(
        [
            "restore",
            str(file),
            "--task",
            "sr2",
            "--noise",
            "0.05",
            "--prior",
            str(prior),
            "--dry-run",
            "--device",
            "cpu",
        ]
    )
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{file}: PNG image, sr2")
    assert second.startswith("  warning: sr2 enlarges the file to 80x80 pixels.")


@pytest.mark.parametrize("capable", [True, False])
@pytest.mark.parametrize(
    ("precision", "device", "doubted"),
    [("bf16", "cpu", True), ("fp32", "cpu", False), ("bf16", "cuda", False)],
)
def test_half_precision_without_instructions_for_it_is_named(
    tmp_path: Path,
    capable: bool,
    precision: Precision,
    device: str,
    doubted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: capable)
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: False)
    file = save(tmp_path / "photo.png", picture(8, 8))
    measured = MeasurementSpec("denoise", noise=0.05).read(file, SHAPE)
    found = doubts(file, measured, SHAPE, precision, device)
    assert len(found) == (doubted and not capable)
    assert all("--precision bf16 is slower than fp32 on this processor" in text for text in found)
