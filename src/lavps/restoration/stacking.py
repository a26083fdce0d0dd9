"""Batches of files: inverse problems stacked into one.

A batch of N files equals N single runs; batches change only the speed.
"""

from __future__ import annotations

__all__ = ["batch_key", "stacked"]

from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..noise import GaussianNoise, Noiseless, NoiseModel
from ..operators import JPEG, Blur, Mask, Operator
from ..problem import InverseProblem
from .spec import MeasuredFile


def batch_key(measured: MeasuredFile) -> Hashable:
    """Return the key of a file's batch; files with equal keys can be stacked."""
    problem, how = measured.problem, measured.measuring
    same: Hashable = (how.task, how.mask, how.kernel, how.drawn)
    if isinstance(problem.operator, Mask):
        same = "masks"
    elif isinstance(problem.operator, Blur):
        same = (problem.operator.padding, problem.operator.kernel.shape, problem.operator.batched)
    elif isinstance(problem.operator, JPEG):
        same = problem.operator
    exact = (isinstance(problem.noise, Noiseless), problem.keep_known)
    return (how.task, tuple(problem.y.shape), problem.y.dtype, problem.image_shape, same, exact)


def stacked(problems: Sequence[InverseProblem]) -> InverseProblem:
    """Stack problems of one item each, with equal keys (:func:`batch_key`), into one with a row for each."""
    if len(problems) == 1:
        return problems[0]
    first = problems[0]
    y = torch.cat([problem.y for problem in problems])
    operator = _operator([problem.operator for problem in problems], first)
    noise = _noise([problem.noise for problem in problems])
    return InverseProblem(y, operator, noise, first.in_shape, first.keep_known)


def _operator(operators: Sequence[Operator], problem: InverseProblem) -> Operator:
    masks = [operator for operator in operators if isinstance(operator, Mask)]
    if len(masks) == len(operators):
        shape = problem.y.shape[1:]
        masked = [(mask.mask if mask.batched else mask.mask.expand(shape)[None]) for mask in masks]
        if _equal(masked):
            return operators[0]
        most = max(mask.shape[1] for mask in masked)  # one channel if no mask has more
        return Mask(torch.cat([mask.expand(-1, most, *mask.shape[2:]) for mask in masked]), batched=True)
    blurs = [operator for operator in operators if isinstance(operator, Blur)]
    if len(blurs) == len(operators):
        kernels = [blur.kernel if blur.batched else blur.kernel[None] for blur in blurs]
        return blurs[0] if _equal(kernels) else replace(blurs[0], kernel=torch.cat(kernels), batched=True)
    return operators[0]  # all equal: one task, one draw


def _equal(tensors: Sequence[Tensor]) -> bool:
    return all(torch.equal(tensor, tensors[0]) for tensor in tensors[1:])


def _noise(noises: Sequence[NoiseModel]) -> NoiseModel:
    if all(noise == noises[0] for noise in noises[1:]):
        return noises[0]
    stds = [float(noise.std) for noise in noises if isinstance(noise, GaussianNoise)]
    return GaussianNoise(torch.tensor(stds, dtype=torch.float64))
