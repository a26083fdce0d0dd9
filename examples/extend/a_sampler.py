"""A sampler of your own: DDIM with an estimate moved towards the measurement."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

from lavps.priors import Prior
from lavps.random import Purpose
from lavps.samplers import Sampler
from lavps.samplers.base import Progress, Run
from lavps.schedule import time_grid
from lavps.transitions import ddim_step, per_sample


@dataclass(frozen=True)
class PulledDDIM(Sampler):
    """x_0 <- D(x_t, t) + score / (curvature + 1 / v), v = (sigma_t / alpha_t)^2."""

    prior: Prior
    _: KW_ONLY
    num_steps: int = 100

    @property
    def total_steps(self) -> int:
        """One per interval of the grid."""
        return self.num_steps

    def steps(self, run: Run) -> Iterator[Progress]:
        """The whole algorithm; noise is a function of (row, purpose, step)."""
        grid, schedule, x, problem = (
            time_grid(self.num_steps),
            run.prior.schedule,
            run.initial(),
            run.measured,
        )
        for k in range(self.num_steps, 0, -1):
            x_0 = run.prior.denoise(x, grid[k])
            ratio = schedule.alpha(grid[k]) / schedule.sigma(grid[k])
            precision = problem.curvature(x_0) + ratio.square().to(x_0)
            x_0 = x_0 + problem.likelihood_score(x_0) / per_sample(precision, x_0)
            if k > 1:
                kernel = ddim_step(schedule, x_0, x, grid[k - 1], grid[k], eta=1.0)
                x = kernel.sample(run.normal(Purpose.DDIM, k))
            yield Progress(grid[k], x_0)
