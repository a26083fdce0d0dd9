"""Simulated measurements for training, with an operator and a noise per sample."""

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
    """Measure images, y ~ l(. | A x), with A ~ p_op drawn per image as a function of (seed, item).

    Args:
        images: Clean images x, shape (B, C, *spatial).
        items: Ids of the samples, which determine operator and noise.
        family: Distribution p_op of the operators.
        noise: Noise model l.
        seed: Seed of operator and noise.
    """
    operator = family.draw(items, tuple(images.shape[1:]), seed).to(images.device)
    # Under autocast only the networks run in half precision.
    return InverseProblem.simulate(images, in_full_precision(operator, images.device), noise, seed, items)
