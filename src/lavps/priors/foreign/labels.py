"""Class-conditional networks as networks of an image and a time alone."""

from __future__ import annotations

__all__ = ["Labelled", "chosen_label"]

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Labelled(nn.Module):
    """A network called with one class for every image, or with none.

    Args:
        network: what holds the weights.
        call: maps (network, x, c, labels (B,)) to the prediction; labels are None where ``label`` is.
        label: the class.
    """

    def __init__(
        self,
        network: nn.Module,
        call: Callable[[nn.Module, Tensor, Tensor, Tensor | None], Tensor],
        label: int | None,
    ) -> None:
        super().__init__()
        self.network = network
        self._call = call
        # A buffer, so that priors of two classes have two hashes.
        self.label: Tensor | None
        self.register_buffer("label", None if label is None else torch.tensor(label))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """The prediction for noisy images x (B, C, H, W) under conditions c (B,)."""
        labels = None if self.label is None else self.label.expand(len(x))
        return self._call(self.network, x, c, labels)


def chosen_label(label: int | None, classes: int, null: int | None, what: str) -> tuple[int | None, str]:
    """The label a network is called with, and how to say so.

    Args:
        label: what the user asked for.
        classes: number of classes, 0 for none.
        null: the label that stands for "no class", None where there is none.
        what: names the model in errors.
    """
    if classes == 0:
        if label is not None:
            raise ValueError(f"{what} knows no classes: leave label= out")
        return None, "unconditional"
    if label is None and null is None:
        raise ValueError(
            f"{what} was trained with {classes} classes and none for 'no class': say label=0..{classes - 1}"
        )
    if label is not None and not 0 <= label < classes:
        raise ValueError(f"{what} has classes 0..{classes - 1}, got label={label}")
    return (
        (null, f"{classes} classes, no class chosen")
        if label is None
        else (label, f"class {label} of {classes}")
    )
