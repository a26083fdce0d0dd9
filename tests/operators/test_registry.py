"""Measurements by name: at the scale of the image, the same for everybody, or from a file of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lavps
from lavps.operators import AveragePool, Blur, Mask, MotionBlur, family_from, named_family
from lavps.operators.registry import NAMES
from support.problems import images

FIXED = {
    "sr2", "sr4", "sr8", "centre-box", "motion-blur", "gaussian-blur", "half-pixels", "denoise", "hdr",
    "jpeg", "phase-retrieval",
}  # fmt: skip


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 16, 24)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_a_measurement_of_any_image(name: str, shape: tuple[int, ...]) -> None:
    operator = named_family(name, shape).draw([0, 1], shape)
    x = images(2, shape).clamp(-1, 1)
    problem = lavps.InverseProblem.simulate(x, operator, lavps.GaussianNoise(0.05))
    assert problem.image_shape == shape
    assert problem.log_likelihood(x).isfinite().all()
    assert (operator.batch == 1) == (name in FIXED)
    again = named_family(name, shape).draw([0, 1], shape)
    torch.testing.assert_close(again(x), operator(x), rtol=0, atol=0)


def test_sizes_are_those_of_the_paper_at_256_pixels_and_visible_at_64() -> None:
    for name, intensity, sizes in [
        ("random-motion-blur", 0.9, {256: 21, 128: 13, 64: 9, 8: 3}),
        ("random-motion-blur-hard", 0.3, {256: 35, 128: 23, 64: 15, 8: 5}),
    ]:
        found = {side: named_family(name, (3, side, 2 * side)) for side in sizes}
        assert found == {side: MotionBlur(size, intensity) for side, size in sizes.items()}


def test_what_is_fixed_is_one_draw_for_all_and_what_is_random_is_not() -> None:
    shape = (3, 64, 64)
    blur = named_family("motion-blur", shape).draw(range(5), shape, seed=7)
    assert isinstance(blur, Blur)
    assert blur.size == (9, 9)
    assert (blur.kernel > 0.01).sum() > 15  # a path, not a dot
    mask = named_family("half-pixels", shape).draw(range(5), shape, seed=7)
    assert isinstance(mask, Mask)
    assert mask.mask.float().mean() == pytest.approx(0.5, abs=0.03)
    kernels = named_family("random-motion-blur", shape).draw(range(5), shape)
    assert len({tuple(k.flatten().tolist()) for k in kernels.kernel}) == 5


def test_an_unknown_name_is_told_the_nearest_and_all() -> None:
    with pytest.raises(ValueError, match=r"'motion_blur': did you mean 'motion-blur'\? Known are sr2, sr4,"):
        named_family("motion_blur", (3, 64, 64))
    for name, near in (("inpant", "inpaint"), ("de-blur", "deblur")):
        with pytest.raises(ValueError, match=f"did you mean '{near}'"):
            named_family(name, (3, 64, 64))
    with pytest.raises(ValueError, match=r"file\.py:attribute") as refused:
        family_from("???", (3, 64, 64))
    assert "did you mean" not in str(refused.value)  # nothing is close


@pytest.mark.parametrize("side", [1, 2, 3, 5, 16])
def test_any_integer_is_a_factor_of_super_resolution(side: int) -> None:
    shape = (3, 2 * side, side)
    assert named_family(f"sr{side}", shape).draw([0], shape) == AveragePool(side)


@pytest.mark.parametrize("name", ["sr5.5", "sr0", "sr1e3", "sr", "sr-2"])
def test_other_numbers_are_no_factor(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown task '{name}'"):
        named_family(name, (3, 64, 64))


@pytest.mark.parametrize(("name", "option"), [("inpaint", "--mask"), ("deblur", "--kernel")])
def test_tasks_of_a_file_are_no_measurements_by_name(name: str, option: str) -> None:
    with pytest.raises(ValueError, match=f"{name} needs a file: lavps restore {option} FILE"):
        named_family(name, (3, 64, 64))


SOURCE = """
import torch
from lavps.operators import AveragePool, CallableOperator, RandomPixels
from beside import FACTOR

family = RandomPixels(0.2, 0.3)
operator = AveragePool(FACTOR)
def squared(x):
    return x.square()
linear = CallableOperator(lambda x: 2 * x, (1, 8, 8))
Class = AveragePool
number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("FACTOR = 4")
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    return tmp_path / "mine.py"


def test_a_file_gives_families_operators_and_functions(file: Path) -> None:
    x = images(2, (1, 8, 8))

    def drawn(attribute: str) -> lavps.operators.Operator:
        return family_from(f"{file}:{attribute}", (1, 8, 8)).draw([0, 1], (1, 8, 8))

    assert drawn("family").batch == 2
    assert drawn("operator")(x).shape == (2, 1, 2, 2)
    torch.testing.assert_close(drawn("squared")(x), x.square())
    assert not drawn("squared").linear
    assert drawn("linear").linear
    assert family_from("sr4", (1, 8, 8)) == named_family("sr4", (1, 8, 8))


def test_a_file_that_does_not_serve_says_why(file: Path) -> None:
    for text, error, reason in [
        (f"{file}:nothing", ValueError, r"no 'nothing'; it defines torch, .*operator"),
        (
            f"{file}",
            ValueError,
            r"names no function: write .*mine\.py:NAME; it defines squared, family, oper",
        ),
        (f"{file.parent}/none.py", ValueError, "cannot be read"),
        (f"{file}:number", ValueError, "is of type int"),
        (f"{file}:Class", ValueError, "is a class: pass an instance"),
        (f"{file.parent}/none.py:operator", FileNotFoundError, r"no file .*none\.py"),
        (f"{file.parent}/broken.py:operator", ValueError, r"broken\.py raised ModuleNotFoundError"),
    ]:
        with pytest.raises(error, match=reason):
            family_from(text, (1, 8, 8))
