r"""Supervised posterior sampling: DDIM with a denoiser that is conditioned on the measurement.

.. math:: D(x_t, t \,|\, y, A) \approx E[x_0 \,|\, x_t, y]

is the posterior's own denoiser, so the unconditional sampler samples the posterior: no likelihood, no
gradient. Exact in the limit of a perfect denoiser and many steps; biased wherever the training saw nothing
like this operator, without any sign of it. It is the baseline of the paper's out-of-distribution table.

References:
    - Saharia et al., Palette: Image-to-Image Diffusion Models, 2022.
    - Elata et al., InvFussion: Bridging Supervised and Zero-shot Diffusion for Inverse Problems, 2025.
"""

from __future__ import annotations

__all__ = ["PosteriorDenoiser", "Supervised"]

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

from torch import Tensor

from ..priors import Prior
from ..problem import InverseProblem, Unconditional
from ..schedule import Schedule
from .base import Progress, Run, Sampler
from .ddim import DDIMSampler


class PosteriorDenoiser(Protocol):
    """A denoiser conditioned on the measurement, and its schedule."""

    @property
    def schedule(self) -> Schedule:
        """The schedule under which :meth:`denoise` reads its time."""
        ...

    def denoise(self, x_t: Tensor, t: Tensor, problem: InverseProblem) -> Tensor:
        """D(x_t, t | y, A) ~ E[x_0 | x_t, y].

        Args:
            x_t: noisy images (B, C, *spatial).
            t: float64 times on the CPU, shape () or (B,).
            problem: B measurements and their operators, row by row those of x_t.

        Returns:
            Denoised images (B, C, *spatial), each a function of its own row.
        """
        ...


@dataclass(frozen=True)
class _Bound:
    """The denoiser of one problem: a prior like any other."""

    denoiser: PosteriorDenoiser
    problem: InverseProblem

    @property
    def schedule(self) -> Schedule:
        return self.denoiser.schedule

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self.denoiser.denoise(x_t, t, self.problem)


@dataclass(frozen=True)
class Supervised(Sampler):
    """DDIM with a conditional denoiser.

    Args:
        denoiser: Denoiser D(x_t, t | y, A), for instance a :class:`~lavps.amortization.ConditionalDenoiser`.
        num_steps: Number K of denoiser evaluations.
        grid_power: Exponent of t_k = (k / K)^power; above 1 the steps are denser towards t = 0.
        eta: Fraction of fresh noise; 1 is ancestral (DDPM), 0 deterministic.
    """

    denoiser: PosteriorDenoiser
    _: KW_ONLY
    num_steps: int = 100
    grid_power: float = 1.0
    eta: float = 1.0

    @property
    def total_steps(self) -> int:
        """One per grid interval."""
        return self.num_steps

    def denoiser_of(self, problem: InverseProblem | Unconditional) -> Prior:
        """Return the denoiser conditioned on these measurements."""
        if isinstance(problem, Unconditional):
            raise TypeError("a supervised sampler needs a measurement: give it an InverseProblem")
        return _Bound(self.denoiser, problem)

    def steps(self, run: Run) -> Iterator[Progress]:
        """DDIM's."""
        ddim = DDIMSampler(run.prior, num_steps=self.num_steps, grid_power=self.grid_power, eta=self.eta)
        return ddim.steps(run)
