"""``lavps calibrate``: coverage of a sampler's intervals, their correction, and a certificate of both."""

from __future__ import annotations

__all__ = ["Calibrate"]

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from tqdm import tqdm

from ..checkpoints import local_copy
from ..devices import resolve_device
from ..extras import require
from ..io.arrays import read_kernel, read_mask
from ..io.atomic import write_atomically
from ..operators import Blur, Mask
from ..operators.families import FixedOperator, OperatorFamily
from ..operators.registry import family_from
from ..restoration.certificate import Certificate, task_record
from ..restoration.certify import certify
from ..restoration.presets import Quality, chosen, front_for
from ..restoration.restorer import Restorer
from ..restoration.schedules import TunedSchedule
from ..restoration.spec import MeasurementSpec
from ..samplers import Settings
from .certificate_page import certificate_page, summary
from .draws import images_or_draws, prior_image_shape
from .failures import fatal
from .options import Crop, Device, File, Folder, Model, N, Option, PriorPath, argument

_PRIOR_SEED = 1 << 20  # draws from the prior use other noise than the sampler


@dataclass(frozen=True, kw_only=True)
class Calibrate:
    """Certify the intervals of a sampler, and learn their correction from held-out images.

    $ lavps calibrate --prior zoo/synthfaces64 --task sr4 --noise 0.05 --images held-out/ --evaluations 8
    $ lavps restore photo.png --task sr4 --noise 0.05 --prior zoo/synthfaces64 --certificate C.json

    With --images (never seen in training), prior and sampler are tested together. Without, images are drawn
    from the prior, and the sampler is tested alone. Every image is measured by simulation.
    """

    prior: PriorPath[str]  # Prior: model folder, checkpoint of another library, name in the zoo, or Hub id.
    # Operator: sr4, denoise, motion-blur, ..., or a Python object in a file; inpaint with --mask, deblur with
    # --kernel.
    task: Annotated[str | None, argument(metavar="NAME|FILE.py:NAME", aliases=["--operator"])] = None
    # Standard deviation of the noise, or the lowest and the highest one.
    noise: Annotated[tuple[float, ...], argument(metavar="STD [STD]")]
    # Held-out images like those to restore: a folder, or a tar file; default draws from the prior.
    images: Annotated[Path | None, argument(metavar="FOLDER|TAR")] = None
    # Crops: the centre, resized to the size of the prior, or random windows at native resolution.
    crop: Crop = "centre"
    count: N[int] = 100  # Images used at most; 100 or more can give p values below 0.01.
    mask: File[Path | None] = None  # Mask for inpaint: white where the measurement is known.
    kernel: File[Path | None] = None  # Blur kernel for deblur: image of a point of light, or .npy.
    inference_model: Model[str | None] = None  # Inference model or few-step model of this prior.
    quality: Option[Quality | None] = None  # Preset of quality against cost; default balanced.
    evaluations: N[int | None] = None  # Denoiser evaluations per sample at most, instead of --quality.
    schedule: File[Path | None] = None  # Schedule of lavps tune, instead of --quality.
    samples: N[int] = 19  # Samples per image; 19 are needed for 90 % intervals.
    levels: tuple[float, ...] = (0.5, 0.8, 0.9)  # Levels of the intervals.
    seed: N[int] = 0  # Seed of images, operators, noise and sampler.
    batch_size: N[int] = 19  # Samples per batch.
    output: Annotated[Folder[Path], argument(aliases=["-o"])] = Path("certificate")  # Output folder.
    device: Device[str] = "auto"  # cpu, cuda, mps, xpu, or auto: the first available of cuda, mps, xpu, cpu.

    def run(self) -> None:
        """Certify, write certificate.json and certificate.html, and print the result."""
        with fatal("calibrate"):
            require("jinja2", "report")  # before the work, not after it
            spec = self._spec()
            device = resolve_device(self.device)
            restorer = Restorer.load(self.prior, self.inference_model, device=device)
            shape = prior_image_shape(restorer.prior, "lavps calibrate")
            settings = self._settings(restorer, str(spec.task))
            restorer = replace(restorer, settings=settings)
            family = self._family(shape, spec)
            seed = self.seed if self.images else self.seed + _PRIOR_SEED
            images = images_or_draws(self.images, self.crop, restorer.prior, shape, self.count, seed, device)
            self._require_enough(len(images))
            self.output.mkdir(parents=True, exist_ok=True)
            total = len(images) * self.samples * round(settings.counts.forwards + settings.counts.backwards)
            with tqdm(total=total, desc="calibrate", unit="evaluation", smoothing=0.05, disable=None) as bar:
                evidence = certify(
                    restorer,
                    images,
                    family,
                    (min(self.noise), max(self.noise)),
                    self.samples,
                    sorted(self.levels),
                    self.seed,
                    self.batch_size,
                    device,
                    partial(_advance, bar),
                )
            task, file = task_record(spec)
            certificate = Certificate(
                restorer.hashes[0] or "none",
                restorer.hashes[1],
                task,
                file,
                (min(self.noise), max(self.noise)),
                settings,
                self.samples,
                shape,
                "prior" if self.images is None else "images",
                len(images),
                evidence.corrections,
                evidence.histogram,
                evidence.p_values,
                tuple(tuple(row) for row in torch.cat(evidence.statistics).tolist()),
            )
            certificate.write(self.output / "certificate.json")
            page = certificate_page(certificate, evidence.examples)
            write_atomically(self.output / "certificate.html", page.encode())
        print(summary(certificate))
        print(f"{self.output / 'certificate.html'} shows it, {self.output / 'certificate.json'} holds it")

    def _spec(self) -> MeasurementSpec:
        """Return the measurement; raise ValueError for options that do not fit."""
        if len(self.noise) not in (1, 2) or min(self.noise) <= 0:
            raise ValueError("--noise takes one or two standard deviations above 0: --noise 0.01 0.1")
        spec = MeasurementSpec(self.task, max(self.noise), self.mask, self.kernel).resolved()
        if spec.task == "inpaint" and self.mask is None:
            raise ValueError("inpaint needs the mask: --mask FILE")
        if sum(given is not None for given in (self.quality, self.evaluations, self.schedule)) > 1:
            raise ValueError("give one of --quality, --evaluations and --schedule")
        return spec

    def _require_enough(self, count: int) -> None:
        """Raise ValueError unless samples and images suffice for the levels, before the work."""
        top = max(self.levels)
        if not 0 < min(self.levels) <= top < 1:
            raise ValueError(f"--levels lie between 0 and 1, got {self.levels}")
        needed = max(10, round(1 / (1 - top)))
        if count < needed:
            raise ValueError(f"{count} images are too few for intervals of {top:g}: give at least {needed}")
        if self.samples + 1e-9 < (1 + top) / (1 - top):
            fewest = round((1 + top) / (1 - top))
            raise ValueError(f"intervals of {top:g} need at least {fewest} samples: --samples {fewest}")

    def _settings(self, restorer: Restorer, task: str) -> Settings:
        if self.schedule is not None:
            tuned = TunedSchedule.read(self.schedule)
            for noise in self.noise:
                tuned.check(restorer.hashes[0], task, noise)
            return tuned.settings
        front = front_for(local_copy(self.inference_model or self.prior), restorer.model is not None, task)
        return chosen(front, self.quality, self.evaluations).settings

    def _family(self, shape: tuple[int, ...], spec: MeasurementSpec) -> OperatorFamily:
        if spec.mask is not None:
            known = read_mask(spec.mask)
            if known.shape[1:] != shape[1:]:
                sizes = [" x ".join(map(str, axes[1:])) for axes in (known.shape, shape)]
                raise ValueError(f"the mask has {sizes[0]} pixels, images of the prior {sizes[1]}")
            return FixedOperator(Mask(known))
        if spec.kernel is not None:
            return FixedOperator(Blur(read_kernel(spec.kernel)))
        return family_from(str(spec.task), shape)


def _advance(bar: tqdm[None], evaluations: int) -> None:
    bar.update(evaluations)
