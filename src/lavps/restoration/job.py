"""A job of restoration: the configuration in plain values, and the object that restores them.

A :class:`RestorationConfig` pickles. A :class:`FileRestorer` loads its models once and restores one file
after another. A command, a service or a worker of a cluster makes one and gives it files.
"""

from __future__ import annotations

__all__ = ["FileRestorer", "RestorationConfig"]

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ..checkpoints import local_copy
from ..io.atomic import write_atomically
from ..priors import LatentPrior
from ..priors.precision import Precision
from ..samplers import Settings
from ..samplers.base import Step
from .certificate import Certificate
from .certified import certified_outputs, check_certified
from .degraded import script_of
from .files import ITEM, RestoredFile, named, output_names, restore_files, suffix_for
from .forecast import RunForecast, evaluation_seconds, forecast
from .manifest import Manifest, assessment, file_record, model_record, versions
from .memory import BatchLimits, within_memory
from .pacing import PassTimes, within_budget
from .presets import Quality, chosen, front_for
from .preview import Preview, preview_name
from .restorer import Restorer
from .schedules import TunedSchedule
from .spec import MeasuredFile, MeasurementSpec


@dataclass(frozen=True)
class RestorationConfig:
    """Configuration of a restoration.

    Attributes:
        prior: Model folder, checkpoint of another library, or Hub id.
        model: Folder or Hub id of an inference model.
        measuring: Measurement of the files.
        samples: Number of samples per file.
        seed: Seed of the sampler's noise.
        settings: Settings of the sampler, instead of the next four.
        schedule: Learned schedule, instead of the next three.
        quality: "fast", "balanced" or "best"; default "balanced".
        evaluations: Maximum number of denoiser evaluations per sample, instead of a quality.
        budget: Seconds per file, instead of a quality.
        batch_size: Samples per batch; default all. When memory runs out, this and the next are halved.
        tile_batch: Windows per denoiser call.
        device: Device of the computation.
        label: Class, for a class-conditional prior of another library.
        precision: Precision of the prior's network.
        compiled: Whether the prior's network is compiled.
        certificate: Certificate whose settings are used and whose intervals are written.
        levels: Levels of the intervals; default those of the certificate.

    Example:
        >>> spec = MeasurementSpec("sr4", noise=0.02)
        >>> RestorationConfig("zoo/faces64", measuring=spec, samples=4).quality is None
        True
    """

    prior: str
    model: str | None = None
    measuring: MeasurementSpec = MeasurementSpec()
    samples: int = 1
    seed: int = 0
    settings: Settings | None = None
    schedule: TunedSchedule | None = None
    quality: Quality | None = None
    evaluations: int | None = None
    budget: float | None = None
    batch_size: int | None = None
    tile_batch: int = 16
    device: str = "cpu"
    label: int | None = None
    precision: Precision = "fp32"
    compiled: bool = False
    certificate: Certificate | None = None
    levels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.samples < 1 or self.tile_batch < 1 or (self.batch_size or 1) < 1:
            raise ValueError("samples, batch_size and tile_batch must be at least 1")
        costs = (self.schedule, self.quality, self.evaluations, self.budget)
        if sum(given is not None for given in costs) > 1:
            raise ValueError("give one of --quality, --evaluations, --schedule and --budget")
        if self.schedule is not None and self.model is not None:
            raise ValueError("give --schedule or --inference-model: a learned schedule uses no model")
        if self.certificate is not None:
            self._take_certificate(self.certificate, any(given is not None for given in costs))
        elif self.levels:
            raise ValueError("--levels needs --certificate: run lavps calibrate")

    def _take_certificate(self, certificate: Certificate, has_cost: bool) -> None:
        if self.precision != "fp32" or self.label is not None:
            raise ValueError("a certificate holds for --precision fp32 and no --label")
        levels = self.levels or tuple(found.level for found in certificate.corrections)
        for level in levels:
            certificate.scale(level, self.samples)
        object.__setattr__(self, "levels", levels)
        if not has_cost and self.settings is None:
            object.__setattr__(self, "settings", certificate.settings)

    def load(self, settings: Settings | None = None) -> Restorer:
        """Load the models, with other settings if they are given."""
        return Restorer.load(
            self.prior,
            self.model,
            settings or self.settings,
            self.device,
            self.tile_batch,
            self.label,
            self.precision,
            self.compiled,
        )


class FileRestorer:
    """Models of a job, loaded once; restores files.

    Args:
        job: Configuration.
    """

    def __init__(self, job: RestorationConfig) -> None:
        job.measuring.check()
        self.job = job
        self.restorer = job.load()
        self._folder = local_copy(job.model or job.prior)
        self._at_once = BatchLimits(min(job.batch_size or job.samples, job.samples), job.tile_batch)
        self._paces: dict[tuple[int, ...], PassTimes] = {}
        self._evaluation_seconds: dict[tuple[int, ...], float] = {}

    def forecast(self, file: Path) -> RunForecast:
        """Return size, cost and predicted time of a restoration, without sampling."""
        measured = self.job.measuring.read(file, self.restorer.image_shape)
        restorer, how, _ = self._equipped(measured)
        if self.job.certificate is not None:
            check_certified(self.job.certificate, restorer, measured)
        return self._forecast(measured, restorer, how)

    def restore(
        self,
        file: Path,
        output: Path | None = None,
        callback: Callable[[Step], bool | None] | None = None,
        *,
        announce: Callable[[RunForecast], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[RestoredFile, Manifest]:
        """Restore a file, and write the outputs, the manifest last.

        Args:
            file: Measurement.
            output: Folder, or name (out.png) of the restored image, whose stem all outputs share; None writes
                nothing.
            callback: Function called after every step; a true return value stops the sampler.
            announce: Function called with the forecast, before sampling.
            progress: Function called with the number of new denoiser evaluations (:class:`Restorer`).

        A run that takes long refreshes a preview beside the outputs, which is removed at the end.
        """
        job = self.job
        measured = job.measuring.read(file, self.restorer.image_shape)
        restorer, how, notes = self._equipped(measured)
        if job.certificate is not None:
            check_certified(job.certificate, restorer, measured)
        if announce is not None:
            announce(self._forecast(measured, restorer, how))
        folder, stem = named(output, file)
        preview = None
        if output is not None:
            preview = Preview(folder / preview_name(stem), measured.like, restorer.pictures)

        def after(step: Step) -> bool | None:
            if preview is not None:
                preview(step)
            return None if callback is None else callback(step)

        def attempt(at_once: BatchLimits) -> RestoredFile:
            equipped = replace(restorer, tile_batch=at_once.windows, progress=progress)
            rows, device = at_once.rows, job.device
            return restore_files(equipped, [measured], job.samples, [job.seed], rows, device, after)[0]

        try:
            restored, at_once = within_memory(attempt, self._at_once)
        finally:
            if preview is not None:
                preview.remove()
        if at_once != self._at_once:
            notes.append(f"memory ran out: {at_once.rows} sample(s), {at_once.windows} window(s) at a time")
        self._at_once = at_once  # also for the next files
        suffix = suffix_for(file, measured.like)
        contents = {} if output is None else restored.outputs(stem, suffix)
        if job.samples == 1:
            notes.append("one sample is one plausible image: draw more with --samples to see the uncertainty")
        manifest = self._manifest(file, folder, restored, restorer.settings, how)
        if job.certificate is not None:
            images, record = certified_outputs(restored, job.certificate, job.levels, restorer, stem, suffix)
            contents |= {} if output is None else images
            manifest = replace(manifest, result=manifest.result | record)
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

    def _forecast(self, measured: MeasuredFile, restorer: Restorer, how: Mapping[str, object]) -> RunForecast:
        job, shape = self.job, measured.problem.image_shape
        if isinstance(restorer.prior, LatentPrior):  # the decoder's share is unknown
            return forecast(restorer, measured, job.samples, None)
        if shape not in self._evaluation_seconds:

            def timed(at_once: BatchLimits) -> float:
                sized = replace(restorer, tile_batch=at_once.windows)
                return evaluation_seconds(sized, measured, at_once.rows, job.device, job.compiled)

            self._evaluation_seconds[shape], self._at_once = within_memory(timed, self._at_once)
        expected = forecast(restorer, measured, job.samples, self._evaluation_seconds[shape])
        predicted = how.get("predicted_seconds")
        return replace(expected, seconds=predicted) if isinstance(predicted, float) else expected

    def _equipped(self, measured: MeasuredFile) -> tuple[Restorer, Mapping[str, object], list[str]]:
        """Return the restorer with the settings of this file, how they were chosen, and notes."""
        job = self.job
        if job.settings is not None:
            return self.restorer, {}, []
        if job.schedule is not None:
            spec = measured.measuring
            job.schedule.check(self.restorer.hashes[0], spec.task, spec.noise)
            return replace(self.restorer, settings=job.schedule.settings), {}, []
        latent = isinstance(self.restorer.prior, LatentPrior)
        front = front_for(self._folder, job.model is not None, measured.measuring.task, latent)
        if job.budget is None:
            quality = {"quality": job.quality or "balanced"}
            how = quality if job.evaluations is None else {"evaluations": job.evaluations}
            return self.restorer.using(chosen(front, job.quality, job.evaluations)), how, []
        shape = measured.problem.image_shape
        if shape not in self._paces:
            problem = measured.problem.to(job.device)

            def timed(at_once: BatchLimits) -> PassTimes:
                restorer = replace(self.restorer, tile_batch=at_once.windows)
                return restorer.pace(problem, job.samples, at_once.rows)

            self._paces[shape], self._at_once = within_memory(timed, self._at_once)
        seconds = [self._paces[shape].predict(entry) for entry in front]
        index, fits = within_budget(front, seconds, job.budget)
        cheapest = f"no settings fit {job.budget:g} s: the cheapest were taken, about {seconds[index]:.2g} s"
        within = {"budget": job.budget, "predicted_seconds": seconds[index]}
        return self.restorer.using(front[index]), within, [] if fits else [cheapest]

    def _manifest(
        self, file: Path, folder: Path, restored: RestoredFile, settings: Settings, how: Mapping[str, object]
    ) -> Manifest:
        job, measured, trace = self.job, restored.measured, restored.posterior.trace
        spec, hashes = measured.measuring, self.restorer.hashes
        return Manifest(
            input={
                **(file_record(file, folder) or {}),
                "sha256": measured.sha256,
                "measurement_shape": list((measured.grey or measured.problem).y.shape[1:]),
            },
            measurement={
                "task": spec.task,
                "script": file_record(script_of(spec.task), folder),
                "noise": spec.noise,
                "noise_uncertainty": None if measured.estimate is None else measured.estimate.uncertainty,
                "keep_known": spec.keep_known,
                "mask": file_record(spec.mask, folder),
                "kernel": file_record(spec.kernel, folder),
                "drawn": None if spec.drawn is None else asdict(spec.drawn),
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
                "precision": job.precision,
                "compiled": job.compiled,
                **how,
            },
            machine={"device": job.device, "threads": torch.get_num_threads(), "versions": versions()},
            result={
                "chi_square": restored.chi_square,
                "verdict": assessment(restored.chi_square, spec.noise or 0.0),
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
