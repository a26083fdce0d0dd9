"""Restored files: samples, and the files they are written to.

For ``photo.png`` these are ``photo.png``, one sample (for several, ``photo-1.png`` ..., ``photo-mean.png``
and ``photo-uncertainty.png``), ``photo-comparison.png`` and the manifest ``photo.json``. A measurement that
is an array (.npy) is restored to an array and to an image.
"""

from __future__ import annotations

__all__ = ["ITEM", "RestoredFile", "named", "output_names", "restore_files", "suffix_for"]

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from ..checkpoints.hashes import tensors_hash
from ..image_formats import DEFAULT_SUFFIX, SUFFIXES
from ..io.encode import encode_image
from ..io.image import ImageFile
from ..pages.panels import Panel, comparison, picture_panel, uncertainty_panel
from ..samplers import Posterior, PosteriorMean
from ..samplers.base import Step
from ..samplers.posterior import OutOfDistributionWarning
from ..samplers.state import StateStore
from .manifest import assessment
from .restorer import Restorer
from .spec import MeasuredFile
from .stacking import stacked

ITEM = 0  # item of every file, so that its noise does not depend on the other files of a batch


def output_names(stem: str, suffix: str, samples: int) -> list[str]:
    """Return the names of the files written for a file of this stem and suffix, the manifest last."""
    ends = [""] if samples == 1 else [*(f"-{n + 1}" for n in range(samples)), "-mean"]
    names = [f"{stem}{end}{suffix}" for end in ends]
    if suffix == ".npy":
        names += [f"{stem}{end}.png" for end in ends]
    figures = ["comparison"] if samples == 1 else ["uncertainty", "comparison"]
    return [*names, *(f"{stem}-{figure}.png" for figure in figures), f"{stem}.json"]


@dataclass(frozen=True, eq=False)
class RestoredFile:
    """Samples of the posterior of a file.

    Attributes:
        measured: Inverse problem of the file.
        posterior: Samples, one item.
        chi_square: Misfit of every sample.
    """

    measured: MeasuredFile
    posterior: Posterior
    chi_square: list[float]

    @property
    def samples(self) -> Tensor:
        """Samples on the CPU, shape (N, C, H, W)."""
        assert self.posterior.samples is not None
        return self.posterior.samples[0].cpu()

    @property
    def is_mean(self) -> bool:
        """Whether the one sample is an estimate of the posterior mean."""
        return self.posterior.sampler == PosteriorMean.__name__

    @property
    def samples_sha256(self) -> str:
        """Hash of the samples, bit by bit."""
        return tensors_hash({"samples": self.samples})

    @property
    def acceptance(self) -> float | None:
        """Acceptance rate of the safeguard; None if it made no decisions."""
        share = self.posterior.trace.acceptance
        return None if share != share else share

    @property
    def result(self) -> dict[str, Any]:
        """Misfits, their assessment, costs and the hash of the samples, for the manifest."""
        trace, estimate = self.posterior.trace, self.measured.estimate
        below = self.is_mean or (estimate is not None and estimate.uncertainty is None)
        return {
            "chi_square": self.chi_square,
            "verdict": assessment(self.chi_square, self.measured.measuring.noise or 0.0, below),
            "acceptance": self.acceptance,
            "forwards": trace.forwards,
            "backwards": trace.backwards,
            "model_forwards": trace.model_forwards,
            "seconds": trace.seconds,
            "advice": trace.advice,
            "samples_sha256": self.samples_sha256,
        }

    def outputs(self, stem: str, suffix: str) -> dict[str, bytes]:
        """Return name and content of every file but the manifest."""
        like, samples = self.measured.like, self.samples
        shown = samples.mean(1, keepdim=True) if like.channels == 1 else samples
        images = list(samples) if len(samples) == 1 else [*samples, samples.mean(0)]
        contents = [encode_image(pixels, like, like.format) for pixels in images]
        if suffix == ".npy":
            flat = replace(like, alpha=None, palette=None, mode="L", dtype="uint8")
            contents += [encode_image(pixels, flat, "PNG") for pixels in images]
        panels = self._panels(shown)
        if len(samples) > 1:
            contents.append(comparison([panels[-1]]))
        contents.append(comparison(panels))
        return dict(zip(output_names(stem, suffix, len(samples))[:-1], contents, strict=True))

    def _panels(self, shown: Tensor) -> list[Panel]:
        """Return panels of the measurement if it is an image, of sample and mean, and of the uncertainty."""
        count, size = len(shown), " x ".join(map(str, shown.shape[:1:-1]))  # width first
        panels = []
        if self.measured.is_picture:
            problem = self.measured.grey or self.measured.problem
            observed = problem.operator.observed(problem.y)
            if observed is not None:
                observed = observed.reshape(-1, *observed.shape[-2:])[:1]
            remark = f"{' x '.join(map(str, problem.y.shape[:1:-1]))} pixels"
            panels.append(picture_panel(problem.y[0], "measurement", remark, observed))
        shows = "posterior mean" if self.is_mean else "one sample"
        panels.append(picture_panel(shown[0], f"restored: {shows}", f"{size} pixels"))
        if count > 1:
            caption = f"restored: mean of {count} samples"
            panels.append(picture_panel(shown.mean(0), caption, f"{size} pixels"))
            panels.append(uncertainty_panel(shown.std(0), count))
        return panels


def named(output: Path | None, file: Path) -> tuple[Path, str]:
    """Return folder and stem of a file's outputs; ``output`` is a folder, or a file name like out.png."""
    if output is None:
        return Path(), file.stem
    is_name = output.suffix.lower() in SUFFIXES and not output.is_dir()
    return (output.parent, output.stem) if is_name else (output, file.stem)


def suffix_for(file: PurePath, like: ImageFile) -> str:
    """Return the suffix of the outputs: the file's own if it matches the content."""
    own = file.suffix.lower()
    return own if SUFFIXES.get(own) == like.format else DEFAULT_SUFFIX[like.format]


def restore_files(
    restorer: Restorer,
    measured: Sequence[MeasuredFile],
    samples: int = 1,
    seeds: Sequence[int] = (0,),
    batch_size: int | None = None,
    device: str | torch.device = "cpu",
    callback: Callable[[Step], bool | None] | None = None,
    store: StateStore | None = None,
) -> list[RestoredFile]:
    """Sample the posteriors of several files in one batch (:mod:`~lavps.restoration.stacking`).

    Advice is in the posterior's trace, not in a warning.

    Args:
        restorer: Restorer with the settings of all files.
        measured: Inverse problems of the files.
        samples: Number of samples per file.
        seeds: Seed of each file, which determines its noise as in a run of its own.
        batch_size: Samples per batch, over all files; default all.
        device: Device of the computation.
        callback: Callback of :meth:`lavps.MGDM.sample`.
        store: Storage of the run's state.
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
            store=store,
        )
    assert posterior.samples is not None
    misfits = [one.chi_square(rows.cpu()) for one, rows in zip(measured, posterior.samples, strict=True)]
    return [RestoredFile(one, posterior[i], misfits[i]) for i, one in enumerate(measured)]
