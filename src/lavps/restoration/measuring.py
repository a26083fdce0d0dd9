r"""From a file to the inverse problem it poses: how was this measured, and with what noise?

There is no ground truth here: the file *is* the measurement. Its task is a name of
:mod:`lavps.operators.named` or file.py:attribute, or one of two that need something beside the file:

- ``inpaint``: a mask, white where the picture is known and black where it is missing; without one, what the
  file's own transparency hides (alpha 0) is missing, and opaque once restored;
- ``deblur``: a kernel, as a picture of a point of light or an array; its sum is made 1.

The noise is a standard deviation in the units of the measurement, in which black is -1 and white +1: 0.05 is
6.4 grey levels of 255. A grey file under a colour prior is replicated, and its noise counted once
(:func:`~lavps.restoration.match_channels`).
"""

from __future__ import annotations

__all__ = ["DEFAULT_NOISE", "Measured", "Measuring"]

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..noise import GaussianNoise
from ..operators import Blur, Mask, Operator
from ..operators.families import CentreBox, FixedOperator
from ..operators.named import family_from
from ..problem import InverseProblem
from .arrays import DegradedRecord, Drawn, degraded_record, is_array, read_array, read_kernel, read_mask
from .images import ImageError, ImageFile, match_channels
from .reading import read_image

DEFAULT_NOISE = 0.05
_NO_PICTURES = ("phase-retrieval",)  # whose measurements are numbers, in any range


@dataclass(frozen=True)
class Measuring:
    """How files were measured; plain values, which pickle.

    Args:
        task: a name, or file.py:attribute; default inpaint with a mask, deblur with a kernel, else what the
            manifest of ``lavps degrade`` beside a file says.
        noise: standard deviation; default the manifest's, else 0.05.
        mask: file, white where known.
        kernel: file, picture or array.
        drawn: which member of a random family measured the file; default the manifest's.
    """

    task: str | None = None
    noise: float | None = None
    mask: Path | None = None
    kernel: Path | None = None
    drawn: Drawn | None = None

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
                "deblurring needs the kernel: --kernel FILE, a picture of what a point of light became, "
                "bright on black, or a .npy array (k, k). Blurs with a name are gaussian-blur and motion-blur"
            )
        if self.noise is not None and not (self.noise > 0 and math.isfinite(self.noise)):
            raise ValueError(
                f"--noise is a standard deviation above 0, got {self.noise}: "
                "for a clean file of 8 bits 0.01 is near"
            )

    def check(self) -> None:
        """Refuse, before any file is read, a task that stands for nothing, a mask or kernel that is none."""
        if self.mask is not None:
            read_mask(self.mask)
        elif self.kernel is not None:
            read_kernel(self.kernel)
        elif self.task not in (None, "inpaint"):
            family_from(str(self.task), (3, 64, 64))

    def read(self, file: str | Path, image_shape: tuple[int, ...] | None = None) -> Measured:
        """The problem that a file poses to a prior of images of this shape.

        Raises:
            ImageError: the file cannot be read, or does not fit the prior.
            ValueError: its task is unknown, or does not fit the file.
        """
        file = Path(file)
        return self.read_content(file.read_bytes(), degraded_record(file), image_shape)

    def read_content(
        self,
        encoded: bytes,
        record: DegradedRecord | None = None,
        image_shape: tuple[int, ...] | None = None,
    ) -> Measured:
        """The problem that a file's content poses.

        Args:
            encoded: the content.
            record: what a manifest of ``lavps degrade`` says of it.
            image_shape: of the prior's images.
        """
        full = self.resolved(record)
        task, drawn = str(full.task), full.drawn
        try:
            image = read_image(encoded)
        except ImageError as error:
            numbers = drawn is not None or task in _NO_PICTURES or ".py:" in task
            if not (numbers and is_array(encoded)):
                raise ImageError(str(error).removeprefix("the image is not read: ")) from error
            image = None
        y = read_array(encoded) if image is None else image.pixels
        measured = full._problem(y, image, image_shape)
        return replace(measured, sha256=hashlib.sha256(encoded).hexdigest())

    def resolved(self, record: DegradedRecord | None = None) -> Measuring:
        """With nothing left open, for a file of which a manifest says this."""
        task = self.task or (record.task if record else None)
        if task is None:
            raise ValueError("how was it measured? --task sr4, inpaint, deblur, denoise, ... says it")
        drawn = self.drawn or (record.drawn if record and record.task == task else None)
        noise = self.noise or (record.noise if record else None) or DEFAULT_NOISE
        return replace(self, task=task, noise=noise, drawn=drawn)

    def _problem(self, y: Tensor, image: ImageFile | None, image_shape: tuple[int, ...] | None) -> Measured:
        assert self.noise is not None
        operator, shape = self._operator(y, image, image_shape)
        notes, grey = [] if image is None else list(image.notes), None
        if image_shape is not None and shape[0] != image_shape[0]:
            if image is None:
                raise ValueError(f"the measurement is of {shape[0]} channels, the prior of {image_shape[0]}")
            grey = InverseProblem(y[None], operator, GaussianNoise(self.noise))
            y = match_channels(y, image_shape[0])
            operator, shape = self._operator(y, image, image_shape)
            notes.append(f"grey under a prior of {image_shape[0]} channels: its noise is counted once")
        spread = self.noise * (math.sqrt(shape[0]) if grey is not None else 1.0)
        problem = InverseProblem(y[None], operator, GaussianNoise(spread))
        if self.task == "inpaint":
            known = float(operator.observed(problem.y).mean())  # type: ignore[union-attr]
            notes.append(f"{1 - known:.1%} of the picture is missing")
        like = self._like(image, shape, grey is not None)
        return Measured(problem, like, image is not None, self, "", grey, tuple(notes))

    def _like(self, image: ImageFile | None, shape: tuple[int, ...], averaged: bool) -> ImageFile:
        """The file that restored pixels are written as."""
        if image is None:
            return ImageFile(torch.zeros(shape), None, "NPY", "CHW", "float32")
        if image.channels != shape[0] and not averaged:  # the operator itself changes the channels
            mode = "CHW" if image.format == "NPY" else image.mode
            image = replace(image, pixels=torch.zeros(shape), mode=mode, palette=None)
        if self.task == "inpaint" and self.mask is None and image.alpha is not None:
            image = replace(image, alpha=torch.where(image.alpha == 0, 1.0, image.alpha))
        return image

    def _operator(
        self, y: Tensor, image: ImageFile | None, image_shape: tuple[int, ...] | None
    ) -> tuple[Operator, tuple[int, ...]]:
        """The operator, and the shape of the images it measures."""
        if self.task == "inpaint":
            return Mask(self._known(y, image)), tuple(y.shape)
        if self.task == "deblur":
            assert self.kernel is not None
            return Blur(read_kernel(self.kernel)), tuple(y.shape)
        guesses = [tuple(y.shape), image_shape]
        if self.drawn is not None:
            known = self.drawn.image_shape
            guesses = [known, (y.shape[0], *known[1:]), *guesses]
        reasons = []
        for guess in dict.fromkeys(shape for shape in guesses if shape is not None):
            if y.ndim == 3 and len(guess) == 3 and guess[0] not in (y.shape[0], (image_shape or guess)[0]):
                continue
            operator = self._drawn(guess)
            shape = operator.input_shape(y.shape)
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
                f"{self.task} stands for many operators, and which one measured this file is not known: keep "
                "the manifest of lavps degrade beside it, or give its --mask or --kernel"
            )
        return family.draw([0], shape)

    def _known(self, y: Tensor, image: ImageFile | None) -> Tensor:
        """Where the picture is known, (1, H, W)."""
        if self.mask is not None:
            known = read_mask(self.mask)
            if known.shape[1:] != y.shape[1:]:
                sizes = [" x ".join(map(str, part.shape[1:])) for part in (known, y)]
                raise ValueError(
                    f"the mask has {sizes[0]} pixels and the picture {sizes[1]}: they must agree"
                )
            return known
        if image is None or image.alpha is None:
            raise ValueError(
                "what is missing? Give --mask FILE, white where the picture is known and black where it is "
                "missing, or make the missing part of the picture transparent"
            )
        known = image.alpha > 0
        if not bool(known.any()):
            raise ValueError("all of the picture is transparent: nothing is known of it")
        return known


@dataclass(frozen=True, eq=False)
class Measured:
    """A file as an inverse problem of one item.

    Attributes:
        problem: what is asked.
        like: the file that restored pixels are written as.
        is_picture: whether the measurement itself is one.
        measuring: how it was measured, nothing left open.
        sha256: of the file.
        grey: the problem of the one channel, where it was replicated for a colour prior.
        notes: what a user should know, in plain words.
    """

    problem: InverseProblem
    like: ImageFile
    is_picture: bool
    measuring: Measuring
    sha256: str = ""
    grey: InverseProblem | None = None
    notes: tuple[str, ...] = ()

    def chi_square(self, samples: Tensor) -> list[float]:
        """Misfit of every sample (N, C, *spatial): 1 where it explains the measurement as noise does."""
        asked = self.grey or self.problem
        averaged = samples.mean(1, keepdim=True) if self.grey is not None else samples
        return [float(asked.chi_square(x[None])) for x in averaged.to(asked.like)]
