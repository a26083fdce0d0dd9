"""``lavps restore``: measured files to restored files; no ground truth is needed.

Exit codes: 0 all files are restored; 1 the command could not start (options, prior); 3 some files failed,
each with its reason in one line; 130 interrupted, with every file written so far complete.
"""

from __future__ import annotations

__all__ = ["Restore"]

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Annotated

import tyro
from tqdm import tqdm

from ..checkpoints import zoo_model
from ..operators.registry import TASKS
from ..pages.preview import preview_name
from ..restoration.certificate import Certificate
from ..restoration.certified import certified_report, interval_names
from ..restoration.config import RestorationConfig
from ..restoration.files import named, output_names
from ..restoration.forecast import RunForecast
from ..restoration.job import FileRestorer
from ..restoration.manifest import Manifest
from .failures import FAILURES, fatal, line_of, terminable
from .listing import image_files
from .options import File, N, Option, PriorPath, RestorationOptions, argument, parse_duration

_DEFAULT_PRIOR = "photos64"  # of photographs of any content


@dataclass(frozen=True, kw_only=True)
class Restore(RestorationOptions):
    """Restore measured images, with their uncertainty and a manifest of settings, misfit and cost.

    $ lavps restore photo.png --task denoise --noise 0.1
    $ lavps restore photo.png --task sr4 --noise 0.02 --prior zoo/synthfaces64 -o large.png
    $ lavps restore photo.png --mask mask.png --prior zoo/synthfaces64 --samples 4 --dry-run
    $ lavps restore photos/ --kernel kernel.png --prior model.pt --budget 30s --output restored/
    $ lavps restore photo.png --task sr4 --noise 0.05 --certificate certificate/certificate.json --levels 0.9
    $ lavps restore photo.png --operator my_ops.py:blur --prior zoo/synthfaces64 --quality best

    Exit codes: 0 all files are restored, 1 could not start, 3 some failed (with reasons), 130 Ctrl-C.

    Tasks:
    """

    # Model folder, checkpoint of another library (.pt, .pkl, .safetensors, diffusers), name of a model of the
    # installed package lavps-zoo (synthfaces64), or Hub id.
    prior: PriorPath[str] = _DEFAULT_PRIOR
    # Measured files, or folders of them.
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, argument(metavar="FILE|FOLDER ...")]
    # Time per file (5s, 500ms, 2min), instead of --quality; the best preset within it is chosen.
    budget: Annotated[str | None, argument(metavar="TIME")] = None
    # Output folder, created if missing; for one image, also the name of a file (out.png).
    output: Annotated[Path, argument(metavar="FOLDER|FILE", aliases=["-o"])] = Path("restored")
    # Certificate of lavps calibrate: its settings and number of samples are used, interval images are
    # written, and a p value states whether the measurement fits what was certified.
    certificate: File[Path | None] = None
    levels: Option[tuple[float, ...]] = ()  # Levels of the interval images; default those of the certificate.
    dry_run: bool = False  # Size, cost and predicted time of each file, without restoring it.
    # Replacement of results that are already there. Without it, files with results of the same settings are
    # skipped, and results of other settings are an error.
    overwrite: bool = False
    batch_size: N[int | None] = None  # Samples per batch; default all; halved when memory runs out.

    def run(self) -> None:
        """Restore every file, and list the files that fail."""
        with fatal("restore"):
            job = self.job()
            files = image_files(self.images, self.output)
            folder = self._require_names(files, job)
            workshop = FileRestorer(job)
            if not self.dry_run:
                folder.mkdir(parents=True, exist_ok=True)
            missing = self._missing(workshop, files)
        with terminable():
            failed = self._restore(workshop, missing)
        if not self.dry_run:
            kept = "" if len(missing) == len(files) else f" ({len(files) - len(missing)} by an earlier run)"
            print(f"{len(files) - failed} of {len(files)} files are restored, in {self.output}{kept}")
        if failed:
            raise SystemExit(3)

    def job(self) -> RestorationConfig:
        """Return the options in plain values."""
        found = self.prior != _DEFAULT_PRIOR or Path(self.prior).exists() or zoo_model(self.prior) is not None
        if self.images and not found:  # no images are the first mistake
            raise FileNotFoundError(
                f"the default prior {_DEFAULT_PRIOR} is neither a folder here nor a model of the installed "
                "zoo: pip install ./zoo in a checkout, or name a prior with --prior"
            )
        budget = None if self.budget is None else parse_duration(self.budget)
        job = super().job()
        return self._certified(replace(job, budget=budget, batch_size=self.batch_size))

    def _certified(self, job: RestorationConfig) -> RestorationConfig:
        """Return the configuration with the certificate; a single sample becomes its number of samples."""
        if self.certificate is None:
            return replace(job, levels=self.levels)
        certificate = Certificate.read(self.certificate)
        samples = certificate.samples if job.samples == 1 else job.samples
        return replace(job, certificate=certificate, levels=self.levels, samples=samples)

    def _require_names(self, files: list[Path], job: RestorationConfig) -> Path:
        """Return the output folder; raise if an input would be overwritten, or two files share an output."""
        inputs = [
            *files,
            *(file for file in (self.mask, self.kernel, self.schedule, self.certificate) if file is not None),
        ]
        kept, taken = {file.resolve() for file in inputs}, dict[Path, Path]()
        for file in files:
            folder, stem = named(self.output, file)
            if folder != self.output and len(files) > 1:
                raise ValueError(f"--output {self.output} names one image: name a folder for several")
            suffix = file.suffix.lower()
            names = [*output_names(stem, suffix, job.samples), *interval_names(stem, suffix, job.levels)]
            for name in (*names, preview_name(stem)):
                path = (folder / name).resolve()
                if path in kept:
                    raise ValueError(f"--output {self.output} would overwrite the input {folder / name}")
                if path in taken:
                    raise ValueError(f"{taken[path]} and {file} would both be written to {name}: rename one")
                taken[path] = file
        return folder

    def _missing(self, workshop: FileRestorer, files: list[Path]) -> list[Path]:
        """Return the files without outputs of these settings; raise if there are outputs of others."""
        if self.dry_run or self.overwrite:
            return files
        return [file for file in files if not workshop.is_restored(file, self.output)]

    def _restore(self, workshop: FileRestorer, files: list[Path]) -> int:
        """Return the number of files that failed."""
        failed = 0
        with tqdm(unit="evaluation", disable=None) as bar:
            progress = _Progress(bar, len(files))
            try:
                for number, file in enumerate(files):
                    announce = partial(progress.begin, number, file)
                    try:
                        if self.dry_run:
                            bar.write(f"{file}: {workshop.forecast(file)}", file=sys.stdout)
                            continue
                        _, manifest = workshop.restore(
                            file, self.output, announce=announce, progress=progress.advance
                        )
                        bar.write(_report(file, manifest), file=sys.stdout)
                    except BrokenPipeError:
                        raise
                    except FAILURES as error:
                        failed += 1
                        bar.write(f"{file}: {line_of(error)}", file=sys.stderr)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"interrupted: {number - failed} of {len(files)} files are restored, in {self.output}; "
                    "the same command continues"
                ) from None
        return failed


Restore.__doc__ = f"{Restore.__doc__}".rstrip() + "".join(
    f"\n      {n:<24} {line}" for n, line in TASKS.items()
)


class _Progress:
    """One bar for the denoiser evaluations of all files; each is assumed to need as many as the current one.

    For a tiled image, each evaluation of a window counts.
    """

    def __init__(self, bar: tqdm[None], files: int) -> None:
        self.bar, self.files, self.done, self.lock = bar, files, 0, Lock()

    def begin(self, number: int, file: Path, expected: RunForecast) -> None:
        """Print the forecast of the file of this number, and start it."""
        self.bar.write(f"{file}: {expected}", file=sys.stdout)
        self.bar.set_description(f"{number + 1}/{self.files} {file.name}", refresh=False)
        self.bar.total = self.done + (self.files - number) * expected.total
        self.advance(expected.done)
        self.bar.refresh()

    def advance(self, evaluations: int) -> None:
        """Count evaluations, from any thread."""
        with self.lock:
            self.done += evaluations
            self.bar.update(evaluations)


def _report(file: Path, manifest: Manifest) -> str:
    result = manifest.result
    assessment = result["verdict"]
    lines = [f"{file}: {assessment} ({result['seconds']:.1f} s)"]
    lines += [f"  {name}: {result[name]}" for name in ("typicality", "health") if name in result]
    if result["advice"]:
        lines.append(f"  {result['advice']}")
    lines += [f"  {line}" for line in certified_report(result)]
    return "\n".join([*lines, *(f"  note: {note}" for note in manifest.notes)])
