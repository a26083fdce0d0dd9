r"""A learned schedule: numbers of its own at every denoiser evaluation, for few of them.

With noise levels :math:`\sigma_0 > \dots > \sigma_{K-1}` (sigma_t / alpha_t) and :math:`x = x_t / \alpha_t`,
the first x is :math:`x' + \sigma_0 z`, where x' is a draw given the measurement and the power spectrum of
images alone (a Wiener filter, no denoiser evaluation). Step k is

1. :math:`x_0 = D(x, \sigma_k)`;
2. :math:`x'` = data step from :math:`x_0` with covariance :math:`C(r_k)`, the measurement perturbed
   (:mod:`lavps.data_step`), and :math:`\hat x_0 = x_0 + w_k (x' - x_0)`;
3. :math:`x \leftarrow \hat x_0 + \sigma_{k+1} (a_k \hat e + b_k z)` with
   :math:`\hat e = (x - \hat x_0) / \sigma_k` and fresh noise z.

The sample is the last :math:`x'`, a full draw from the Gaussian unless ``full_draw`` is off.
WienerPIR is the schedule
:math:`\sigma_0 = \infty`, :math:`r_k = \sigma_k`, :math:`w_k = 1`, :math:`a_k = \sqrt{1 - \zeta}`,
:math:`b_k = \sqrt{\zeta}`.

The numbers are learned by gradients through the sampler (:mod:`lavps.training.tuning`). A schedule for
several operators or noise levels also learns how they change with two properties of the problem
(:class:`~lavps.data_step.schedule_numbers.Trend`), both noise levels of an image: that of the measurement,
and that at which the unobserved part of the image is decided. A missing region is decided at high noise
levels, a missing fine detail at low ones.
"""

from __future__ import annotations

__all__ = ["TunedPIR"]

import math
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..data_step import LARGEST_LEVEL, Covariance, Stationary, data_step
from ..data_step.schedule_numbers import (
    NAMES,
    Properties,
    ScheduleNumbers,
    Trend,
    as_tensors,
    problem_properties,
    rounded,
)
from ..data_step.universal import universal_fields
from ..priors import Prior
from ..random import Purpose
from ..transitions import per_sample
from .base import Progress, Run, Sampler
from .diffpir import WienerPIR


@dataclass(frozen=True)
class TunedPIR(Sampler):
    """Data steps after every denoising, with a learned schedule; biased: x_0 given x_t is taken as Gaussian.

    Reference: this library. The number K of denoiser evaluations is that of the levels.

    Args:
        prior: Denoiser D.
        levels: Noise levels sigma_t / alpha_t of the K evaluations, descending.
        data_levels: K noise levels r of the data step's covariance.
        relaxations: K - 1 factors w of the data step.
        kept: K - 1 factors a of the predicted noise.
        fresh: K - 1 factors b of fresh noise.
        by_noise: Change of the numbers with the noise of the measurement; None for none.
        by_unobserved: Change of the numbers with the noise level of the unobserved part; None for none.
        covariance: Covariance C of x_0 given x_t.
        solver_steps: Maximum number of conjugate-gradient steps of a data step. The first draw, without a
            denoiser evaluation, takes up to ten times as many for images larger than 64 pixels.
        full_draw: Whether the last data step perturbs x_0 too. It makes the draw exact where x_0 given x_t
            is Gaussian, and shows as grain where an image is flat.

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
    by_noise: Trend | None = None
    by_unobserved: Trend | None = None
    covariance: Covariance = Stationary()
    solver_steps: int = 30
    full_draw: bool = True

    def __post_init__(self) -> None:
        steps = len(self.levels)
        if any(later >= earlier for earlier, later in zip(self.levels, self.levels[1:], strict=False)):
            raise ValueError(f"levels must descend: {self.levels}")
        if steps < 1 or min(*self.levels, *self.data_levels) <= 0 or self.solver_steps < 1:
            raise ValueError("levels, data_levels and solver_steps must be positive")
        for part in (self, self.by_noise, self.by_unobserved):
            counts = [] if part is None else [len(getattr(part, name)) for name in NAMES]
            if counts and counts != [steps, steps, steps - 1, steps - 1, steps - 1]:
                wanted = f"{steps} data_levels and {steps - 1} relaxations, kept and fresh"
                raise ValueError(f"{steps} levels need {wanted}: {part}")

    @classmethod
    def universal(cls, prior: Prior, evaluations: int) -> TunedPIR:
        """Return the schedule for any task that comes with the library.

        It was learned for super-resolution, blurs, masks, denoising and JPEG with noise 0.005 to 0.2.

        Args:
            prior: Denoiser D.
            evaluations: Number K of denoiser evaluations, 4 or 8.
        """
        return cls(prior, **universal_fields(evaluations))

    @classmethod
    def like(cls, sampler: WienerPIR) -> TunedPIR:
        """Return a schedule like that of a WienerPIR with perturbed measurements and no relaxation.

        Its levels are those of one evaluation more, without the first: the start from a draw given the
        measurement replaces the evaluation at the highest level.
        """
        if sampler.draw != "measurement" or sampler.relaxation != 1.0:
            raise ValueError(f"a learned schedule starts from draw='measurement' and relaxation=1: {sampler}")
        schedule, longer = sampler.prior.schedule, replace(sampler, num_steps=sampler.num_steps + 1)
        levels = schedule.noise_level(longer.times(schedule)[1:-1]).flip(0)
        steps = (sampler.num_steps - 1,)
        zeta = torch.tensor(sampler.zeta, dtype=torch.float64)
        numbers = ScheduleNumbers(
            levels,
            levels,
            torch.ones(steps),
            (1.0 - zeta).sqrt().expand(steps),
            zeta.sqrt().expand(steps),
        )
        fields: dict[str, Any] = rounded(numbers)
        return cls(sampler.prior, covariance=sampler.covariance, solver_steps=sampler.solver_steps, **fields)

    @property
    def num_steps(self) -> int:
        """Number K of denoiser evaluations."""
        return len(self.levels)

    @property
    def total_steps(self) -> int:
        """One per denoiser evaluation."""
        return len(self.levels)

    def numbers(self, properties: Properties | None) -> ScheduleNumbers:
        """Return the numbers as tensors in float64, for problems with these properties."""
        found = as_tensors(self)
        if properties is None:
            return found
        for trend, value in zip((self.by_noise, self.by_unobserved), properties, strict=True):
            if trend is not None:
                found = found.changed(as_tensors(trend), trend.change(value))
        return found.ordered()

    def steps(self, run: Run) -> Iterator[Progress]:
        """K evaluations with the sampler's own numbers."""
        return self.steps_with(run, self.numbers, self.by_noise is not None or self.by_unobserved is not None)

    def steps_with(
        self, run: Run, numbers: Callable[[Properties | None], ScheduleNumbers], depend: bool
    ) -> Iterator[Progress]:
        """K evaluations; differentiable in the numbers unless gradients are disabled.

        Args:
            run: Run of the sampler.
            numbers: Function that returns the numbers of the schedule.
            depend: Whether it depends on the problems' properties, else its argument is None.
        """
        schedule = run.prior.schedule
        start, properties = self._start(run, depend)
        levels, data_levels, relaxations, kept, fresh = numbers(properties)
        count = len(levels)
        x = start + per_sample(levels[0], start) * run.normal(Purpose.INITIAL)
        del start
        x = run.state.get("x", x)
        for k in range(run.taken, count):
            last, index = k == count - 1, count - k
            t = schedule.time(levels[k])
            x_0 = run.prior.denoise(per_sample(schedule.alpha(t), x) * x, t)
            moved = self._data_step(run, x_0, data_levels[k], index, full=last and self.full_draw)
            if last:
                yield Progress(t.detach(), moved)
                return
            w, a, b = (per_sample(factors[k], x) for factors in (relaxations, kept, fresh))
            estimate = x_0 + w * (moved - x_0)
            del x_0, moved
            noise = a * ((x - estimate) / per_sample(levels[k], x)) + b * run.normal(Purpose.DDIM, index)
            x = estimate + per_sample(levels[k + 1], x) * noise
            del noise
            yield Progress(t.detach(), estimate, state={"x": x})

    def properties(self, run: Run) -> Properties:
        """Return the properties of a run's problems."""
        found = self._start(run, True)[1]
        assert found is not None
        return found

    def _start(self, run: Run, depend: bool) -> tuple[Tensor, Properties | None]:
        """Return a draw given the measurement and the covariance alone, and the problems' properties."""
        problem = run.measured
        blank = problem.like.new_zeros(len(problem), *problem.image_shape)
        level = torch.tensor(LARGEST_LEVEL, dtype=torch.float64)
        # Long waves make the solution slow, and an image larger than 64 pixels has longer ones.
        size = problem.image_shape[1:]
        growth = max(math.prod(size) ** (1.0 / len(size)) / 64.0, 1.0)
        longer = replace(self, solver_steps=math.ceil(self.solver_steps * min(growth**1.5, 10.0)))
        with torch.no_grad():
            drawn = longer._data_step(run, blank, level, 0, full=True)
            if not depend:
                return drawn, None
            noise, probe = (run.normal(Purpose.DATA_STEP, 0, index) for index in (1, 2))
            args = (self.covariance, level, noise, probe, longer.solver_steps)
            return drawn, problem_properties(problem, drawn, *args)

    def _data_step(self, run: Run, x_0: Tensor, level: Tensor, index: int, *, full: bool) -> Tensor:
        """Return the data step with the measurement perturbed; ``full`` perturbs x_0 too."""
        problem = run.measured
        return data_step(
            problem,
            x_0,
            self.covariance,
            level,
            solver_steps=self.solver_steps,
            image_noise=run.normal(Purpose.DATA_STEP, index, 1) if full else None,
            measurement_noise=run.noise.normal(Purpose.DATA_STEP, problem.y.shape[1:], problem.y, index, 0),
        )
