"""Probable mistakes in a request, each in words, with the command that was probably meant.

They are printed before sampling. None of them stops a run: what looks like a mistake can be intended.
"""

from __future__ import annotations

__all__ = ["doubts"]

import platform
from pathlib import Path

import torch
from torch import Tensor

from ..operators import Mask
from ..operators.registry import block_side
from ..priors.precision import Precision
from .spec import MeasuredFile

_LARGE = 4  # times the side of the prior's images: an image this large has seldom been reduced
_KNOWN = 0.5  # share of known pixels below which a mask can be inverted
_FLAT = 0.02  # standard deviation below which a damaged area is of one colour


def doubts(
    file: Path,
    measured: MeasuredFile,
    image_shape: tuple[int, ...] | None,
    precision: Precision = "fp32",
    device: str = "cpu",
) -> list[str]:
    """Return the probable mistakes of a request.

    Args:
        file: Measurement.
        measured: Inverse problem of the file.
        image_shape: Shape (C, H, W) of the prior's images.
        precision: Precision of the prior's network.
        device: Device of the computation.
    """
    found = [_in_grey_levels(measured), _inverted(measured), _enlarged(file, measured, image_shape)]
    found.append(_emulated(precision, device))
    return [text for text in found if text is not None]


def _in_grey_levels(measured: MeasuredFile) -> str | None:
    """Report a noise larger than half of the range of pixels."""
    noise = measured.measuring.noise
    if not measured.is_picture or noise is None or noise <= 1.0:
        return None
    return (
        f"noise {noise:g} is on the scale from -1 to 1: "
        f"{noise:g} grey levels of 255 are --noise {noise / 127.5:.2g}"
    )


def _inverted(measured: MeasuredFile) -> str | None:
    """Report a mask that is white where the image is damaged."""
    mask = measured.measuring.mask
    problem = measured.grey or measured.problem
    if mask is None or not isinstance(problem.operator, Mask):
        return None
    known = problem.operator.mask.reshape(-1, *problem.operator.mask.shape[-2:])[0].cpu() > 0
    share = float(known.float().mean())
    # A damaged area is mostly painted over with one colour, and is not the larger part.
    if share >= _KNOWN or _deviation(measured.like.pixels, ~known) < _FLAT:
        return None
    inverted = mask.with_name(f"{mask.stem}-inverted.png")
    return (
        f"only {share:.0%} of the image is known: white marks known pixels, black missing. If {mask.name}"
        f' is white where the image is damaged, invert it: python -c "from PIL import Image, ImageOps; '
        f"ImageOps.invert(Image.open('{mask}').convert('L')).save('{inverted}')\" and give --mask {inverted}"
    )


def _deviation(image: Tensor, where: Tensor) -> float:
    """Return the largest standard deviation of a channel in an area."""
    return float(image[:, where].std(1).max()) if int(where.sum()) > 1 else 0.0


def _enlarged(file: Path, measured: MeasuredFile, image_shape: tuple[int, ...] | None) -> str | None:
    """Report super-resolution of an image that is already large."""
    spec, y = measured.measuring, measured.problem.y
    factor = block_side(str(spec.task))
    if factor is None or spec.drawn is not None or not measured.is_picture or image_shape is None:
        return None
    if any(side < _LARGE * own for side, own in zip(y.shape[2:], image_shape[1:], strict=False)):
        return None
    height, width = measured.problem.image_shape[1:]
    return (
        f"{spec.task} enlarges the file to {width}x{height} pixels. If the photograph already has full size, "
        f"clean it with lavps restore {file} --task denoise; to try {spec.task} on it, reduce it first: "
        f"lavps degrade {file} --task {spec.task} --output measured"
    )


def _emulated(precision: Precision, device: str) -> str | None:
    """Report half precision on a processor without instructions for it."""
    if precision == "fp32" or torch.device(device).type != "cpu" or _has_half_precision():
        return None
    return f"--precision {precision} is slower than fp32 on this processor, which lacks AMX: leave it out"


def _has_half_precision() -> bool:
    """Return whether the processor multiplies in bfloat16, as far as is known."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
