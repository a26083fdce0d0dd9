"""``lavps restore``: from measured files to restored ones, with no ground truth anywhere.

Exit codes: 0 all files are restored; 1 nothing could be begun (options, prior); 3 some files failed, each
with a line that says why; 130 interrupted, with every file written so far complete.
"""

from __future__ import annotations

__all__ = ["Restore"]

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from tqdm import tqdm

from ..restoration.files import named, output_names
from ..restoration.job import Job, Workshop
from ..restoration.manifest import Manifest
from ..restoration.measuring import Measuring
from ..restoration.pacing import parse_duration
from ..restoration.presets import Quality
from ..samplers.base import Step
from .failures import FAILURES, fatal, line_of
from .listing import image_files


@dataclass(frozen=True, kw_only=True)
class Restore:
    """Restore measured images: pictures, their uncertainty, and a manifest that says how good they are.

    $ lavps restore photo.png --task sr4 --noise 0.02 --prior zoo/faces64 -o large.png
    $ lavps restore photo.png --mask mask.png --prior zoo/faces64 --samples 4
    $ lavps restore photos/ --kernel kernel.png --prior model.pt --budget 30s --output restored/
    $ lavps restore photo.png --operator my_ops.py:blur --prior zoo/faces64 --quality best

    Exit codes: 0 all files are restored, 1 nothing could be begun, 3 some failed (each says why), 130 Ctrl-C.
    """

    images: Annotated[tuple[Path, ...], tyro.conf.Positional]  # measured files, or folders of them
    prior: str  # model folder, checkpoint of another library (.pt, .pkl, .safetensors, diffusers), or Hub id
    # sr4, inpaint, deblur, denoise, motion-blur, jpeg, ... or file.py:attribute with an operator of your own;
    # left out: what the manifest of lavps degrade beside a file says
    task: Annotated[str | None, tyro.conf.arg(aliases=["--operator"])] = None
    # for inpaint: a picture, white where the image is known, black where it is missing; left out: what is
    # transparent (alpha 0) in the file is missing
    mask: Path | None = None
    kernel: Path | None = None  # for deblur: picture of a point of light, or .npy; its sum is made 1
    # standard deviation of the noise, on the scale on which black is -1 and white +1: 0.05 is 6.4 grey levels
    # of 255; left out: what a manifest of lavps degrade says, else 0.05
    noise: float | None = None
    inference_model: str | None = None  # model folder or Hub id of an inference model of this prior
    samples: int = 1  # pictures of every file; from 2 on with their mean and their uncertainty
    seed: int = 0  # of the sampler's noise
    quality: Quality | None = None  # fast, balanced (default) or best
    budget: str | None = None  # instead: seconds a file (5s, 500ms, 2min); the best that fits is taken
    # folder of what is written, made if missing; for one image also its name, out.png
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("restored")
    batch: int | None = None  # samples at a time; default all; halved where memory runs out
    tile_batch: int = 16  # windows at a time, for images of another size than the prior's; halved likewise
    label: int | None = None  # the class, for a class-conditional prior of another library
    device: str = "auto"  # cpu, cuda, mps; auto takes cuda where there is one

    def run(self) -> None:
        """Restore every file; those that cannot be are listed, and the others are done."""
        with fatal("restore"):
            job = self.job()
            files = image_files(self.images, self.output)
            folder = self._require_names(files)
            workshop = Workshop(job)
            folder.mkdir(parents=True, exist_ok=True)
        failed = self._restore(workshop, files)
        print(f"{len(files) - failed} of {len(files)} files are restored, in {self.output}")
        if failed:
            raise SystemExit(3)

    def job(self) -> Job:
        """What is asked, in plain values."""
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return Job(
            self.prior,
            self.inference_model,
            Measuring(self.task, self.noise, self.mask, self.kernel),
            self.samples,
            self.seed,
            quality=self.quality,
            budget=None if self.budget is None else parse_duration(self.budget),
            batch_size=self.batch,
            tile_batch=self.tile_batch,
            device=device,
            label=self.label,
        )

    def _require_names(self, files: list[Path]) -> Path:
        """The folder that is written to, where no file meets another."""
        taken = {file.resolve(): file for file in files}
        for file in files:
            folder, stem = named(self.output, file)
            if folder != self.output and len(files) > 1:
                raise ValueError(f"--output {self.output} names one picture: name a folder for several")
            for name in output_names(stem, file.suffix.lower(), self.samples):
                place = (folder / name).resolve()
                if place in taken:
                    raise ValueError(f"{taken[place]} and {file} would both be written to {name}: rename one")
                taken[place] = file
        return folder

    def _restore(self, workshop: Workshop, files: list[Path]) -> int:
        """The number of files that failed."""
        failed = 0
        with tqdm(unit="step", disable=None) as bar:
            progress = _Progress(bar, len(files), -(-self.samples // (self.batch or self.samples)))
            try:
                for number, file in enumerate(files):
                    progress.begin(number, file.name)
                    try:
                        _, manifest = workshop.restore(file, self.output, progress)
                        bar.write(_report(file, manifest), file=sys.stdout)
                    except FAILURES as error:
                        failed += 1
                        bar.write(f"{file}: {line_of(error)}", file=sys.stderr)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"interrupted: {number - failed} of {len(files)} files are restored, in {self.output}"
                ) from None
        return failed


class _Progress:
    """The steps of all files in one bar; those to come are taken to have as many as the present one."""

    def __init__(self, bar: tqdm[None], files: int, chunks: int) -> None:
        self.bar, self.files, self.chunks, self.number = bar, files, chunks, 0

    def begin(self, number: int, name: str) -> None:
        """File number so and so is next."""
        self.number, self.done = number, self.bar.n
        self.bar.set_description(f"{number + 1}/{self.files} {name}")

    def __call__(self, step: Step) -> None:
        """One step more."""
        self.bar.total = self.done + (self.files - self.number) * self.chunks * step.total
        self.bar.update()


def _report(file: Path, manifest: Manifest) -> str:
    """What became of a file, for a reader."""
    result = manifest.result
    lines = [f"{file}: {result['verdict']} ({result['seconds']:.1f} s)"]
    if result["advice"]:
        lines.append(f"  {result['advice']}")
    return "\n".join([*lines, *(f"  note: {note}" for note in manifest.notes)])
