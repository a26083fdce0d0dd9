"""Inverse problems from files: the operator and the noise of a measured file.

The file is the measurement; there is no ground truth. Its task is a name of :mod:`lavps.operators.registry`,
file.py:attribute, or one of two that need another file:

- ``inpaint``: a mask, white where the image is known and black where it is missing. Without one, transparent
  pixels (alpha 0) are missing, and become opaque.
- ``deblur``: a kernel, as an image of a point of light or an array, scaled to sum 1.

The noise is a standard deviation on the scale on which black is -1 and white is +1: 0.05 is 6.4 grey levels
of 255. Noise 0 means rounding to 8 bits alone: samples then agree with the measurement exactly if it is a
mask, block means or the image itself (:meth:`lavps.InverseProblem.project`). A grey file is replicated for a
colour prior, and its noise is counted once (:func:`~lavps.io.match_channels`).
"""

from __future__ import annotations

__all__ = ["ImageTooLarge", "MeasuredFile", "MeasurementSpec"]

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..evaluation.noise_level import NoiseEstimate, estimated_noise
from ..io.arrays import read_array, read_kernel, read_mask
from ..io.decode import MOST_PIXELS, is_array, read_image
from ..io.image import ImageError, ImageFile, match_channels
from ..io.regular import read_file
from ..noise import as_noise
from ..operators import JPEG, Blur, Mask, Operator
from ..operators.families import CentreBox, FixedOperator
from ..operators.registry import family_from
from ..problem import InverseProblem
from .degraded import DegradedRecord, OperatorDraw, degraded_record, script_of

_MASKS = ("inpaint", "centre-box", "random-rectangle", "random-pixels", "half-pixels")
_NOT_IMAGES = ("phase-retrieval",)  # tasks whose measurements are numbers in any range


class ImageTooLarge(ValueError):  # noqa: N818 - public name
    """The image that a measurement determines has too many pixels."""


@dataclass(frozen=True)
class MeasurementSpec:
    """Measurement of files, in plain values, which pickle.

    Args:
        task: Name, or file.py:attribute; default inpaint with a mask, deblur with a kernel, else the task in
            the manifest of ``lavps degrade`` beside a file.
        noise: Standard deviation, 0 for none; default the manifest's, else an estimate from the file.
        mask: Image file, white where the measurement is known.
        kernel: Image file or array.
        drawn: Draw of the operator from a random family; default the manifest's.
        trust_manifest: Whether a Python file that only the manifest names is executed.
        keep_known: Whether known pixels of a mask are unchanged in every sample; default if the noise is 0.

    Example:
        >>> MeasurementSpec("sr4", noise=0.05).resolved().noise
        0.05
    """

    task: str | None = None
    noise: float | None = None
    mask: Path | None = None
    kernel: Path | None = None
    drawn: OperatorDraw | None = None
    trust_manifest: bool = False
    keep_known: bool | None = None

    def __post_init__(self) -> None:
        for option, given, task in (("mask", self.mask, "inpaint"), ("kernel", self.kernel, "deblur")):
            if given is None:
                continue
            if self.task is None:
                object.__setattr__(self, "task", task)
            if self.task != task:
                raise ValueError(f"--{option} goes with --task {task}, not with {self.task}")
            if not given.is_file():
                raise FileNotFoundError(f"--{option} {given}: there is no such file")
        if self.task == "deblur" and self.kernel is None:
            raise ValueError(
                "deblurring needs the kernel: --kernel FILE, the image of a point of light, bright on black, "
                "or a .npy array (k, k). Named blurs are gaussian-blur and motion-blur"
            )
        if self.noise is not None and not (self.noise >= 0 and math.isfinite(self.noise)):
            raise ValueError(f"--noise is a standard deviation, 0 or more, got {self.noise}: try 0.01")
        if self.task is not None and self.task not in _MASKS and script_of(self.task) is None:
            self._require_mask(self.task)

    def _require_mask(self, found: object) -> None:
        if self.keep_known:
            raise ValueError(f"--keep-known needs a mask, which {found} is not")

    def check(self) -> None:
        """Raise an error if the task, the mask or the kernel is invalid, before any file is read."""
        if self.mask is not None:
            read_mask(self.mask)
        elif self.kernel is not None:
            read_kernel(self.kernel)
        elif self.task not in (None, "inpaint"):
            family_from(str(self.task), (3, 64, 64))

    def read(self, file: str | Path, image_shape: tuple[int, ...] | None = None) -> MeasuredFile:
        """Read the inverse problem of a file, for a prior of images of this shape.

        Raises:
            ImageError: The file cannot be read, or does not fit the prior.
            ValueError: The task is unknown, or does not fit the file.
        """
        file = Path(file)
        return self.read_content(read_file(file), degraded_record(file), image_shape)

    def read_content(
        self,
        encoded: bytes,
        record: DegradedRecord | None = None,
        image_shape: tuple[int, ...] | None = None,
        max_pixels: int = MOST_PIXELS,
    ) -> MeasuredFile:
        """Return the inverse problem of a file's content.

        Args:
            encoded: Content of the file.
            record: Entry of the file in a manifest of ``lavps degrade``.
            image_shape: Shape of the prior's images.
            max_pixels: Maximum number of pixels of measurement and image, checked before they are allocated.

        Raises:
            ImageTooLarge: The restored image would have too many pixels.
        """
        full = self.resolved(record)
        task, drawn = str(full.task), full.drawn
        try:
            image = read_image(encoded, max_pixels)
        except ImageError as error:
            numbers = drawn is not None or task in _NOT_IMAGES or script_of(task) is not None
            if not (numbers and is_array(encoded)):
                raise ImageError(str(error).removeprefix("the image is not read: ")) from error
            image = None
        y = read_array(encoded) if image is None else image.pixels
        measured = full._problem(y, image, image_shape, max_pixels)
        return replace(measured, sha256=hashlib.sha256(encoded).hexdigest())

    def resolved(self, record: DegradedRecord | None = None) -> MeasurementSpec:
        """Return the same with all values set, from a file's manifest entry and the defaults.

        A noise that is to be estimated stays None.

        Raises:
            ValueError: The task is missing, or a manifest that is not trusted names a Python file.
        """
        task = self.task or (record.task if record else None)
        if task is None:
            raise ValueError("the task is missing: give --task sr4, inpaint, deblur, denoise, ...")
        if self.task is None and script_of(task) is not None and not self.trust_manifest:
            raise ValueError(
                f"manifest.json names the Python file of {task}, which is not executed: read the file, then "
                f"give --operator {task}, or --trust-manifest"
            )
        drawn = self.drawn or (record.drawn if record and record.task == task else None)
        noise = record.noise if record and self.noise is None else self.noise
        return replace(self, task=task, noise=noise, drawn=drawn)

    def _problem(
        self, y: Tensor, image: ImageFile | None, image_shape: tuple[int, ...] | None, max_pixels: int
    ) -> MeasuredFile:
        operator, shape = self._operator(y, image, image_shape, max_pixels)
        estimate, noise = None, self.noise
        if noise is None:
            estimate = estimated_noise(str(self.task), y, image, operator)
            noise = estimate.std
        if not isinstance(operator, Mask):
            self._require_mask(operator)
        notes, grey = [] if image is None else list(image.notes), None
        if image_shape is not None and shape[0] != image_shape[0]:
            if image is None:
                raise ValueError(f"the measurement is of {shape[0]} channels, the prior of {image_shape[0]}")
            grey = InverseProblem(y[None], operator, as_noise(noise))
            y = match_channels(y, image_shape[0])
            operator, shape = self._operator(y, image, image_shape, max_pixels)
            notes.append(f"grey under a prior of {image_shape[0]} channels: its noise is counted once")
        std = noise * (math.sqrt(shape[0]) if grey is not None else 1.0)
        problem = InverseProblem(y[None], operator, as_noise(std), keep_known=self.keep_known)
        if self.task == "inpaint":
            known = float(operator.observed(problem.y).mean())  # type: ignore[union-attr]
            notes.append(f"{1 - known:.1%} of the image is missing")
        like = self._like(image, shape, grey is not None)
        full = replace(self, noise=noise)
        return MeasuredFile(problem, like, image is not None, full, "", grey, tuple(notes), estimate)

    def _like(self, image: ImageFile | None, shape: tuple[int, ...], averaged: bool) -> ImageFile:
        """Return the file whose format and metadata the outputs have."""
        if image is None:
            return ImageFile(torch.zeros(shape), None, "NPY", "CHW", "float32")
        if image.channels != shape[0] and not averaged:  # the operator itself changes the channels
            mode = "CHW" if image.format == "NPY" else image.mode
            image = replace(image, pixels=torch.zeros(shape), mode=mode, palette=None)
        if self.task == "inpaint" and self.mask is None and image.alpha is not None:
            image = replace(image, alpha=torch.where(image.alpha == 0, 1.0, image.alpha))
        return image

    def _operator(
        self, y: Tensor, image: ImageFile | None, image_shape: tuple[int, ...] | None, max_pixels: int
    ) -> tuple[Operator, tuple[int, ...]]:
        """Return the operator, and the shape of the images it measures."""
        if self.task == "inpaint":
            return Mask(self._known(y, image)), tuple(y.shape)
        if self.task == "deblur":
            assert self.kernel is not None
            return Blur(read_kernel(self.kernel)), tuple(y.shape)
        if self.task == "jpeg" and self.drawn is None and image is not None and image.format == "JPEG":
            if image.coding is None:
                raise ValueError(
                    "the compression of this JPEG file cannot be read (it is turned by its EXIF data, CMYK "
                    "or unusual): give its quality, as in --task jpeg20"
                )
            return JPEG(tables=image.coding.tables, subsampling=image.coding.subsampling), tuple(y.shape)
        guesses = [tuple(y.shape), image_shape]
        if self.drawn is not None:
            known = self.drawn.image_shape
            guesses = [known, (y.shape[0], *known[1:]), *guesses]
        reasons = []
        for guess in dict.fromkeys(shape for shape in guesses if shape is not None):
            if y.ndim == 3 and len(guess) == 3 and guess[0] not in (y.shape[0], (image_shape or guess)[0]):
                continue
            _require_small(guess, max_pixels)
            operator = self._drawn(guess)
            shape = operator.input_shape(y.shape)
            _require_small(shape, max_pixels)
            if shape != guess:
                operator = self._drawn(shape)
            try:
                found = tuple(operator(torch.zeros(1, *shape)).shape[1:])
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                reasons.append(f"on images {shape} it fails: {error}")
                continue
            if found == tuple(y.shape):
                return operator, shape
            reasons.append(f"of images {shape} it gives {found}")
        why = "; ".join(dict.fromkeys(reasons))
        raise ValueError(
            f"{self.task} does not make measurements of shape {tuple(y.shape)} ({why}): "
            "an operator of your own can state its in_shape as a CallableOperator"
        )

    def _drawn(self, shape: tuple[int, ...]) -> Operator:
        family = family_from(str(self.task), shape)
        if self.drawn is not None:
            return family.draw([self.drawn.item], shape, self.drawn.seed)
        if not isinstance(family, FixedOperator | CentreBox):
            raise ValueError(
                f"{self.task} is a family of operators, and the draw of this file is unknown: keep "
                "the manifest of lavps degrade beside it, or give its --mask or --kernel"
            )
        return family.draw([0], shape)

    def _known(self, y: Tensor, image: ImageFile | None) -> Tensor:
        """Return the mask of known pixels, shape (1, H, W)."""
        if self.mask is not None:
            known = read_mask(self.mask)
            if known.shape[1:] != y.shape[1:]:
                sizes = [" x ".join(map(str, part.shape[1:])) for part in (known, y)]
                raise ValueError(f"the mask has {sizes[0]} pixels and the image {sizes[1]}: they must agree")
            return known
        if image is None or image.alpha is None:
            raise ValueError(
                "inpainting needs a mask: give --mask FILE, white where the image is known and black where "
                "it is missing, or make the missing part of the image transparent"
            )
        known = image.alpha > 0
        if not bool(known.any()):
            raise ValueError("the whole image is transparent: no pixel is known")
        return known


def _require_small(shape: tuple[int, ...], max_pixels: int) -> None:
    if math.prod(shape[1:]) > max_pixels or math.prod(shape) > 3 * max(max_pixels, MOST_PIXELS):
        size = " x ".join(map(str, shape[1:]))
        raise ImageTooLarge(f"{size} pixels of the restored image exceed the limit of {max_pixels}")


@dataclass(frozen=True, eq=False)
class MeasuredFile:
    """Inverse problem of one file.

    Attributes:
        problem: Inverse problem, one item.
        like: File whose format and metadata the outputs have.
        is_picture: Whether the measurement is an image.
        measuring: Measurement, with all values set.
        sha256: Hash of the file.
        grey: Problem of the one channel, if it was replicated for a colour prior.
        notes: Notes for the user.
        estimate: Estimate of the noise; None if it was given.
    """

    problem: InverseProblem
    like: ImageFile
    is_picture: bool
    measuring: MeasurementSpec
    sha256: str = ""
    grey: InverseProblem | None = None
    notes: tuple[str, ...] = ()
    estimate: NoiseEstimate | None = None

    def chi_square(self, samples: Tensor) -> list[float]:
        """Return the misfit of every sample (N, C, *spatial), in units of the noise's variance."""
        problem = self.grey or self.problem
        averaged = samples.mean(1, keepdim=True) if self.grey is not None else samples
        return [float(problem.chi_square(x[None])) for x in averaged.to(problem.like)]
