"""The numbers of a learned schedule (:class:`~lavps.TunedPIR`), and their dependence on the problem."""

from __future__ import annotations

__all__ = [
    "NAMES",
    "Properties",
    "ScheduleNumbers",
    "Trend",
    "as_tensors",
    "problem_properties",
    "rounded",
]

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..operators.linalg import inner
from ..problem import InverseProblem
from ..transitions import per_sample
from . import LARGEST_LEVEL, Covariance, newton_step

_SMALLEST_RATIO = 1.02  # of neighbouring noise levels
_LOWEST_LEVEL = 1e-4
_UNIT_NOISE = 0.1  # noise of the measurement for the property of the operator
_TOLERANCE = 1e-5  # error of the solution for that property, in standard deviations
NAMES = ("levels", "data_levels", "relaxations", "kept", "fresh")


class ScheduleNumbers(NamedTuple):
    """The numbers of a schedule of K evaluations, as tensors, for all rows or with a last axis of rows.

    Attributes:
        levels: Noise levels, descending, (K,) or (K, B).
        data_levels: Noise levels r of the data step's covariance, (K,) or (K, B).
        relaxations: Factors w of the data step, (K - 1,) or (K - 1, B).
        kept: Factors a of the predicted noise, (K - 1,) or (K - 1, B).
        fresh: Factors b of fresh noise, (K - 1,) or (K - 1, B).
    """

    levels: Tensor
    data_levels: Tensor
    relaxations: Tensor
    kept: Tensor
    fresh: Tensor

    def changed(self, slopes: ScheduleNumbers, change: Tensor) -> ScheduleNumbers:
        """Return the numbers after a change (B,) in the logarithm of a property, one column per row.

        Levels have exponents as their slopes, the other numbers plain slopes.
        """
        columns = [value if value.ndim == 2 else value[:, None] for value in self]
        steps = [slope[:, None] * change for slope in slopes]
        scaled = [
            value * step.exp() if index < 2 else value + step
            for index, (value, step) in enumerate(zip(columns, steps, strict=True))
        ]
        return ScheduleNumbers(*scaled)

    def ordered(self) -> ScheduleNumbers:
        """Return the numbers with levels that are in range and descend."""
        levels = [self.levels[0].clamp(_LOWEST_LEVEL * _SMALLEST_RATIO ** len(self.levels), LARGEST_LEVEL)]
        for level in self.levels[1:]:
            levels.append(torch.minimum(level, levels[-1] / _SMALLEST_RATIO).clamp(min=_LOWEST_LEVEL))
        data_levels = self.data_levels.clamp(_LOWEST_LEVEL, LARGEST_LEVEL)
        return self._replace(levels=torch.stack(levels), data_levels=data_levels)


class Properties(NamedTuple):
    """Properties of problems that a schedule may depend on, (B,) each: noise levels of an image.

    Attributes:
        noise: Noise of the measurement, in units of the image.
        unobserved: Standard deviation of the image given its power spectrum and a measurement with noise
            0.1, in the directions where it is large: a property of the operator alone.
    """

    noise: Tensor
    unobserved: Tensor


def problem_properties(
    problem: InverseProblem,
    x: Tensor,
    covariance: Covariance,
    noise_level: Tensor,
    image_noise: Tensor,
    probe: Tensor,
    solver_steps: int,
) -> Properties:
    """Return the properties of problems, linearized at x: one solution by conjugate gradients.

    Args:
        problem: Problems, B rows.
        x: Images (B, C, *spatial).
        covariance: Covariance of images.
        noise_level: Noise level of the covariance, the largest one for that of all images.
        image_noise: Standard normal images, from which images are drawn.
        probe: Standard normal images.
        solver_steps: Maximum number of conjugate-gradient steps.
    """
    hessian = problem.gauss_newton_product(x)
    image = covariance.product(noise_level, x, 0.5)(image_noise)
    entries = problem.y[0].numel() / image[0].numel()
    noise = _ratio(entries * inner(image, image), inner(image, hessian(image)))
    scale = per_sample((noise / _UNIT_NOISE).square(), x)
    del image
    reduced, _ = newton_step(
        lambda u: scale * hessian(u), probe, covariance, noise_level, solver_steps, _TOLERANCE
    )
    return Properties(noise, _ratio(inner(reduced, reduced), inner(probe, reduced)))


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the square root of a ratio, on the CPU in float64."""
    return (numerator.double() / denominator.double().clamp(min=1e-30)).sqrt().cpu()


@dataclass(frozen=True)
class Trend:
    """How the numbers of a schedule change with a property of the problem.

    With c = log(property / reference), levels are multiplied by exp(slope c), and the other numbers
    have slope c added. Beyond the range of the tuning the property counts as its nearest end.

    Args:
        reference: Value at which the numbers hold unchanged.
        lowest: Lowest value in the tuning.
        highest: Highest value in the tuning.
        levels: K exponents.
        data_levels: K exponents.
        relaxations: K - 1 slopes.
        kept: K - 1 slopes.
        fresh: K - 1 slopes.
    """

    reference: float
    lowest: float
    highest: float
    levels: tuple[float, ...]
    data_levels: tuple[float, ...]
    relaxations: tuple[float, ...]
    kept: tuple[float, ...]
    fresh: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.reference <= self.highest:
            raise ValueError(f"a trend needs 0 < lowest <= reference <= highest: {self}")

    def change(self, value: Tensor) -> Tensor:
        """Return log(value / reference), with the value limited to the range of the tuning."""
        return (value.double().clamp(self.lowest, self.highest) / self.reference).log()


def as_tensors(part: object) -> ScheduleNumbers:
    """Return the five tuples of a schedule or of its trend as tensors, float64."""
    return ScheduleNumbers(*(torch.tensor(getattr(part, name), dtype=torch.float64) for name in NAMES))


def rounded(numbers: ScheduleNumbers) -> dict[str, tuple[float, ...]]:
    """Return numbers as tuples with five digits, by name."""
    return {
        name: tuple(float(f"{value:.5g}") for value in tensor.detach().tolist())
        for name, tensor in numbers._asdict().items()
    }
