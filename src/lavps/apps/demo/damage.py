"""Degradations of the demonstration: what happened to an image."""

from __future__ import annotations

__all__ = ["KINDS", "Damage"]

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from ...operators import AveragePool, Blur, Identity, Mask, Operator
from ...operators.blur import gaussian_kernel
from ...restoration.spec import MeasurementSpec

KINDS = ("noise", "small", "missing", "blur", "jpeg")
_LITTLE = 0.02  # standard deviation of hardly visible noise; JPEG compression is treated like it


@dataclass(frozen=True, eq=False)
class Damage:
    """Degradation of an image.

    Attributes:
        kind: One of KINDS.
        amount: Factor of the reduction, standard deviation of the blur in pixels, or quality of the JPEG file
            (for simulation only).
        noise: Standard deviation of the noise, on the scale on which black is -1 and white is +1; None for an
            estimate.
        mask: Missing pixels, shape (H, W).
    """

    kind: str = "noise"
    amount: float = 2.0
    noise: float | None = None
    mask: npt.NDArray[np.bool_] | None = None

    @staticmethod
    def simulated(kind: str, strength: float, shape: tuple[int, ...]) -> Damage:
        """Return a damage of a strength in [0, 1] for images (C, H, W)."""
        height, width = shape[1:]
        if kind == "noise":
            return Damage(kind, noise=0.05 + 0.45 * strength)
        if kind == "missing":
            margin, mask = 0.4 - 0.25 * strength, np.zeros((height, width), bool)
            rows, columns = int(margin * height), int(margin * width)
            mask[rows : height - rows, columns : width - columns] = True
            return Damage(kind, noise=_LITTLE, mask=mask)
        amounts = {
            "small": 2.0 ** (1 + min(int(3 * strength), 2)),
            "blur": min(height, width) / 64 * (0.5 + 3 * strength),
            "jpeg": round(40 * (1 - strength)) + 5,
        }
        return Damage(kind, amounts[kind], _LITTLE)

    def spec(self, folder: Path) -> MeasurementSpec:
        """Return the measurement of a file; mask and kernel are written to a folder.

        Raises:
            ValueError: Nothing is painted.
        """
        if self.kind == "missing":
            if self.mask is None or not self.mask.any():
                raise ValueError("Paint over the missing parts first.")
            Image.fromarray(np.where(self.mask, 0, 255).astype(np.uint8)).save(folder / "mask.png")
            return MeasurementSpec(mask=folder / "mask.png", noise=self.noise)
        if self.kind == "blur":
            np.save(folder / "kernel.npy", gaussian_kernel(self.amount).squeeze().numpy(), allow_pickle=False)
            return MeasurementSpec(kernel=folder / "kernel.npy", noise=self.noise)
        task = {"noise": "denoise", "small": f"sr{int(self.amount)}", "jpeg": "jpeg"}[self.kind]
        noise = _LITTLE if self.noise is None and self.kind == "jpeg" else self.noise
        return MeasurementSpec(task, noise)

    def operator(self) -> Operator:
        """Return the operator of the simulation; JPEG compression is left to the file."""
        if self.kind == "missing" and self.mask is not None:
            return Mask(torch.from_numpy(~self.mask)[None])
        if self.kind == "blur":
            return Blur(gaussian_kernel(self.amount))
        return AveragePool(int(self.amount)) if self.kind == "small" else Identity()
