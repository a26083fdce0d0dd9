"""A job of restoration: plain values that say how files are restored, and the workshop that does it.

A :class:`Job` pickles; a :class:`Workshop` holds what it loads, once, and restores one file after another. A
command, a service or a worker of a cluster makes a workshop and gives it files.
"""

from __future__ import annotations

__all__ = ["Job", "Workshop"]

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ..priors import LatentPrior
from ..priors.foreign import local_copy
from ..samplers.base import Step
from .files import ITEM, RestoredFile, named, output_names, restore_file, suffix_for
from .manifest import Manifest, file_record, model_record, verdict, versions
from .measuring import Measured, Measuring
from .memory import AtOnce, within_memory
from .pacing import Pace, within_budget
from .presets import Quality, Settings, front_for, of_quality
from .restorer import Restorer
from .writing import write_atomically


@dataclass(frozen=True)
class Job:
    """How files are restored.

    Attributes:
        prior: model folder, checkpoint of another library, or Hub id.
        model: folder or Hub id of an inference model.
        measuring: how the files were measured.
        samples: N of every file.
        seed: of the sampler's noise.
        settings: of the sampler; default what quality or budget choose.
        quality: "fast", "balanced" or "best"; default "balanced".
        budget: seconds a file, instead of a quality.
        batch_size: samples at a time; default all. Where memory runs out it is halved, and so is the next.
        tile_batch: windows at a time.
        device: where to compute.
        label: the class, for a class-conditional prior of another library.
    """

    prior: str
    model: str | None = None
    measuring: Measuring = Measuring()
    samples: int = 1
    seed: int = 0
    settings: Settings | None = None
    quality: Quality | None = None
    budget: float | None = None
    batch_size: int | None = None
    tile_batch: int = 16
    device: str = "cpu"
    label: int | None = None

    def __post_init__(self) -> None:
        if self.samples < 1 or self.tile_batch < 1 or (self.batch_size or 1) < 1:
            raise ValueError("numbers of samples, rows and windows must be at least 1")
        if self.quality is not None and self.budget is not None:
            raise ValueError("give --quality or --budget, not both: a budget chooses the best that fits it")


class Workshop:
    """What a job needs, loaded; restores files.

    Args:
        job: how.
    """

    def __init__(self, job: Job) -> None:
        job.measuring.check()
        self.job = job
        self.restorer = Restorer.load(
            job.prior, job.model, job.settings, job.device, job.tile_batch, job.label
        )
        self._folder = local_copy(job.model or job.prior)
        self._at_once = AtOnce(min(job.batch_size or job.samples, job.samples), job.tile_batch)
        self._paces: dict[tuple[int, ...], Pace] = {}

    def restore(
        self, file: Path, output: Path | None = None, callback: Callable[[Step], bool | None] | None = None
    ) -> tuple[RestoredFile, Manifest]:
        """Restore a file, and write what came of it, the manifest last.

        Args:
            file: the measurement.
            output: a folder, or the name (out.png) of the restored picture, which the names of the files
                beside it then begin with; None writes nothing.
            callback: called after every step; a true return value stops.
        """
        job = self.job
        measured = job.measuring.read(file, self.restorer.image_shape)
        restorer, chosen, notes = self._equipped(measured)

        def attempt(at_once: AtOnce) -> RestoredFile:
            equipped = replace(restorer, tile_batch=at_once.windows)
            return restore_file(equipped, measured, job.samples, job.seed, at_once.rows, job.device, callback)

        restored, at_once = within_memory(attempt, self._at_once)
        if at_once != self._at_once:
            notes.append(f"memory ran out: {at_once.rows} sample(s), {at_once.windows} window(s) at a time")
        self._at_once = at_once  # of files to come, too
        (folder, stem), suffix = named(output, file), suffix_for(file, measured.like)
        contents = {} if output is None else restored.outputs(stem, suffix)
        if job.samples == 1:
            notes.append("one sample is one plausible picture and has no spread: take more samples to see it")
        manifest = self._manifest(file, folder, restored, restorer.settings, chosen)
        manifest = replace(
            manifest,
            outputs={name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
            notes=[*measured.notes, *notes],
        )
        if output is not None:
            contents[output_names(stem, suffix, 1)[-1]] = manifest.encode()
        for name, content in contents.items():
            write_atomically(folder / name, content)
        return restored, manifest

    def _equipped(self, measured: Measured) -> tuple[Restorer, dict[str, object], list[str]]:
        """The restorer with the settings for this file, how they were chosen, and what to say of it."""
        job = self.job
        if job.settings is not None:
            return self.restorer, {}, []
        latent = isinstance(self.restorer.prior, LatentPrior)
        front = front_for(self._folder, job.model is not None, measured.measuring.task, latent)
        if job.budget is None:
            quality = job.quality or "balanced"
            return self.restorer.using(of_quality(front, quality)), {"quality": quality}, []
        shape = measured.problem.image_shape
        if shape not in self._paces:
            problem = measured.problem.to(job.device)

            def timed(at_once: AtOnce) -> Pace:
                restorer = replace(self.restorer, tile_batch=at_once.windows)
                return restorer.pace(problem, job.samples, at_once.rows)

            self._paces[shape], self._at_once = within_memory(timed, self._at_once)
        seconds = [self._paces[shape].predict(entry) for entry in front]
        index, fits = within_budget(front, seconds, job.budget)
        notes = []
        if not fits:
            notes.append(
                f"no settings fit {job.budget:g} s: the cheapest were taken, about {seconds[index]:.2g} s"
            )
        chosen: dict[str, object] = {"budget": job.budget, "predicted_seconds": seconds[index]}
        return self.restorer.using(front[index]), chosen, notes

    def _manifest(
        self, file: Path, folder: Path, restored: RestoredFile, settings: Settings, chosen: dict[str, object]
    ) -> Manifest:
        job, measured, trace = self.job, restored.measured, restored.posterior.trace
        how, hashes = measured.measuring, self.restorer.hashes
        script = Path(how.task.rpartition(":")[0]) if how.task and ".py:" in how.task else None
        return Manifest(
            input={
                **(file_record(file, folder) or {}),
                "sha256": measured.sha256,
                "measurement_shape": list((measured.grey or measured.problem).y.shape[1:]),
            },
            measurement={
                "task": how.task,
                "script": file_record(script, folder),
                "noise": how.noise,
                "mask": file_record(how.mask, folder),
                "kernel": file_record(how.kernel, folder),
                "drawn": None if how.drawn is None else asdict(how.drawn),
                "image_shape": list(measured.problem.image_shape),
            },
            prior=model_record(job.prior, hashes[0], folder) or {},
            model=model_record(job.model, hashes[1], folder),
            settings=settings.to_dict(),
            sampling={
                "samples": job.samples,
                "seed": job.seed,
                "item": ITEM,
                "batch_size": self._at_once.rows,
                "tile_batch": self._at_once.windows,
                "label": job.label,
                **chosen,
            },
            machine={"device": job.device, "threads": torch.get_num_threads(), "versions": versions()},
            result={
                "chi_square": restored.chi_square,
                "verdict": verdict(restored.chi_square, how.noise or 0.0),
                "acceptance": restored.acceptance,
                "forwards": trace.forwards,
                "backwards": trace.backwards,
                "model_forwards": trace.model_forwards,
                "seconds": trace.seconds,
                "advice": trace.advice,
                "samples_sha256": restored.samples_sha256,
            },
            outputs={},
            notes=[],
        )
