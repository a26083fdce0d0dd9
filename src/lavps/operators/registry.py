r"""Registry of named measurements, scaled to the image size.

Blur kernels are defined for images of 256 pixels and scale with the shorter side n as

.. math:: k(n) = \mathrm{odd}\big(k_{256} \, (n / 256)^{0.6}\big),

rounded to the nearest odd number: 21 and 35 pixels at 256 become 9 and 15 at 64. Proportional scaling would
give 5 and 9, a hardly visible blur.

Super-resolution has any integer factor: ``sr3``, ``sr16``. Names with "random" are families with one draw per
item; "motion-blur" and "half-pixels" are one fixed kernel and one fixed mask. User-defined operators are
given as "my_operators.py:scanner" (:func:`family_from`).
"""

from __future__ import annotations

__all__ = ["NAMES", "TASKS", "WITH_FILES", "block_side", "family_from", "named_family", "task_of"]

import ast
import difflib
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .base import Operator
from .blur import Blur, gaussian_kernel
from .convert import as_operator
from .families import CentreBox, FixedOperator, MotionBlur, OperatorFamily, RandomPixels, RandomRectangle
from .linear import AveragePool, Identity, Mask
from .nonlinear import JPEG, HDRClip, PhaseRetrieval

Shape = Sequence[int]
_FIXED_ITEM = 1  # item of the fixed kernel and mask, with seed 0; its path is curved and fills the kernel


def _scale(shape: Shape) -> float:
    return math.pow(min(shape[1:]) / 256, 0.6)


def _motion(size_at_256: int, intensity: float, shape: Shape) -> MotionBlur:
    return MotionBlur(2 * round((size_at_256 * _scale(shape) - 1) / 2) + 1, intensity)


def _always(operator: Operator) -> Callable[[Shape], OperatorFamily]:
    return lambda shape: FixedOperator(operator)


def _first(family: OperatorFamily, shape: Shape) -> FixedOperator:
    """Return the family that consists of one fixed draw."""
    return FixedOperator(family.draw([_FIXED_ITEM], shape, seed=0))


_FAMILIES: dict[str, Callable[[Shape], OperatorFamily]] = {
    "sr2": _always(AveragePool(2)),
    "sr4": _always(AveragePool(4)),
    "sr8": _always(AveragePool(8)),
    "centre-box": lambda shape: CentreBox(),
    "motion-blur": lambda shape: _first(_motion(21, 0.9, shape), shape),
    "random-motion-blur": lambda shape: _motion(21, 0.9, shape),
    "random-motion-blur-hard": lambda shape: _motion(35, 0.3, shape),
    "gaussian-blur": lambda shape: FixedOperator(
        Blur(gaussian_kernel(3.0 * _scale(shape), dims=len(shape) - 1))
    ),
    "random-rectangle": lambda shape: RandomRectangle(0.4, 0.6),
    "random-pixels": lambda shape: RandomPixels(0.8, 0.85),
    "half-pixels": lambda shape: _first(RandomPixels(0.5, 0.5), shape),
    "denoise": _always(Identity()),
    "hdr": _always(HDRClip(2.0)),
    "jpeg": _always(JPEG(5)),
    "phase-retrieval": _always(PhaseRetrieval(2.0)),
}
NAMES = tuple(_FAMILIES)
# Tasks of lavps restore that need a file, with its option and the named tasks like them.
WITH_FILES = {
    "inpaint": ("--mask FILE", "centre-box, random-rectangle, random-pixels and half-pixels"),
    "deblur": ("--kernel FILE", "gaussian-blur, motion-blur and random-motion-blur"),
}
TASKS = {
    "denoise": "the image itself",
    "srN": "means of blocks of N x N pixels (super-resolution), for any integer N: sr2, sr3, sr4, ...",
    "inpaint": "pixels are missing: black in --mask FILE, or transparent",
    "deblur": "blur by the kernel in --kernel FILE",
    "gaussian-blur": "Gaussian blur, standard deviation 3 at 256 pixels",
    "motion-blur": "camera shake, one kernel; size 21, intensity 0.9 at 256 pixels",
    "random-motion-blur": "the same, a kernel per item",
    "random-motion-blur-hard": "size 35, intensity 0.3 at 256 pixels: out of distribution",
    "centre-box": "a box of half the side is missing",
    "random-rectangle": "a rectangle with sides of 0.4 to 0.6 of the image's is missing",
    "random-pixels": "80 to 85 % of the pixels are missing",
    "half-pixels": "half of the pixels are missing, drawn once",
    "jpeg": "JPEG compression, with the tables of the file itself if it is a JPEG, else at quality 5",
    "jpegQ": "JPEG compression at quality Q from 1 to 100, without chroma subsampling: jpeg20, ...",
    "hdr": "exposed twofold and clipped",
    "phase-retrieval": "Fourier magnitudes, oversampled twice",
}


def block_side(name: str) -> int | None:
    """Return the side N of the blocks of a task srN; None for other names.

    Example:
        >>> block_side("sr3"), block_side("jpeg")
        (3, None)
    """
    found = re.fullmatch(r"sr([1-9]\d{0,3})", name)
    return int(found[1]) if found else None


def task_of(operator: object) -> str | None:
    """Return the task of an operator of this library; None for others.

    Example:
        >>> task_of(AveragePool(4)), task_of(Identity()), task_of(abs)
        ('sr4', 'denoise', None)
    """
    if isinstance(operator, AveragePool):
        return f"sr{operator.factor}"
    kinds = {Identity: "denoise", Mask: "inpaint", Blur: "deblur", JPEG: "jpeg", HDRClip: "hdr"}
    return next((name for kind, name in kinds.items() if isinstance(operator, kind)), None)


def named_family(name: str, image_shape: Shape) -> OperatorFamily:
    """Return the family of operators with this name.

    Args:
        name: Name of :data:`TASKS` that needs no file.
        image_shape: Image shape (C, *spatial).

    Raises:
        ValueError: The name is unknown; the message suggests the closest one.

    Example:
        >>> named_family("sr4", (3, 64, 64)).draw([0], (3, 64, 64))
        AveragePool(factor=4)
    """
    if (side := block_side(name)) is not None:
        return FixedOperator(AveragePool(side))
    if found := re.fullmatch(r"jpeg([1-9]\d{0,2})", name):
        return FixedOperator(JPEG(int(found[1])))
    if name in _FAMILIES:
        return _FAMILIES[name](tuple(image_shape))
    if name in WITH_FILES:
        option, others = WITH_FILES[name]
        raise ValueError(f"{name} needs a file: lavps restore {option}; measurements by name are {others}")
    if re.fullmatch(r"sr[\d.,]+", name):
        raise ValueError(f"unknown task {name!r}: srN averages blocks of N x N pixels, N an integer: sr4")
    known = (*NAMES, *WITH_FILES)
    closest = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {closest[0]!r}? Known" if closest else "known"
    raise ValueError(
        f"unknown task {name!r}: {meant} are {', '.join(known)}, srN and jpegQ with other numbers; "
        "a user-defined one is path/to/file.py:attribute"
    )


def family_from(text: str, image_shape: Shape) -> OperatorFamily:
    """Return the family of operators for a command-line argument.

    Args:
        text: Name of a measurement, or "path/to/file.py:attribute". The attribute is an
            :class:`OperatorFamily`, an :class:`Operator`, or a function of images (B, C, *spatial), which is
            treated as nonlinear. The file is executed.
        image_shape: Image shape (C, *spatial).

    Raises:
        ValueError: The name is unknown, or the file has no such attribute.
    """
    if text.endswith(".py"):
        raise ValueError(f"{text} names no function: write {text}:NAME; {_defined_in(Path(text))}")
    file, colon, attribute = text.rpartition(":")
    if not colon or not file.endswith(".py"):
        return named_family(text, image_shape)
    found = _attribute_of(Path(file), attribute)
    if isinstance(found, OperatorFamily):
        return found
    if isinstance(found, type) or not callable(found):
        kind = "a class: pass an instance" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise ValueError(f"{text} must be an operator, a family of operators or a function, but is {kind}")
    return FixedOperator(as_operator(found, image_shape))


def _defined_in(file: Path) -> str:
    """Return the names that a Python file defines, in words, without executing it."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError) as error:
        return f"the file cannot be read ({error})"
    names = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    names += [ast.unparse(t) for node in body if isinstance(node, ast.Assign) for t in node.targets]
    return f"it defines {', '.join(name for name in names if not name.startswith('_')) or 'nothing'}"


def _attribute_of(file: Path, attribute: str) -> Any:
    if not file.is_file():
        raise FileNotFoundError(f"no file {file} (for the operator {attribute!r})")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The file may import modules from its own folder.
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{file} raised {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.parent.resolve()))
    if not hasattr(module, attribute):
        offered = [name for name in vars(module) if not name.startswith("_")]
        raise ValueError(f"{file} has no {attribute!r}; it defines {', '.join(offered) or 'nothing'}")
    return getattr(module, attribute)
