"""Problems of several files as one: what can be sampled at once is.

A batch of N equals N single runs, so which files share one is a matter of speed alone.
"""

from __future__ import annotations

__all__ = ["alike", "stacked"]

from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..noise import GaussianNoise, NoiseModel
from ..operators import Blur, Mask, Operator
from ..problem import InverseProblem
from .measuring import Measured


def alike(measured: Measured) -> Hashable:
    """Files of which this is the same can be stacked: shapes, and an operator shared or with rows."""
    problem, how = measured.problem, measured.measuring
    same: Hashable = (how.task, how.mask, how.kernel, how.drawn)
    if isinstance(problem.operator, Mask):
        same = "masks"
    elif isinstance(problem.operator, Blur):
        same = (problem.operator.padding, problem.operator.kernel.shape, problem.operator.batched)
    return (how.task, tuple(problem.y.shape), problem.y.dtype, problem.image_shape, same)


def stacked(problems: Sequence[InverseProblem]) -> InverseProblem:
    """Problems of one item each, of files that are :func:`alike`, as one with a row for each."""
    if len(problems) == 1:
        return problems[0]
    first = problems[0]
    y = torch.cat([problem.y for problem in problems])
    operator = _operator([problem.operator for problem in problems], first)
    return InverseProblem(y, operator, _noise([problem.noise for problem in problems]), first.in_shape)


def _operator(operators: Sequence[Operator], problem: InverseProblem) -> Operator:
    masks = [operator for operator in operators if isinstance(operator, Mask)]
    if len(masks) == len(operators):
        shape = problem.y.shape[1:]
        masked = [(mask.mask if mask.batched else mask.mask.expand(shape)[None]) for mask in masks]
        return operators[0] if _equal(masked) else Mask(_joined(masked), batched=True)
    blurs = [operator for operator in operators if isinstance(operator, Blur)]
    if len(blurs) == len(operators):
        kernels = [blur.kernel if blur.batched else blur.kernel[None] for blur in blurs]
        return blurs[0] if _equal(kernels) else replace(blurs[0], kernel=torch.cat(kernels), batched=True)
    return operators[0]  # of one task and one draw: the same


def _joined(masks: Sequence[Tensor]) -> Tensor:
    """One mask a row, of one channel where none has more."""
    most = max(mask.shape[1] for mask in masks)
    return torch.cat([mask.expand(-1, most, *mask.shape[2:]) for mask in masks])


def _equal(tensors: Sequence[Tensor]) -> bool:
    return all(torch.equal(tensor, tensors[0]) for tensor in tensors[1:])


def _noise(noises: Sequence[NoiseModel]) -> NoiseModel:
    if all(noise == noises[0] for noise in noises[1:]):
        return noises[0]
    stds = [float(noise.std) for noise in noises if isinstance(noise, GaussianNoise)]
    return GaussianNoise(torch.tensor(stds, dtype=torch.float64))
