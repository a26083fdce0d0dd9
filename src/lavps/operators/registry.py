r"""Registry of named measurements, scaled to the image size.

Blur kernels are defined for images of 256 pixels and scale with the shorter side n as

.. math:: k(n) = \mathrm{odd}\big(k_{256} \, (n / 256)^{0.6}\big),

rounded to the nearest odd number: 21 and 35 pixels at 256 become 9 and 15 at 64. Proportional scaling would
give 5 and 9, a hardly visible blur.

Names with "random" are families with one draw per item; "motion-blur" and "half-pixels" are one fixed kernel
and one fixed mask. User-defined operators are given as "my_operators.py:scanner" (:func:`family_from`).
"""

from __future__ import annotations

__all__ = ["NAMES", "family_from", "named_family"]

import difflib
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .base import Operator
from .blur import Blur, gaussian_kernel
from .convert import as_operator
from .families import CentreBox, FixedOperator, MotionBlur, OperatorFamily, RandomPixels, RandomRectangle
from .linear import AveragePool, Identity
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


def named_family(name: str, image_shape: Shape) -> OperatorFamily:
    """Return the family of operators with this name.

    ===========================  ===================================================================
    name                         measurement
    ===========================  ===================================================================
    ``sr2``, ``sr4``, ``sr8``    means of blocks of r x r pixels
    ``centre-box``               a box of half the side is missing
    ``motion-blur``              camera shake, one kernel; size 21, intensity 0.9 at 256 pixels
    ``random-motion-blur``       the same, a kernel per item
    ``random-motion-blur-hard``  size 35, intensity 0.3 at 256 pixels: out of distribution
    ``gaussian-blur``            standard deviation 3 at 256 pixels
    ``random-rectangle``         a rectangle with sides of 0.4 to 0.6 of the image's is missing
    ``random-pixels``            80 to 85 % of the pixels are missing
    ``half-pixels``              half of the pixels are missing, drawn once
    ``denoise``                  the image itself
    ``hdr``                      exposed twofold and clipped
    ``jpeg``                     compressed at quality 5
    ``phase-retrieval``          Fourier magnitudes, oversampled twice
    ===========================  ===================================================================

    Args:
        name: Name from the table.
        image_shape: Image shape (C, *spatial).

    Raises:
        ValueError: The name is unknown; the message suggests the closest one.

    Example:
        >>> named_family("sr4", (3, 64, 64)).draw([0], (3, 64, 64))
        AveragePool(factor=4)
    """
    if name not in _FAMILIES:
        closest = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"unknown measurement {name!r}: did you mean {closest!r}? Known are {', '.join(NAMES)}; "
            "a user-defined one is path/to/file.py:attribute"
        )
    return _FAMILIES[name](tuple(image_shape))


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
