"""The measurements a model is trained on: an operator and a noise of its own for every sample."""

from __future__ import annotations

__all__ = ["measure"]

from collections.abc import Sequence

import torch
from torch import Tensor

from ..noise import NoiseModel
from ..operators.families import OperatorFamily
from ..operators.precision import in_full_precision
from ..problem import InverseProblem


@torch.no_grad()
def measure(
    images: Tensor, items: Sequence[int], family: OperatorFamily, noise: NoiseModel, seed: int
) -> InverseProblem:
    """y ~ l(. | A x) with A ~ p_op drawn per image, a function of (seed, item).

    Args:
        images: clean images x (B, C, *spatial).
        items: the samples' ids, which decide operator and noise.
        family: p_op.
        noise: l.
        seed: of both.
    """
    operator = family.draw(items, tuple(images.shape[1:]), seed).to(images.device)
    # Trained under autocast, only the networks are to be in half precision.
    return InverseProblem.simulate(images, in_full_precision(operator, images.device), noise, seed, items)
