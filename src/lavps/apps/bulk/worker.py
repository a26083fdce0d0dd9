"""Restoration of one batch of files to encoded images and records, independent of Ray."""

from __future__ import annotations

__all__ = ["Batch", "BatchRestorer", "Finished", "named_outputs", "shape_of"]

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import torch
from PIL import Image

from ...io.decode import array_header, is_array
from ...io.encode import encode_image
from ...pages.panels import comparison, uncertainty_panel
from ...restoration.files import RestoredFile, restore_files, suffix_for
from ...restoration.restorer import Restorer
from ...restoration.spec import MeasuredFile
from ...restoration.stacking import batch_key
from .recipe import Recipe
from .records import Record
from .sources import Item

FAILURES = (OSError, ValueError, TypeError, RuntimeError, ArithmeticError, MemoryError)


@dataclass(frozen=True)
class Batch:
    """Items of one partition to sample together, with their keys and content hashes."""

    partition: str
    items: tuple[Item, ...]
    keys: tuple[str, ...]
    digests: tuple[str, ...]


@dataclass(frozen=True)
class Finished:
    """A processed item: its record, and the contents of the files to write."""

    record: Record
    outputs: dict[str, bytes]


def shape_of(content: bytes) -> str:
    """Return size and colour mode from the header of a file; files of one batch have the same."""
    try:
        if is_array(content):
            return f"array {array_header(content)[:2]}"
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "TIFF", "WEBP")) as image:
            grey = image.mode in ("1", "L", "LA", "I;16", "I;16B")
            return f"{image.size} {'grey' if grey else 'colour'}"
    except Exception:  # decoding reports what is damaged
        return "unreadable"


def named_outputs(name: str, restored: RestoredFile) -> dict[str, bytes]:
    """Return the files to write for an item, by name.

    One sample of ``a.png`` is written to ``a.png``; several are written to ``a.1.png``, ``a.2.png``, ...,
    ``a.mean.png`` and ``a.uncertainty.png``. If the format differs from the suffix, the suffix of the
    format is appended, so that two items never share a name.
    """
    like, samples = restored.measured.like, restored.samples
    path = PurePosixPath(name)
    suffix = suffix_for(path, like)
    stem = name
    if suffix == path.suffix.lower():
        stem, suffix = name[: -len(path.suffix)], path.suffix
    if len(samples) == 1:
        return {f"{stem}{suffix}": encode_image(samples[0], like, like.format)}
    images = {str(number): x for number, x in enumerate(samples, start=1)} | {"mean": samples.mean(0)}
    outputs = {f"{stem}.{end}{suffix}": encode_image(x, like, like.format) for end, x in images.items()}
    shown = samples.mean(1, keepdim=True) if like.channels == 1 else samples
    top = stem if suffix.lower() == ".png" else name
    outputs[f"{top}.uncertainty.png"] = comparison([uncertainty_panel(shown.std(0), len(samples))])
    return outputs


class BatchRestorer:
    """Restores batches; the models are loaded with the first batch.

    Args:
        recipe: Models, settings and seed.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._restorer: Restorer | None = None

    @property
    def restorer(self) -> Restorer:
        """The restorer, loaded at first use; raises an error if the models are not those of the recipe."""
        if self._restorer is None:
            self.recipe.verify()
            self._restorer = self.recipe.job.load(self.recipe.settings(None))
        return self._restorer

    def run(self, batch: Batch) -> list[Finished]:
        """Restore a batch; items that fail have a reason in their record."""
        finished: dict[int, Finished] = {}
        groups: dict[object, list[tuple[int, MeasuredFile]]] = {}
        for index, item in enumerate(batch.items):
            measured = self._measured(item)
            if isinstance(measured, MeasuredFile):
                groups.setdefault(batch_key(measured), []).append((index, measured))
            else:
                finished[index] = _failed(batch, index, measured, not isinstance(measured, MemoryError))
        for group in groups.values():
            finished |= self._sampled(batch, group)
        return [finished[index] for index in range(len(batch.items))]

    def _measured(self, item: Item) -> MeasuredFile | BaseException:
        """Return the inverse problem of an item, or the error that prevents it."""
        if item.content is None:
            return OSError(item.problem)
        job, restorer = self.recipe.job, self.restorer
        try:
            measured = job.measuring.read_content(item.content, item.record, restorer.image_shape)
            if job.schedule is not None:
                job.schedule.check(restorer.hashes[0], measured.measuring.task, measured.measuring.noise)
            return measured
        except FAILURES as error:
            return error

    def _sampled(self, batch: Batch, group: Sequence[tuple[int, MeasuredFile]]) -> dict[int, Finished]:
        """Restore a group at once; if that fails, bisect it down to the items that fail."""
        job, task = self.recipe.job, group[0][1].measuring.task
        restorer = replace(self.restorer, settings=self.recipe.settings(task))
        seeds = [self.recipe.seed(batch.digests[index]) for index, _ in group]
        try:
            restored = restore_files(
                restorer, [one for _, one in group], job.samples, seeds, job.batch_size, job.device
            )
        except FAILURES as error:
            if len(group) == 1:
                return {group[0][0]: _failed(batch, group[0][0], error, lasting=False)}
            del error  # its traceback keeps the tensors of the batch alive
        else:
            return {
                index: _encoded(batch, index, one, len(group))
                for (index, _), one in zip(group, restored, strict=True)
            }
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        middle = len(group) // 2
        return self._sampled(batch, group[:middle]) | self._sampled(batch, group[middle:])


def _encoded(batch: Batch, index: int, restored: RestoredFile, together: int) -> Finished:
    item, trace = batch.items[index], restored.posterior.trace
    try:
        outputs = named_outputs(item.name, restored)
    except FAILURES as error:
        return _failed(batch, index, error, lasting=True)
    record = Record(
        item.name,
        batch.partition,
        "ok",
        batch.keys[index],
        outputs={name: len(content) for name, content in outputs.items()},
        sha256=batch.digests[index],
        chi_square=sum(restored.chi_square) / len(restored.chi_square),
        acceptance=restored.acceptance,
        forwards=trace.forwards,
        backwards=trace.backwards,
        seconds=trace.seconds,
        batch=together,
        notes=restored.measured.notes,
    )
    return Finished(record, outputs)


def _failed(batch: Batch, index: int, error: BaseException, lasting: bool) -> Finished:
    item, key, digest = batch.items[index], batch.keys[index], batch.digests[index]
    reason = (" ".join(str(error).split()) or type(error).__name__)[:500]
    lasting = lasting and item.content is not None
    return Finished(Record(item.name, batch.partition, "failed", key, reason, lasting, sha256=digest), {})
