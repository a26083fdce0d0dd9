r"""A learned schedule: WienerPIR with numbers of its own at every denoiser evaluation.

With noise levels :math:`\sigma_0 > \dots > \sigma_{K-1}` (sigma_t / alpha_t) and :math:`x = x_t / \alpha_t`,
step k is

1. :math:`x_0 = D(x, \sigma_k)`;
2. :math:`x'` = data step from :math:`x_0` with covariance :math:`C(r_k)`, the measurement perturbed
   (:mod:`lavps.data_step`), and :math:`\hat x_0 = x_0 + w_k (x' - x_0)`;
3. :math:`x \leftarrow \hat x_0 + \sigma_{k+1} (a_k \hat e + b_k z)` with
   :math:`\hat e = (x - \hat x_0) / \sigma_k` and fresh noise z.

The sample is the last :math:`x'`, a full draw from the Gaussian. WienerPIR is the schedule
:math:`r_k = \sigma_k`, :math:`w_k = 1`, :math:`a_k = \sqrt{1 - \zeta}`, :math:`b_k = \sqrt{\zeta}`. The
numbers are learned by gradients through the sampler (:mod:`lavps.training.tuning`).
"""

from __future__ import annotations

__all__ = ["ScheduleNumbers", "TunedPIR"]

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..data_step import LARGEST_LEVEL, Covariance, Stationary, data_step
from ..priors import Prior
from ..random import Purpose
from .base import Progress, Run, Sampler
from .diffpir import WienerPIR


class ScheduleNumbers(NamedTuple):
    """The numbers of a schedule of K evaluations, as tensors.

    Attributes:
        levels: Noise levels, descending, (K,).
        data_levels: Noise levels r of the data step's covariance, (K,).
        relaxations: Factors w of the data step, (K - 1,).
        kept: Factors a of the predicted noise, (K - 1,).
        fresh: Factors b of fresh noise, (K - 1,).
    """

    levels: Tensor
    data_levels: Tensor
    relaxations: Tensor
    kept: Tensor
    fresh: Tensor


@dataclass(frozen=True)
class TunedPIR(Sampler):
    """WienerPIR with a learned schedule; biased: x_0 given x_t is taken as Gaussian.

    Reference: this library. The number K of denoiser evaluations is that of the levels.

    Args:
        prior: Denoiser D.
        levels: Noise levels sigma_t / alpha_t of the K evaluations, descending.
        data_levels: K noise levels r of the data step's covariance.
        relaxations: K - 1 factors w of the data step.
        kept: K - 1 factors a of the predicted noise.
        fresh: K - 1 factors b of fresh noise.
        covariance: Covariance C of x_0 given x_t.
        solver_steps: Maximum number of conjugate-gradient steps of a data step.

    Example:
        >>> import torch, lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> pooling, noise = lavps.operators.AveragePool(2), lavps.GaussianNoise(0.1)
        >>> problem = lavps.InverseProblem(torch.zeros(1, 1, 2, 2), pooling, noise)
        >>> lavps.TunedPIR.like(lavps.WienerPIR(prior, num_steps=5)).sample(problem).trace.forwards
        5.0
    """

    prior: Prior
    _: KW_ONLY
    levels: tuple[float, ...]
    data_levels: tuple[float, ...]
    relaxations: tuple[float, ...]
    kept: tuple[float, ...]
    fresh: tuple[float, ...]
    covariance: Covariance = Stationary()
    solver_steps: int = 30

    def __post_init__(self) -> None:
        steps = len(self.levels)
        if any(later >= earlier for earlier, later in zip(self.levels, self.levels[1:], strict=False)):
            raise ValueError(f"levels must descend: {self.levels}")
        if steps < 1 or min(*self.levels, *self.data_levels) <= 0 or self.solver_steps < 1:
            raise ValueError("levels, data_levels and solver_steps must be positive")
        counts = [len(values) for values in (self.data_levels, self.relaxations, self.kept, self.fresh)]
        if counts != [steps, steps - 1, steps - 1, steps - 1]:
            raise ValueError(
                f"{steps} levels need {steps} data_levels and {steps - 1} relaxations, kept and fresh: {self}"
            )

    @classmethod
    def like(cls, sampler: WienerPIR) -> TunedPIR:
        """Return the schedule of a WienerPIR with perturbed measurements and no relaxation.

        The first noise level, which can be infinite, becomes 80.
        """
        if sampler.draw != "measurement" or sampler.relaxation != 1.0:
            raise ValueError(f"a learned schedule starts from draw='measurement' and relaxation=1: {sampler}")
        schedule = sampler.prior.schedule
        levels = schedule.noise_level(sampler.times(schedule)[1:]).flip(0).clamp(max=LARGEST_LEVEL)
        steps = (sampler.num_steps - 1,)
        zeta = torch.tensor(sampler.zeta, dtype=torch.float64)
        numbers = ScheduleNumbers(
            levels,
            levels,
            torch.ones(steps),
            (1.0 - zeta).sqrt().expand(steps),
            zeta.sqrt().expand(steps),
        )
        return cls.of(sampler.prior, numbers, sampler.covariance, sampler.solver_steps)

    @classmethod
    def of(
        cls, prior: Prior, numbers: ScheduleNumbers, covariance: Covariance, solver_steps: int = 30
    ) -> TunedPIR:
        """Return the sampler with the numbers of tensors."""
        values = {
            name: tuple(float(f"{value:.5g}") for value in tensor.detach().tolist())
            for name, tensor in numbers._asdict().items()
        }
        return cls(prior, covariance=covariance, solver_steps=solver_steps, **values)

    @property
    def num_steps(self) -> int:
        """Number K of denoiser evaluations."""
        return len(self.levels)

    @property
    def total_steps(self) -> int:
        """One per denoiser evaluation."""
        return len(self.levels)

    @property
    def numbers(self) -> ScheduleNumbers:
        """The numbers as tensors, float64."""
        values = (getattr(self, name) for name in ScheduleNumbers._fields)
        return ScheduleNumbers(*(torch.tensor(value, dtype=torch.float64) for value in values))

    def steps(self, run: Run) -> Iterator[Progress]:
        """K evaluations with the sampler's own numbers."""
        return self.steps_with(run, self.numbers)

    def steps_with(self, run: Run, numbers: ScheduleNumbers) -> Iterator[Progress]:
        """K evaluations with these numbers; differentiable in them unless gradients are disabled."""
        schedule, problem, count = run.prior.schedule, run.measured, len(numbers.levels)
        levels, data_levels, relaxations, kept, fresh = numbers
        x = run.state["x"] if run.state else levels[0].to(problem.like.dtype) * run.normal(Purpose.INITIAL)
        for k in range(run.taken, count):
            last, index = k == count - 1, count - k
            t = schedule.time(levels[k])
            x_0 = run.prior.denoise(schedule.alpha(t).to(x.dtype) * x, t)
            moved = data_step(
                problem,
                x_0,
                self.covariance,
                data_levels[k],
                solver_steps=self.solver_steps,
                image_noise=run.normal(Purpose.DATA_STEP, index, 1) if last else None,
                measurement_noise=run.noise.normal(
                    Purpose.DATA_STEP, problem.y.shape[1:], problem.y, index, 0
                ),
            )
            if last:
                yield Progress(t.detach(), moved)
                return
            w, a, b = (factors[k].to(x.dtype) for factors in (relaxations, kept, fresh))
            estimate = x_0 + w * (moved - x_0)
            predicted = (x - estimate) / levels[k].to(x.dtype)
            noise = a * predicted + b * run.normal(Purpose.DDIM, index)
            x = estimate + levels[k + 1].to(x.dtype) * noise
            yield Progress(t.detach(), estimate, state={"x": x})
