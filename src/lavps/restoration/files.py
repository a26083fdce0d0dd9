"""A file restored: its samples, and the files they are written as.

For ``photo.png`` these are ``photo.png``, one sample (or ``photo-1.png`` ... and ``photo-mean.png`` of
several, with ``photo-uncertainty.png``), ``photo-comparison.png`` and ``photo.json``, the manifest. A
measurement that is an array (.npy) is restored to an array and to a picture.
"""

from __future__ import annotations

__all__ = ["ITEM", "RestoredFile", "named", "output_names", "restore_file", "restore_files", "suffix_for"]

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import torch
from torch import Tensor

from ..amortization.hashes import tensors_hash
from ..samplers import Posterior
from ..samplers.base import Step
from ..samplers.posterior import OutOfDistributionWarning
from .images import Format, ImageFile
from .measuring import Measured
from .pictures import Panel, comparison, picture_panel, uncertainty_panel
from .restorer import Restorer
from .stacking import stacked
from .writing import encode_image

_SUFFIXES: dict[Format, str] = {
    "PNG": ".png", "JPEG": ".jpg", "TIFF": ".tif", "WEBP": ".webp", "NPY": ".npy"
}  # fmt: skip
_ALTERNATIVES = {".jpeg": "JPEG", ".tiff": "TIFF"}
ITEM = 0  # of every file: alone or among others, a file has the same noise


def output_names(stem: str, suffix: str, samples: int) -> list[str]:
    """The files that will be written for a file of this stem and suffix, the manifest last."""
    ends = [""] if samples == 1 else [*(f"-{n + 1}" for n in range(samples)), "-mean"]
    names = [f"{stem}{end}{suffix}" for end in ends]
    if suffix == ".npy":
        names += [f"{stem}{end}.png" for end in ends]
    pictures = ["comparison"] if samples == 1 else ["uncertainty", "comparison"]
    return [*names, *(f"{stem}-{picture}.png" for picture in pictures), f"{stem}.json"]


@dataclass(frozen=True, eq=False)
class RestoredFile:
    """Samples of what a file measured.

    Attributes:
        measured: the problem.
        posterior: its samples, one item.
        chi_square: misfit of every sample.
    """

    measured: Measured
    posterior: Posterior
    chi_square: list[float]

    @property
    def samples(self) -> Tensor:
        """(N, C, H, W)."""
        assert self.posterior.samples is not None
        return self.posterior.samples[0].cpu()

    @property
    def samples_sha256(self) -> str:
        """What tells these samples from any others, to the last bit."""
        return tensors_hash({"samples": self.samples})

    @property
    def acceptance(self) -> float | None:
        """Share of the warm starts that the safeguard kept; None where it had nothing to decide."""
        share = self.posterior.trace.acceptance
        return None if share != share else share

    def outputs(self, stem: str, suffix: str) -> dict[str, bytes]:
        """Name and content of every file but the manifest."""
        like, samples = self.measured.like, self.samples
        shown = samples.mean(1, keepdim=True) if like.channels == 1 else samples
        pictures = list(samples) if len(samples) == 1 else [*samples, samples.mean(0)]
        contents = [encode_image(pixels, like, like.format) for pixels in pictures]
        if suffix == ".npy":
            flat = replace(like, alpha=None, palette=None, mode="L", dtype="uint8")
            contents += [encode_image(pixels, flat, "PNG") for pixels in pictures]
        panels = self._panels(shown)
        if len(samples) > 1:
            contents.append(comparison([panels[-1]]))
        contents.append(comparison(panels))
        return dict(zip(output_names(stem, suffix, len(samples))[:-1], contents, strict=True))

    def _panels(self, shown: Tensor) -> list[Panel]:
        """The measurement where it is a picture, what became of it, and the spread."""
        count, size = len(shown), " x ".join(map(str, shown.shape[2:]))
        panels = []
        if self.measured.is_picture:
            asked = self.measured.grey or self.measured.problem
            observed = asked.operator.observed(asked.y)
            panels.append(
                picture_panel(
                    asked.y[0],
                    "measurement",
                    f"{' x '.join(map(str, asked.y.shape[2:]))} pixels",
                    None if observed is None else observed.reshape(-1, *observed.shape[-2:])[:1],
                )
            )
        panels.append(picture_panel(shown[0], "restored: one sample", f"{size} pixels"))
        if count > 1:
            panels.append(
                picture_panel(shown.mean(0), f"restored: mean of {count} samples", f"{size} pixels")
            )
            panels.append(uncertainty_panel(shown.std(0), count))
        return panels


def named(output: Path | None, file: Path) -> tuple[Path, str]:
    """Folder and stem of what is written for a file: an output like out.png names it, another is a folder.

    Nothing is written where there is no output.
    """
    if output is None:
        return Path(), file.stem
    is_name = output.suffix.lower() in {*_SUFFIXES.values(), *_ALTERNATIVES} and not output.is_dir()
    return (output.parent, output.stem) if is_name else (output, file.stem)


def suffix_for(file: PurePath, like: ImageFile) -> str:
    """The suffix of what is written: the file's own where it says what the content is."""
    own = file.suffix.lower()
    return own if _ALTERNATIVES.get(own) == like.format else _SUFFIXES[like.format]


def restore_file(
    restorer: Restorer,
    measured: Measured,
    samples: int = 1,
    seed: int = 0,
    batch_size: int | None = None,
    device: str | torch.device = "cpu",
    callback: Callable[[Step], bool | None] | None = None,
) -> RestoredFile:
    """Sample what a file measured; what the run advises is in the posterior's trace, not a warning."""
    (restored,) = restore_files(restorer, [measured], samples, [seed], batch_size, device, callback)
    return restored


def restore_files(
    restorer: Restorer,
    measured: Sequence[Measured],
    samples: int = 1,
    seeds: Sequence[int] = (0,),
    batch_size: int | None = None,
    device: str | torch.device = "cpu",
    callback: Callable[[Step], bool | None] | None = None,
) -> list[RestoredFile]:
    """Sample what several files measured, at once; which can be, says :mod:`~lavps.restoration.stacking`.

    Args:
        restorer: with the settings for them all.
        measured: the problems.
        samples: of every file.
        seeds: one for each: with its seed a file has the noise that it has alone.
        batch_size: samples at a time, of all files together; default all.
        device: where to compute.
        callback: as :meth:`lavps.MGDM.sample` takes it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfDistributionWarning)
        posterior = restorer.restore(
            stacked([one.problem for one in measured]).to(device),
            samples,
            seed=seeds,
            items=[ITEM] * len(measured),
            batch_size=batch_size,
            callback=callback,
        )
    return [_restored(one, posterior[index]) for index, one in enumerate(measured)]


def _restored(measured: Measured, posterior: Posterior) -> RestoredFile:
    assert posterior.samples is not None
    return RestoredFile(measured, posterior, measured.chi_square(posterior.samples[0].cpu()))
