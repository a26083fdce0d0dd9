"""Class-conditional networks with a fixed class."""

from __future__ import annotations

__all__ = ["Labelled", "chosen_label"]

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Labelled(nn.Module):
    """A network evaluated with one class for all images, or with none.

    Args:
        network: Network with the weights.
        call: Map from (network, x, c, labels (B,)) to the prediction; labels are None if ``label`` is.
        label: Class label.
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
        # A buffer, so that priors of different classes have different hashes.
        self.label: Tensor | None
        self.register_buffer("label", None if label is None else torch.tensor(label))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """Return the prediction for noisy images x (B, C, H, W) and conditions c (B,)."""
        labels = None if self.label is None else self.label.expand(len(x))
        return self._call(self.network, x, c, labels)


def chosen_label(label: int | None, classes: int, null: int | None, what: str) -> tuple[int | None, str]:
    """Return the label for a network and its description.

    Args:
        label: Requested label.
        classes: Number of classes, 0 for an unconditional network.
        null: Label of "no class", None if there is none.
        what: Name of the model for error messages.
    """
    if classes == 0:
        if label is not None:
            raise ValueError(f"{what} is not class-conditional: omit label=")
        return None, "unconditional"
    if label is None and null is None:
        raise ValueError(
            f"{what} was trained with {classes} classes and without 'no class': pass label=0..{classes - 1}"
        )
    if label is not None and not 0 <= label < classes:
        raise ValueError(f"{what} has classes 0..{classes - 1}, got label={label}")
    if label is None:
        return null, f"{classes} classes, no class chosen"
    return label, f"class {label} of {classes}"
