"""What a worker does: a batch of files in, their restored content and records out. Nothing of Ray in here."""

from __future__ import annotations

__all__ = ["Batch", "BatchRestorer", "Finished", "named_outputs", "shape_of"]

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import numpy as np
import torch
from PIL import Image

from ..arrays import is_array
from ..files import RestoredFile, restore_files, suffix_for
from ..measuring import Measured
from ..pictures import comparison, uncertainty_panel
from ..restorer import Restorer
from ..stacking import alike
from ..writing import encode_image
from .recipe import Recipe
from .records import Record
from .sources import Item

FAILURES = (OSError, ValueError, TypeError, RuntimeError, ArithmeticError, MemoryError)


@dataclass(frozen=True)
class Batch:
    """Items of one partition to be sampled together, with their keys."""

    partition: str
    items: tuple[Item, ...]
    keys: tuple[str, ...]
    digests: tuple[str, ...]


@dataclass(frozen=True)
class Finished:
    """What became of an item: its record, and the content of what is to be written."""

    record: Record
    outputs: dict[str, bytes]


def shape_of(content: bytes) -> str:
    """What files that may share a batch have in common, read off their headers."""
    try:
        if is_array(content):
            file = io.BytesIO(content)
            np.lib.format.read_magic(file)
            return f"array {np.lib.format.read_array_header_1_0(file)[:2]}"
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "TIFF", "WEBP")) as image:
            grey = image.mode in ("1", "L", "LA", "I;16", "I;16B")
            return f"{image.size} {'grey' if grey else 'colour'}"
    except Exception:  # whatever a damaged file raises: decoding it in full will tell
        return "unreadable"


def named_outputs(name: str, restored: RestoredFile) -> dict[str, bytes]:
    """The files written for an item: its own name, or one name a sample.

    ``a.png`` becomes ``a.png``, or ``a.1.png`` ... ``a.mean.png`` and ``a.uncertainty.png`` of several.
    A format other than the name says is appended to it, so that two items never share a name.
    """
    like, samples = restored.measured.like, restored.samples
    path = PurePosixPath(name)
    suffix = suffix_for(path, like)
    stem = name[: -len(path.suffix)] if suffix == path.suffix.lower() else name
    suffix = path.suffix if suffix == path.suffix.lower() else suffix
    if len(samples) == 1:
        return {f"{stem}{suffix}": encode_image(samples[0], like, like.format)}
    pictures = {str(number): picture for number, picture in enumerate(samples, start=1)}
    pictures["mean"] = samples.mean(0)
    outputs = {f"{stem}.{end}{suffix}": encode_image(x, like, like.format) for end, x in pictures.items()}
    shown = samples.mean(1, keepdim=True) if like.channels == 1 else samples
    top = stem if suffix.lower() == ".png" else name
    outputs[f"{top}.uncertainty.png"] = comparison([uncertainty_panel(shown.std(0), len(samples))])
    return outputs


class BatchRestorer:
    """Restores batches; loads the models when the first one comes.

    Args:
        recipe: how.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._restorer: Restorer | None = None

    @property
    def restorer(self) -> Restorer:
        """What samples, loaded once; refused where the models are not those of the recipe."""
        if self._restorer is None:
            self.recipe.verify()
            job = self.recipe.job
            self._restorer = Restorer.load(
                job.prior, job.model, self.recipe.settings(None), job.device, job.tile_batch, job.label
            )
        return self._restorer

    def run(self, batch: Batch) -> list[Finished]:
        """Restore all that can be; the others have a reason."""
        finished: dict[int, Finished] = {}
        groups: dict[object, list[tuple[int, Measured]]] = {}
        for index, item in enumerate(batch.items):
            measured = self._measured(item)
            if isinstance(measured, Measured):
                groups.setdefault(alike(measured), []).append((index, measured))
            else:
                lasting = not isinstance(measured, MemoryError)
                finished[index] = self._failed(batch, index, measured, lasting)
        for group in groups.values():
            finished |= self._sampled(batch, group)
        return [finished[index] for index in range(len(batch.items))]

    def _measured(self, item: Item) -> Measured | BaseException:
        """The problem that an item poses, or why it poses none."""
        if item.content is None:
            return OSError(item.problem)
        how, shape = self.recipe.job.measuring, self.restorer.image_shape
        try:
            return how.read_content(item.content, item.record, shape)
        except FAILURES as error:
            return error

    def _sampled(self, batch: Batch, group: Sequence[tuple[int, Measured]]) -> dict[int, Finished]:
        """A group at once; where that fails, in halves, down to the item that is to blame."""
        job, task = self.recipe.job, group[0][1].measuring.task
        restorer = replace(self.restorer, settings=self.recipe.settings(task))
        seeds = [self.recipe.seed(batch.digests[index]) for index, _ in group]
        try:
            restored = restore_files(
                restorer, [one for _, one in group], job.samples, seeds, job.batch_size, job.device
            )
        except FAILURES as error:
            if len(group) == 1:
                return {group[0][0]: self._failed(batch, group[0][0], error, lasting=False)}
            del error  # it holds the tensors of the batch alive
        else:
            return {
                index: self._encoded(batch, index, one, len(group))
                for (index, _), one in zip(group, restored, strict=True)
            }
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        middle = len(group) // 2
        return self._sampled(batch, group[:middle]) | self._sampled(batch, group[middle:])

    def _encoded(self, batch: Batch, index: int, restored: RestoredFile, together: int) -> Finished:
        item, trace = batch.items[index], restored.posterior.trace
        try:
            outputs = named_outputs(item.name, restored)
        except FAILURES as error:
            return self._failed(batch, index, error, lasting=True)
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

    def _failed(self, batch: Batch, index: int, error: BaseException, lasting: bool) -> Finished:
        item = batch.items[index]
        reason = " ".join(str(error).split()) or type(error).__name__
        record = Record(
            item.name,
            batch.partition,
            "failed",
            batch.keys[index],
            reason[:500],
            lasting and item.content is not None,
            sha256=batch.digests[index],
        )
        return Finished(record, {})
