"""A context and its objective."""

from __future__ import annotations

from torch import Tensor

import lavps
from lavps.schedule import as_time
from lavps.variational import Context, Objective
from support.problems import images, network_prior, pooling_problem


def context(batch: int = 3, s: float | Tensor = 0.3, t: float | Tensor = 0.4) -> Context:
    problem = pooling_problem(batch)
    return Context(
        images(batch, seed=1), images(batch, seed=2), as_time(s), as_time(t), problem, lavps.VPLinear()
    )


def objective(c: Context, prior: lavps.Prior | None = None) -> Objective:
    def noise(index: int) -> Tensor:
        return 2 * images(len(c.x_0), seed=100 + index).to(c.x_0)

    return Objective(prior or network_prior(), c, noise)
