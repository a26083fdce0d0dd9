"""Which library made a checkpoint: told by the names of its tensors.

A :class:`Layout` states names that every file of its kind has. A file belongs to the layout whose names it
has all of; a file that belongs to none is answered with the nearest layouts and the names that differ, which
is what one needs to see that a wrapper renamed the weights, or that the file is a classifier.
"""

from __future__ import annotations

__all__ = ["Layout", "Loaded", "Options", "UnknownLayoutError", "matching"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base import Prior
from .reading import Checkpoint


@dataclass(frozen=True)
class Options:
    """What a user may say beside the path.

    Attributes:
        label: the class of a class-conditional model; None for no class.
        device: where to put the network.
    """

    label: int | None = None
    device: str | torch.device = "cpu"


@dataclass(frozen=True)
class Loaded:
    """A prior, in one line what was found and what was assumed, and (C, H, W) of its images where known."""

    prior: Prior
    line: str
    image_shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Layout:
    """A kind of checkpoint file.

    Attributes:
        name: of the library or the architecture.
        keys: names of tensors that every such file has.
        load: makes the prior.
        kind: class of the pickled network, for layouts that come as pickles; a file of another kind, or
            none, is not of this layout.
    """

    name: str
    keys: tuple[str, ...]
    load: Callable[[Checkpoint, Options], Loaded]
    kind: str | None = None

    def missing(self, checkpoint: Checkpoint) -> list[str]:
        """The names this checkpoint lacks."""
        found = checkpoint.instance.kind if checkpoint.instance is not None else None
        wrong = [f"(a pickled {self.kind})"] if self.kind is not None and self.kind != found else []
        return [*wrong, *(key for key in self.keys if key not in checkpoint.tensors)]


class UnknownLayoutError(ValueError):
    """No known layout has the names of this file."""


def matching(checkpoint: Checkpoint, layouts: Sequence[Layout]) -> Layout:
    """The layout of a checkpoint.

    Raises:
        UnknownLayoutError: it has none; the message lists the nearest ones and what differs.
    """
    missing = {layout.name: layout.missing(checkpoint) for layout in layouts}
    for layout in layouts:
        if not missing[layout.name]:
            return layout
    nearest = sorted(layouts, key=lambda layout: len(missing[layout.name]) / max(1, len(layout.keys)))[:3]
    lines = [f"{checkpoint.path} has no known layout: {len(checkpoint.tensors)} tensors, the first of them"]
    lines += [f"    {name} {_shape(value)}" for name, value in list(checkpoint.tensors.items())[:4]]
    lines.append("The nearest layouts, and the keys of theirs that this file lacks:")
    for layout in nearest:
        absent = missing[layout.name]
        have = len(layout.keys) - len([key for key in absent if key in layout.keys])
        shown = ", ".join(absent[:4]) + (f", and {len(absent) - 4} more" if len(absent) > 4 else "")
        lines.append(f"    {layout.name}: has {have} of {len(layout.keys)}, lacks {shown}")
    lines.append(
        "If you know the network, build it and use lavps.NetworkPrior(network, schedule, prediction)."
    )
    raise UnknownLayoutError("\n".join(lines))


def _shape(value: Tensor) -> str:
    return "x".join(map(str, value.shape)) or "scalar"
