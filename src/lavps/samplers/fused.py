r"""FusedPIR: the denoiser is given x_t and y in one noisy image.

WienerPIR denoises :math:`x_t`, and y corrects the result. But y often shows the image better than
:math:`x_t` does, as a blurred photograph with little noise: details that the denoiser could not see come back
with the noise of y. Here both are fused before the denoiser (:mod:`lavps.data_step.fusion`), and the steps
start with noise of the level 4 r around the Wiener estimate of y: above it y decides.

This is for measurements that show all pixels about equally well: denoising, blur, super-resolution by 2.
Where r is above 0.35, pixels are hidden, the operator is nonlinear or the noise not Gaussian, the sampler is
WienerPIR.

Reference: this library.
"""

from __future__ import annotations

__all__ = ["FusedPIR"]

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from ..data_step import data_step, shows_all_alike
from ..data_step.fusion import Fusion
from ..data_step.levels import FLAT, equivalent_level
from ..random import Purpose
from ..schedule import evaluation_times
from ..transitions import per_sample
from .base import Run
from .diffpir import WienerPIR

_SHARP = 0.35  # level r up to which x_t and y are fused
_START, _RANGE = 4.0, 16.0  # first noise level over r; least ratio of the first level to the last


@dataclass(frozen=True)
class FusedPIR(WienerPIR):
    """WienerPIR whose denoiser is given the measurement too; no training, no derivative of the denoiser.

    Biased: images are no stationary Gaussian process. The fields are those of :class:`lavps.WienerPIR`. Where
    x_t and y are fused, the last step draws as the others do, and ``fused_zeta`` is the fraction of fresh
    noise in place of ``zeta``; with more of it samples vary too little.

    Example:
        >>> import torch, lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> problem = lavps.InverseProblem(torch.ones(1, 1, 4, 4), lavps.operators.Identity(), noise=0.1)
        >>> lavps.FusedPIR(prior, num_steps=5).sample(problem).trace.forwards
        5.0
    """

    _: KW_ONLY
    fused_zeta: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.fused_zeta <= 1:
            raise ValueError(f"fused_zeta must be in [0, 1]: {self}")

    def start(self, run: Run) -> tuple[Tensor, Tensor]:
        """Return noise and WienerPIR's times, in rows to fuse those of this module."""
        x, grid = super().start(run)
        level = self._level(run)
        if not bool((sharp := level.isfinite()).any()):
            return x, grid
        schedule, blank = run.prior.schedule, torch.zeros_like(x)
        first = torch.where(sharp, _START * level / (1.0 + _START * level), 1.0)
        last = (first / _RANGE).clamp(max=self.last_time or self.num_steps**-self.grid_power)
        own = evaluation_times(schedule, self.num_steps, self.grid_power, last, first)
        wiener = data_step(run.measured, blank, self.covariance, FLAT, solver_steps=self.solver_steps)
        alpha, sigma = (per_sample(c, x) for c in schedule.coefficients(own[-1]))
        chosen = per_sample(sharp, x).bool()
        noisy = alpha * wiener + sigma * run.normal(Purpose.INITIAL)
        return torch.where(chosen, noisy, x), torch.where(sharp, own, grid[:, None])

    def estimate(self, run: Run, x_t: Tensor, t: Tensor, step: int) -> Tensor:
        """Return the data step from the denoised image, in rows to fuse with y in the denoiser's input."""
        level = self._level(run)
        if not bool((sharp := level.isfinite()).any()):
            return super().estimate(run, x_t, t, step)
        schedule, y = run.prior.schedule, run.measured.y
        chosen = per_sample(sharp, x_t).bool()
        s = torch.where(sharp, schedule.noise_level(t), 1.0)
        u = torch.where(chosen, x_t / per_sample(schedule.alpha(t), x_t), 0.0)
        fusion = Fusion(run.measured, u, s, level, self.covariance, self.solver_steps)
        fused, at = fusion.fused(), torch.where(sharp, schedule.time(fusion.fused_level), t)
        x_0 = run.prior.denoise(torch.where(chosen, per_sample(schedule.alpha(at), u) * fused, x_t), at)
        measurement_noise = image_noise = None
        if self.draw != "none":
            measurement_noise = run.noise.normal(Purpose.DATA_STEP, y.shape[1:], y, step, 0)
        if self.draw == "full":
            image_noise = run.normal(Purpose.DATA_STEP, step, 1)
        moved = fusion.data_step(x_0, fused, measurement_noise, image_noise)
        if not bool(sharp.all()):
            moved = torch.where(chosen, moved, self.moved(run, x_0, t, step))
        return self.relaxed(run, x_0, moved, t)

    def fresh_noise(self, run: Run) -> float | Tensor:
        """Return the fraction of fresh noise."""
        sharp = self._level(run).isfinite()
        return torch.where(sharp, self.fused_zeta, self.zeta) if bool(sharp.any()) else self.zeta

    def _level(self, run: Run) -> Tensor:
        """Return the level r of y, (B,); infinite for rows that are not fused; computed once per run."""
        key = ("level", self.covariance, self.solver_steps, run.noise)
        return run.measured.cached(key, lambda: self._computed_level(run))

    def _computed_level(self, run: Run) -> Tensor:
        problem, probe = run.measured, run.normal(Purpose.PROBE)
        if not problem.is_linear_gaussian:
            return torch.full((len(problem),), torch.inf, dtype=torch.float64)
        level = equivalent_level(problem, probe, self.covariance, probe, self.solver_steps)
        alike = shows_all_alike(problem.gauss_newton_product(probe)(torch.ones_like(probe)))
        return torch.where((level <= _SHARP) & alike.to(level.device), level, torch.inf)
