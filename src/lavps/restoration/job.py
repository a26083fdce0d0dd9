"""Restoration of files: the models of a configuration, loaded once, and one file after another.

A command makes a :class:`FileRestorer` and gives it files.
"""

from __future__ import annotations

__all__ = ["FileRestorer"]

import hashlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from ..checkpoints import local_copy
from ..checkpoints.hashes import file_hash
from ..evaluation.checks import health, typicality
from ..evaluation.typicality import TypicalityReference
from ..io.atomic import write_atomically
from ..pages.preview import Preview, preview_name
from ..priors import LatentPrior
from ..samplers.base import Step
from .certified import certified_outputs, check_certified
from .config import RestorationConfig
from .doubts import doubts
from .files import RestoredFile, named, output_names, restore_files, suffix_for
from .forecast import RunForecast, evaluation_seconds, forecast
from .manifest import Manifest
from .memory import BatchLimits, predicted_memory, within_memory
from .pacing import PassTimes, data_step_seconds, within_budget
from .presets import chosen, front_for
from .request import differences, request_key, requested
from .restorer import Restorer
from .resume import RunFile, state_name
from .spec import MeasuredFile


class FileRestorer:
    """Models of a job, loaded once; restores files.

    Args:
        job: Configuration.
        restorer: Models of the configuration; default loaded.
    """

    def __init__(self, job: RestorationConfig, restorer: Restorer | None = None) -> None:
        job.measuring.check()
        self.job = job
        self.restorer = restorer or job.load()
        self._folder = local_copy(job.model or job.prior)
        self._at_once = BatchLimits(min(job.batch_size or job.samples, job.samples), job.tile_batch)
        self._paces: dict[tuple[int, ...], PassTimes] = {}
        self._evaluation_seconds: dict[tuple[int, ...], float] = {}
        self._step_seconds: dict[tuple[int, ...], float] = {}

    def forecast(self, file: Path) -> RunForecast:
        """Return size, cost and predicted time of a restoration, without sampling."""
        measured = self.job.measuring.read(file, self.restorer.image_shape)
        restorer, how, _ = self._equipped(measured)
        if self.job.certificate is not None:
            check_certified(self.job.certificate, restorer, measured)
        return self._forecast(file, measured, restorer, how)

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
        folder, stem = named(output, file)

        def request(at_once: BatchLimits) -> Manifest:
            hashes, settings = restorer.hashes, restorer.settings
            return requested(job, hashes, file, folder, measured, settings, how, at_once)

        def state(at_once: BatchLimits) -> RunFile | None:
            name = folder / state_name(stem)
            return None if output is None else RunFile(name, request_key(request(at_once)))

        if announce is not None:
            announce(self._rest(self._forecast(file, measured, restorer, how), state(self._at_once)))
        preview = None
        if output is not None:
            preview = Preview(folder / preview_name(stem), measured.like, restorer.pictures)

        def after(step: Step) -> bool | None:
            if preview is not None:
                preview(step)
            return None if callback is None else callback(step)

        def attempt(at_once: BatchLimits) -> RestoredFile:
            rows, seeds, stored = at_once.rows, [job.seed], state(at_once)
            partial = None if stored is None else stored.partial
            equipped = replace(restorer, tile_batch=at_once.windows, progress=progress, partial=partial)
            with nullcontext() if stored is None else stored.kept():
                return restore_files(
                    equipped, [measured], job.samples, seeds, rows, job.device, after, stored
                )[0]

        try:
            restored, at_once = within_memory(attempt, self._at_once)
        finally:
            if preview is not None:
                preview.remove()
        if at_once != self._at_once:
            notes.append(f"memory ran out: {at_once.rows} sample(s), {at_once.windows} window(s) at a time")
        self._at_once = at_once  # also for the next files
        if restored.is_mean:
            notes.append(
                "an estimate of the posterior mean, smoother than any sample: more --evaluations give one"
            )
        elif job.samples == 1:
            notes.append("one sample is one plausible image: draw more with --samples to see the uncertainty")
        suffix = suffix_for(file, measured.like)
        contents = {} if output is None else restored.outputs(stem, suffix)
        result = restored.result | self._checks(restored)
        if job.certificate is not None:
            images, record = certified_outputs(restored, job.certificate, job.levels, restorer, stem, suffix)
            contents |= {} if output is None else images
            result |= record
        manifest = replace(
            request(at_once),
            result=result,
            outputs={name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
            notes=[*measured.notes, *notes],
        )
        if output is not None:
            contents[output_names(stem, suffix, 1)[-1]] = manifest.encode()
        for name, content in contents.items():
            write_atomically(folder / name, content)
        if (stored := state(at_once)) is not None:
            stored.remove()
        return restored, manifest

    def _checks(self, restored: RestoredFile) -> dict[str, str]:
        """Return the typicality of the first sample, and the health of the sampler, in words."""
        prior, shape = self.restorer.prior, self.restorer.image_shape
        checks = {"health": health(restored.samples)}
        if restored.is_mean or isinstance(prior, LatentPrior):
            return checks
        reference = TypicalityReference.read(local_copy(self.job.prior), self.restorer.hashes[0])
        sample = restored.samples[0].to(self.job.device)
        return checks | {"typicality": typicality(prior, reference, sample, shape)}

    def is_restored(self, file: Path, output: Path) -> bool:
        """Return whether a run with these settings has already written all outputs of a file.

        Raises:
            ValueError: The outputs are those of other settings, or of another input.
        """
        folder, stem = named(output, file)
        path = folder / output_names(stem, "", 1)[-1]
        if not path.exists():
            return False
        written = Manifest.read(path)
        try:
            measured = self.job.measuring.read(file, self.restorer.image_shape)
            restorer, how, _ = self._equipped(measured)
        except (OSError, ValueError):  # which its restoration reports
            return False
        hashes, settings = restorer.hashes, restorer.settings
        request = requested(self.job, hashes, file, folder, measured, settings, how, self._at_once)
        if different := differences(written, request):
            raise ValueError(
                f"{path} holds results of other settings ({', '.join(different)}): choose another folder, "
                "or give --overwrite to replace them"
            )
        outputs = [(folder / name, digest) for name, digest in written.outputs.items()]
        return all(path.is_file() and file_hash(path) == digest for path, digest in outputs)

    def _rest(self, whole: RunForecast, stored: RunFile | None) -> RunForecast:
        """Return the forecast of what is left of an interrupted run, or of the whole run."""
        if stored is None:
            return whole
        state = stored.load()
        if state is None and stored.file.exists():  # damaged, or of another run, and so are its windows
            return whole
        done = stored.partial.windows + (0 if state is None else state.evaluations * whole.windows)
        return whole.continued(done) if done else whole

    def _forecast(
        self, file: Path, measured: MeasuredFile, restorer: Restorer, how: Mapping[str, object]
    ) -> RunForecast:
        job, shape = self.job, measured.problem.image_shape
        found = tuple(doubts(file, measured, restorer.image_shape, job.precision, job.device))
        if isinstance(restorer.prior, LatentPrior):  # the decoder's share is unknown
            return replace(forecast(restorer, measured, job.samples, None), doubts=found)
        if shape not in self._evaluation_seconds:

            def timed(at_once: BatchLimits) -> float:
                sized = replace(restorer, tile_batch=at_once.windows)
                return evaluation_seconds(sized, measured, at_once.rows, job.device, job.compiled)

            self._evaluation_seconds[shape], self._at_once = within_memory(timed, self._at_once)
        if restorer.settings.counts.data_steps and shape not in self._step_seconds:
            self._step_seconds[shape] = data_step_seconds(restorer.prior, measured.problem, 0.5)
        step = self._step_seconds.get(shape, 0.0)
        expected = forecast(restorer, measured, job.samples, self._evaluation_seconds[shape], step)
        predicted = how.get("predicted_seconds")
        seconds = predicted if isinstance(predicted, float) else expected.seconds
        memory = predicted_memory(shape, self._at_once, job.samples) if job.device == "cpu" else None
        return replace(expected, seconds=seconds, memory=memory, doubts=found)

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
