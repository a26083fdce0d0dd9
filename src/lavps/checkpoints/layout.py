"""Recognition of checkpoint layouts by the names of their tensors.

A :class:`Layout` lists tensor names that every file of its kind has. A file that matches no layout raises an
error that lists the closest layouts and the names that differ: the file may be a classifier, or a wrapper may
have renamed its weights.
"""

from __future__ import annotations

__all__ = ["Layout", "LoadOptions", "Loaded", "UnknownLayoutError", "matching"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..priors.protocol import Prior
from .reading import Checkpoint

# Modules of the networks of diffusers; its folders are read in diffusers.py.
_DIFFUSERS = ("down_blocks.", "mid_block.", "up_blocks.", "transformer_blocks.")


@dataclass(frozen=True)
class LoadOptions:
    """Options of loading.

    Attributes:
        label: Class label of a class-conditional model; None for no class.
        device: Device of the network.
    """

    label: int | None = None
    device: str | torch.device = "cpu"


@dataclass(frozen=True)
class Loaded:
    """A prior, one line that states what was found and assumed, and the image shape (C, H, W) if known."""

    prior: Prior
    line: str
    image_shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Layout:
    """A kind of checkpoint file.

    Attributes:
        name: Name of the library or architecture.
        keys: Tensor names that every such file has.
        load: Function that builds the prior.
        kind: Class of the pickled network, for layouts stored as pickles; other files do not match.
    """

    name: str
    keys: tuple[str, ...]
    load: Callable[[Checkpoint, LoadOptions], Loaded]
    kind: str | None = None

    def missing(self, checkpoint: Checkpoint) -> list[str]:
        """Return the names that this checkpoint lacks."""
        found = checkpoint.instance.kind if checkpoint.instance is not None else None
        wrong = [f"(a pickled {self.kind})"] if self.kind is not None and self.kind != found else []
        return [*wrong, *(key for key in self.keys if key not in checkpoint.tensors)]


class UnknownLayoutError(ValueError):
    """A file that matches no supported layout."""


def matching(checkpoint: Checkpoint, layouts: Sequence[Layout]) -> Layout:
    """Return the layout of a checkpoint.

    Raises:
        UnknownLayoutError: No layout matches; the message lists the closest ones and the differences.
    """
    missing = {layout.name: layout.missing(checkpoint) for layout in layouts}
    for layout in layouts:
        if not missing[layout.name]:
            return layout
    if any(name.startswith(_DIFFUSERS) for name in checkpoint.tensors):
        raise UnknownLayoutError(
            f"{checkpoint.path} holds weights of diffusers without their configuration: pass the folder with "
            "its config.json (or, for a pipeline, model_index.json), not the file"
        )
    closest = sorted(layouts, key=lambda layout: len(missing[layout.name]) / max(1, len(layout.keys)))[:3]
    lines = [
        f"{checkpoint.path} matches no supported layout: {len(checkpoint.tensors)} tensors, the first are"
    ]
    for name, value in list(checkpoint.tensors.items())[:4]:
        lines.append(f"    {name} {'x'.join(map(str, value.shape)) or 'scalar'}")
    lines.append("The closest layouts, and the keys that this file lacks:")
    for layout in closest:
        absent = missing[layout.name]
        have = len(layout.keys) - len([key for key in absent if key in layout.keys])
        shown = ", ".join(absent[:4]) + (f", and {len(absent) - 4} more" if len(absent) > 4 else "")
        lines.append(f"    {layout.name}: has {have} of {len(layout.keys)}, lacks {shown}")
    lines.append("For a known network use lavps.NetworkPrior(network, schedule, prediction).")
    raise UnknownLayoutError("\n".join(lines))
