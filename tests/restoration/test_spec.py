"""From files to inverse problems: what was measured, with what noise, and what a file does not say."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lavps
from lavps.cli import main
from lavps.io import ImageError
from lavps.operators import JPEG, AveragePool, Blur, Identity, Mask
from lavps.restoration import MeasurementSpec
from lavps.restoration.stacking import batch_key
from support.restoring import picture, save

COLOUR, GREY = (3, 8, 8), (1, 8, 8)


@pytest.mark.parametrize(
    ("task", "operator", "shape"),
    [("sr4", AveragePool, (3, 20, 24)), ("denoise", Identity, (3, 5, 6)), ("gaussian-blur", Blur, (3, 5, 6))],
)
def test_a_named_task_gives_operator_size_and_noise(
    tmp_path: Path, task: str, operator: type, shape: tuple[int, ...]
) -> None:
    measured = MeasurementSpec(task, 0.02).read(save(tmp_path / "a.png", picture(5, 6)), COLOUR)
    assert isinstance(measured.problem.operator, operator)
    assert measured.problem.image_shape == shape
    assert measured.problem.noise == lavps.GaussianNoise(0.02)
    assert measured.problem.y.shape == (1, 3, 5, 6)
    assert MeasurementSpec(task, 0.02).resolved().noise == 0.02
    assert pickle.loads(pickle.dumps(measured.measuring)) == measured.measuring


def test_the_compression_of_a_jpeg_file_is_read_from_it(tmp_path: Path) -> None:
    file, levels = tmp_path / "a.jpg", Image.fromarray(picture(40, 48))
    levels.save(file, quality=35, subsampling="4:2:0")
    measured = MeasurementSpec("jpeg", 0.02).read(file, COLOUR)
    operator = measured.problem.operator
    assert isinstance(operator, JPEG)
    assert operator.subsampling == (2, 2)
    assert [table[:3] for table in operator.tables or ()] == [(23, 16, 14), (24, 26, 34)]
    levels.save(tmp_path / "b.jpg", quality=80)
    assert batch_key(measured) != batch_key(MeasurementSpec("jpeg", 0.02).read(tmp_path / "b.jpg", COLOUR))
    assert MeasurementSpec("jpeg35", 0.02).read(file, COLOUR).problem.operator == JPEG(35)
    levels.save(tmp_path / "a.png")
    assert MeasurementSpec("jpeg", 0.02).read(tmp_path / "a.png", COLOUR).problem.operator == JPEG(5)
    turned = Image.Exif()
    turned[0x0112] = 6
    levels.save(tmp_path / "turned.jpg", exif=turned)
    with pytest.raises(ValueError, match=r"turned by its EXIF data.*--task jpeg20"):
        MeasurementSpec("jpeg", 0.02).read(tmp_path / "turned.jpg", COLOUR)


def test_white_in_a_mask_is_known(tmp_path: Path) -> None:
    levels = picture(6, 6)
    mask = np.zeros((6, 6), np.uint8)
    mask[:, :4] = 255
    file = save(tmp_path / "a.png", levels)
    measured = MeasurementSpec(noise=0.05, mask=save(tmp_path / "mask.png", mask)).read(file, COLOUR)
    assert isinstance(measured.problem.operator, Mask)
    assert measured.problem.operator.mask[0].sum(0).tolist() == [6, 6, 6, 6, 0, 0]
    assert any("33.3% of the image is missing" in note for note in measured.notes)
    with pytest.raises(ValueError, match="6 x 6 pixels and the image 5 x 6: they must agree"):
        MeasurementSpec(noise=0.05, mask=tmp_path / "mask.png").read(
            save(tmp_path / "b.png", picture(5, 6)), COLOUR
        )
    black = save(tmp_path / "black.png", 0 * mask)
    with pytest.raises(ImageError, match="no white pixel, and white marks known pixels"):
        MeasurementSpec(noise=0.05, mask=black).check()


def test_what_is_transparent_is_missing_and_comes_back_opaque(tmp_path: Path) -> None:
    levels = picture(6, 6, 4)
    levels[..., 3] = 200
    levels[2:4, 2:4, 3] = 0
    measured = MeasurementSpec("inpaint", 0.05).read(save(tmp_path / "a.png", levels), COLOUR)
    known = measured.problem.operator.observed(measured.problem.y)
    assert known is not None
    assert float((1 - known).sum()) == 4
    assert measured.like.alpha is not None
    assert float(measured.like.alpha[0, 2, 2]) == 1.0
    assert float(measured.like.alpha[0, 0, 0]) == pytest.approx(200 / 255)
    with pytest.raises(ValueError, match="--mask FILE, white where the image is known"):
        MeasurementSpec("inpaint", 0.05).read(save(tmp_path / "b.png", picture(6, 6)), COLOUR)
    levels[..., 3] = 0
    with pytest.raises(ValueError, match="no pixel is known"):
        MeasurementSpec("inpaint", 0.05).read(save(tmp_path / "c.png", levels), COLOUR)


@pytest.mark.parametrize("kind", ["png", "npy"])
def test_a_kernel_sums_to_one(tmp_path: Path, kind: str) -> None:
    levels = np.zeros((3, 3), np.uint8)
    levels[1] = (60, 120, 60)
    file = tmp_path / f"kernel.{kind}"
    if kind == "npy":
        np.save(file, levels.astype(np.float64))
    else:
        save(file, levels)
    measured = MeasurementSpec(noise=0.05, kernel=file).read(save(tmp_path / "a.png", picture(8, 9)), COLOUR)
    operator = measured.problem.operator
    assert isinstance(operator, Blur)
    torch.testing.assert_close(operator.kernel[1], torch.tensor([0.25, 0.5, 0.25]))
    np.save(tmp_path / "dark.npy", np.zeros((3, 3)))
    with pytest.raises(ImageError, match="bright where light falls"):
        MeasurementSpec(noise=0.05, kernel=tmp_path / "dark.npy").check()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "deblur"}, "--kernel FILE"),
        ({"task": "sr4", "mask": Path(__file__)}, "--mask goes with --task inpaint"),
        ({"mask": Path("nowhere.png")}, "no such file"),
        ({"task": "sr4", "noise": -0.1}, "0 or more"),
        ({"task": "sr4", "noise": float("nan")}, "0 or more"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        MeasurementSpec(**options)  # type: ignore[arg-type]


def test_a_grey_file_under_a_colour_prior_is_counted_once(tmp_path: Path) -> None:
    file = save(tmp_path / "a.png", picture(4, 4, 1))
    measured = MeasurementSpec("sr2", 0.1).read(file, COLOUR)
    assert measured.problem.image_shape == (3, 8, 8)
    assert measured.problem.noise == lavps.GaussianNoise(0.1 * 3**0.5)
    assert measured.like.channels == 1
    # Colours that average to an image off by the noise's std have a misfit of one, whatever their colours.
    x = measured.problem.operator.pseudo_inverse(measured.problem.y) + 0.1  # type: ignore[attr-defined]
    x = x + torch.tensor([0.3, -0.3, 0.0]).reshape(3, 1, 1)
    assert measured.chi_square(x) == pytest.approx([1.0], rel=1e-4)
    with pytest.raises(ImageError, match="use a colour prior"):
        MeasurementSpec("sr2", 0.05).read(save(tmp_path / "b.png", picture(4, 4)), GREY)


def test_an_operator_that_makes_colours_grey_restores_colours(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from lavps.operators import CallableOperator\n"
        "luminance = CallableOperator(lambda x: x.mean(1, keepdim=True), (3, 8, 8))\n"
        "def total(x):\n    return x.sum((2, 3))\n"
    )
    file = save(tmp_path / "a.png", picture(8, 8, 1))
    measured = MeasurementSpec(f"{tmp_path / 'mine.py'}:luminance", 0.05).read(file, COLOUR)
    assert measured.problem.y.shape == (1, 1, 8, 8)
    assert measured.problem.noise == lavps.GaussianNoise(0.05)
    assert measured.like.channels == 3
    # Numbers that are no picture: the images are of the prior's own shape.
    np.save(tmp_path / "sums.npy", np.array([100.0, -20.0, 3.0]))
    sums = MeasurementSpec(f"{tmp_path / 'mine.py'}:total", 0.05).read(tmp_path / "sums.npy", COLOUR)
    assert (sums.problem.image_shape, sums.is_picture) == (COLOUR, False)
    with pytest.raises(ValueError, match="does not make measurements of shape"):
        MeasurementSpec(f"{tmp_path / 'mine.py'}:total", 0.05).read(file, COLOUR)


@pytest.mark.parametrize("task", ["sr4", "random-pixels", "phase-retrieval"])
def test_the_manifest_of_degrade_says_how_a_file_was_measured(tmp_path: Path, task: str) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        save(tmp_path / "in" / f"{number}.png", picture(8, 8, seed=number))
    options = ["--noise", "0.1", "--seed", "7", "--output", str(tmp_path / "out")]
    main(["degrade", str(tmp_path / "in"), "--task", task, *options])
    measured = MeasurementSpec().read(tmp_path / "out" / "1.npy", COLOUR)
    x = lavps.io.read_image(tmp_path / "in" / "1.png").pixels[None]
    operator = lavps.operators.named_family(task, x.shape[1:]).draw([1], x.shape[1:], 7)
    again = lavps.InverseProblem.simulate(x, operator, lavps.GaussianNoise(0.1), 7, [1])
    assert torch.equal(measured.problem.y, again.y)
    assert torch.equal(measured.problem.operator(x), operator(x))
    assert measured.problem.noise == again.noise
    assert MeasurementSpec(noise=0.2).read(tmp_path / "out" / "1.npy", COLOUR).measuring.noise == 0.2
    if task == "random-pixels":
        (tmp_path / "out" / "manifest.json").unlink()
        with pytest.raises(ValueError, match="the draw of this file is unknown"):
            MeasurementSpec(task).read(tmp_path / "out" / "1.npy", COLOUR)
        with pytest.raises(ValueError, match="the task is missing: give --task"):
            MeasurementSpec().read(tmp_path / "out" / "1.npy", COLOUR)


def test_arrays_with_nan_are_refused(tmp_path: Path) -> None:
    y = np.full((3, 4, 4), np.nan, np.float32)
    np.save(tmp_path / "a.npy", y)
    for task in ("sr2", "phase-retrieval"):
        with pytest.raises(ImageError, match=r"finite|NaN"):
            MeasurementSpec(task).read(tmp_path / "a.npy", COLOUR)
